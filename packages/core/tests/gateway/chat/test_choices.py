"""Several choices of one answer: each drawn, shown and recorded on its own."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids
from leyden.core.engine.base import GenerateRequest
from leyden.core.errors import EngineError
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import Scripted, ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, scripted_gateway

CODEC = ByteCodec()
USER: Any = [{"role": "user", "content": "hi"}]


def script(request: GenerateRequest) -> Scripted:
    n = int(request.request_id.rpartition("-")[2])
    return ScriptedAnswer(ids=CODEC.answer(f"answer {n}" + "!" * n), chunk_size=1 + n, chunk_delay=0.001)


def client(attempt: AttemptHandle) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=attempt.base_url, api_key="x", max_retries=0)


async def test_each_choice_is_an_answer_and_a_record() -> None:
    async with scripted_gateway(script) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            answer = await agent.chat.completions.create(model="m", messages=USER, n=3)
        spans = await gateway.calls(attempt)
        log = {record.request_id: record for record in gateway.engine.log}
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == ["answer 0", "answer 1!", "answer 2!!"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(len(record.response_ids) for record in log.values())
    assert answer.usage.prompt_tokens == len(next(iter(log.values())).prompt_ids)
    assert {str(span.attributes[semconv.RESPONSE_ID]) for span in spans} == {answer.id}
    assert [span.attributes[semconv.CHOICE_INDEX] for span in spans] == [0, 1, 2]
    assert {str(span.attributes[semconv.CALL_ID]) for span in spans} == set(log)
    for span, choice in zip(spans, answer.choices, strict=True):
        assert json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES]))[0]["content"] == choice.message.content


async def test_a_stream_carries_every_choice_under_its_index() -> None:
    async with scripted_gateway(script) as gateway:
        attempt = await gateway.open_attempt()
        contents, ends, roles = {0: "", 1: "", 2: ""}, dict[int, str | None](), list[int]()
        async with client(attempt) as agent:
            async for event in await agent.chat.completions.create(model="m", messages=USER, n=3, stream=True):
                for choice in event.choices:
                    roles += [choice.index] if choice.delta.role else []
                    contents[choice.index] += choice.delta.content or ""
                    if choice.finish_reason:
                        ends[choice.index] = choice.finish_reason
    assert contents == {0: "answer 0", 1: "answer 1!", 2: "answer 2!!"}
    assert ends == dict.fromkeys(range(3), "stop")
    assert sorted(roles) == [0, 1, 2]


async def test_a_seed_does_not_make_all_choices_the_same() -> None:
    async with scripted_gateway(script) as gateway:
        attempt = await gateway.open_attempt("val")
        async with client(attempt) as agent:
            await agent.chat.completions.create(model="m", messages=USER, n=2, seed=5)
    assert sorted(request.sampling.seed or 0 for request in gateway.engine.requests) == [5, 6]


async def test_one_choice_that_fails_fails_the_answer_and_none_of_it_trains() -> None:
    def failing(request: GenerateRequest) -> Scripted:
        return EngineError("lost one") if request.request_id.endswith("-1") else script(request)

    async with scripted_gateway(failing) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            with pytest.raises(openai.InternalServerError, match="lost one"):
                await agent.chat.completions.create(model="m", messages=USER, n=3)
        spans = await gateway.calls(attempt)
        assert gateway.engine.in_flight == 0
    assert len(spans) == 3
    assert {str(span.attributes[semconv.NOT_TRAINED]) for span in spans} == {"engine error"}


async def test_the_likeliest_tokens_are_shown_where_they_are_asked_for() -> None:
    async with scripted_gateway(script, sampling=None) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            answer = await agent.chat.completions.create(model="m", messages=USER, n=2, logprobs=True, top_logprobs=3)
            bare = await agent.chat.completions.create(model="m", messages=USER, n=2, logprobs=True)
    for choice in answer.choices:
        assert choice.logprobs is not None
        content = choice.logprobs.content or []
        assert "".join(token.token for token in content) == choice.message.content
        for token in content:
            shown = [other.logprob for other in token.top_logprobs]
            assert len(shown) == 3
            assert shown == sorted(shown, reverse=True)
    assert bare.choices[0].logprobs is not None
    assert [token.top_logprobs for token in bare.choices[0].logprobs.content or ()] == [[]] * 8


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_that_wait_for_their_turn_when_the_client_hangs_up_are_recorded(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine has delivered them, so that its log has them, too."""

    async def hold(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("leyden.core.gateway.calls.serve._Pace.__aenter__", hold)
    async with scripted_gateway(script) as gateway, httpx.AsyncClient() as http:
        attempt = await gateway.open_attempt()
        body = {"model": "m", "messages": USER, "n": 3, "stream": stream}
        with pytest.raises(httpx.ReadTimeout):
            await http.post(f"{attempt.base_url}/chat/completions", json=body, timeout=httpx.Timeout(10, read=0.3))
        while len(spans := await gateway.calls(attempt)) < 3:
            await asyncio.sleep(0.01)
        log = {record.request_id: record.response_ids for record in gateway.engine.log}
    recorded = {str(span.attributes[semconv.CALL_ID]): span.attributes for span in spans}
    assert {call: list(unpack_ids(packed(one[semconv.RESPONSE_IDS]))) for call, one in recorded.items()} == log
    assert [len(ids) for _, ids in sorted(log.items())] == [1, 2, 3]
    assert {str(one[semconv.NOT_TRAINED]) for one in recorded.values()} == {"client disconnected"}


def packed(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value

"""The gateway as an OpenAI client sees it: a real server, the real SDK."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from leyden.core.engine.base import GenerateRequest
from leyden.core.errors import EngineError
from leyden.core.gateway.chat.request import parse_chat
from leyden.core.gateway.codecs.answer_reader import AnswerReader
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import Script, ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, scripted_gateway

CODEC = ByteCodec()
USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is 1 + 2?"}]
TOOLS: list[ChatCompletionToolParam] = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
PROMPT_TOKENS = len(CODEC.encode([{"role": "user", "content": "What is 1 + 2?"}]))
DETAILS = {
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {
        "reasoning_tokens": 0,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
}


def script_of(text: str, **how: Any) -> ScriptedAnswer:
    return ScriptedAnswer(ids=CODEC.answer(text), **how)


def always(text: str, **how: Any) -> Script:
    def script(_: GenerateRequest) -> ScriptedAnswer:
        return script_of(text, **how)

    return script


def client(attempt: AttemptHandle, retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=attempt.base_url, api_key="the agent's own", max_retries=retries)


def counts(prompt: int, answer: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer} | DETAILS


async def raw(attempt: AttemptHandle, **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient() as http:
        body = {"model": "gpt-4o", "messages": USER, **fields}
        return await http.post(f"{attempt.base_url}/chat/completions", json=body)


def events(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    blocks = response.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


async def test_a_plain_answer_has_the_providers_fields_and_no_others() -> None:
    async with scripted_gateway(always("It is 3.")) as gateway:
        response = await raw(await gateway.open_attempt(), temperature=0.3)
    assert set(response.headers) == {"date", "content-type", "content-length", "x-request-id"}
    answer = response.json()
    assert answer["id"].startswith("chatcmpl-")
    message: dict[str, Any] = {"role": "assistant", "content": "It is 3.", "refusal": None, "annotations": []}
    assert answer == {
        "id": answer["id"],
        "object": "chat.completion",
        "created": answer["created"],
        "model": "gpt-4o",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": counts(PROMPT_TOKENS, 9),
        "service_tier": "default",
        "system_fingerprint": "fp_6f1a0c52d3",
    }


async def test_a_streamed_answer_has_the_providers_events_and_no_others() -> None:
    async with scripted_gateway(always("Hé", chunk_size=1)) as gateway:
        attempt = await gateway.open_attempt()
        chunks = events(await raw(attempt, stream=True, stream_options={"include_usage": True}))
        without_usage = events(await raw(attempt, stream=True, stream_options={"include_obfuscation": False}))
    head = {"object": "chat.completion.chunk", "model": "gpt-4o", "service_tier": "default"}
    for chunk in chunks:
        assert head.items() <= chunk.items()
        assert set(chunk) == {*head, "id", "created", "system_fingerprint", "choices", "usage", "obfuscation"}
        assert chunk["obfuscation"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert choices == [
        {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        for delta, finish in [
            ({"role": "assistant", "content": "", "refusal": None}, None),
            ({"content": "H"}, None),
            ({"content": "é"}, None),
            ({}, "stop"),
        ]
    ]
    assert [chunk["usage"] is None for chunk in chunks] == [True] * 4 + [False]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == counts(PROMPT_TOKENS, 4)
    assert len(without_usage) == 4
    assert all({"usage", "obfuscation"}.isdisjoint(chunk) for chunk in without_usage)


async def test_tool_calls_plain_and_streamed() -> None:
    async with scripted_gateway(always(f"{CALL}\n{CALL}", chunk_size=3)) as gateway:
        attempt = await gateway.open_attempt()
        message = (await raw(attempt, tools=TOOLS)).json()["choices"][0]
        deltas = [chunk["choices"][0] for chunk in events(await raw(attempt, tools=TOOLS, stream=True))]
    calls = message["message"].pop("tool_calls")
    assert message["message"] == {"role": "assistant", "content": None, "refusal": None, "annotations": []}
    assert message["finish_reason"] == "tool_calls"
    function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    assert calls == [{"id": call["id"], "type": "function", "function": function} for call in calls]
    assert len({call["id"] for call in calls}) == 2
    first = {"role": "assistant", "content": None, "refusal": None}
    streamed = [delta["delta"] for delta in deltas]
    ids = [delta["tool_calls"][0].get("id") for delta in streamed[:-1]]
    assert streamed == [
        first | {"tool_calls": [_named(0, ids[0])]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1, "b": 2}'}}]},
        {"tool_calls": [_named(1, ids[2])]},
        {"tool_calls": [{"index": 1, "function": {"arguments": '{"a": 1, "b": 2}'}}]},
        {},
    ]
    assert [delta["finish_reason"] for delta in deltas] == [None] * 4 + ["tool_calls"]


def _named(index: int, call_id: str) -> dict[str, Any]:
    return {"index": index, "id": call_id, "type": "function", "function": {"name": "add", "arguments": ""}}


async def test_calls_are_content_where_the_agent_offers_no_tools_or_forbids_them() -> None:
    async with scripted_gateway(always(CALL)) as gateway:
        async with client(await gateway.open_attempt()) as agent:
            answers = [
                await agent.chat.completions.create(model="m", messages=USER),
                await agent.chat.completions.create(model="m", messages=USER, tools=TOOLS, tool_choice="none"),
            ]
        for answer in answers:
            assert (answer.choices[0].message.content, answer.choices[0].message.tool_calls) == (CALL, None)
            assert answer.choices[0].finish_reason == "stop"
    assert gateway.engine.requests[0].prompt_ids == gateway.engine.requests[1].prompt_ids


async def test_one_call_at_a_time_ends_the_answer_after_the_first() -> None:
    async with (
        scripted_gateway(always(f"{CALL}{CALL}", chunk_size=1)) as gateway,
        client(await gateway.open_attempt()) as agent,
    ):
        answer = await agent.chat.completions.create(model="m", messages=USER, tools=TOOLS, parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls or ()) == 1
    assert answer.choices[0].finish_reason == "tool_calls"
    assert bytes(gateway.engine.log[0].response_ids).decode() == CALL
    assert gateway.engine.log[0].finish_reason == "abort"


@pytest.mark.parametrize("text", ["Hello!", CALL.replace("add", "divide"), ' {"a": 1, "b": 2}}\n</tool_call>'])
async def test_a_call_that_must_be_made_is_of_the_only_tool_whatever_the_policy_writes(text: str) -> None:
    async with scripted_gateway(always(text)) as gateway, client(await gateway.open_attempt()) as agent:
        answer = await agent.chat.completions.create(model="m", messages=USER, tools=TOOLS, tool_choice="required")
        named: Any = {"type": "function", "function": {"name": "add"}}
        held = await agent.chat.completions.create(model="m", messages=USER, tools=TOOLS, tool_choice=named)
    calls: Any = [one.choices[0].message.tool_calls for one in (answer, held)]
    assert [call.function.name for found in calls for call in found] == ["add", "add"]
    assert (answer.choices[0].finish_reason, held.choices[0].finish_reason) == ("tool_calls", "stop")
    assert gateway.engine.requests[0].prompt_ids == gateway.engine.requests[1].prompt_ids


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings_cut_the_text_and_end_the_call(stream: bool) -> None:
    async with scripted_gateway(always("one, two, three", chunk_size=1)) as gateway:
        attempt = await gateway.open_attempt()
        response = await raw(attempt, stop=["tree", "two,"], stream=stream)
        content, finish = _content_of(response, stream)
    assert (content, finish) == ("one, ", "stop")
    assert bytes(gateway.engine.log[0].response_ids) == b"one, two,"
    assert gateway.engine.requests[0].sampling.stop == ("tree", "two,")


def _content_of(response: httpx.Response, stream: bool) -> tuple[str, str]:
    if not stream:
        choice = response.json()["choices"][0]
        return choice["message"]["content"], choice["finish_reason"]
    choices = [chunk["choices"][0] for chunk in events(response)]
    return "".join(choice["delta"].get("content", "") for choice in choices), choices[-1]["finish_reason"]


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
async def test_length_limits_are_honoured(limit: str) -> None:
    async with scripted_gateway(always("abcdef")) as gateway:
        assert _content_of(await raw(await gateway.open_attempt(), **{limit: 3}), stream=False) == ("abc", "length")


async def test_an_empty_answer_is_an_empty_string() -> None:
    async with scripted_gateway(always("")) as gateway:
        attempt = await gateway.open_attempt()
        assert _content_of(await raw(attempt), stream=False) == ("", "stop")
        assert _content_of(await raw(attempt, stream=True), stream=True) == ("", "stop")


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_those_of_the_content(stream: bool) -> None:
    async with scripted_gateway(always("aé", chunk_size=1)) as gateway:
        response = await raw(await gateway.open_attempt(), logprobs=True, stream=stream)
    if stream:
        found = [chunk["choices"][0]["logprobs"] for chunk in events(response)]
        assert [None if part is None else len(part["content"]) for part in found] == [0, 1, 2, None]
        entries = [entry for part in found if part for entry in part["content"]]
    else:
        entries = response.json()["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in entries] == [[97], [0xC3], [0xA9]]
    assert [entry["token"] for entry in entries] == ["a", "\ufffd", "\ufffd"]
    assert [entry["logprob"] for entry in entries] == gateway.engine.log[0].logprobs[:3]
    assert all(entry["top_logprobs"] == [] for entry in entries)


async def test_the_synchronous_client_sees_the_same() -> None:
    def stream_answer(attempt: AttemptHandle) -> tuple[str | None, str]:
        with openai.OpenAI(base_url=attempt.base_url, api_key="x", max_retries=0) as sync_client:
            plain = sync_client.chat.completions.create(model="m", messages=USER)
            stream = sync_client.chat.completions.create(model="m", messages=USER, stream=True)
            return plain.choices[0].message.content, "".join(part.choices[0].delta.content or "" for part in stream)

    async with scripted_gateway(always("naïve 🙂", chunk_size=2)) as gateway:
        assert await asyncio.to_thread(stream_answer, await gateway.open_attempt()) == ("naïve 🙂", "naïve 🙂")


async def test_the_sdks_stream_helper_puts_the_same_answer_together() -> None:
    async with (
        scripted_gateway(always(f"Let me see. {CALL}", chunk_size=1)) as gateway,
        client(await gateway.open_attempt()) as agent,
    ):
        stream = await agent.chat.completions.create(model="m", messages=USER, tools=TOOLS, stream=True)
        state = ChatCompletionStreamState(input_tools=TOOLS)
        async for chunk in stream:
            state.handle_chunk(chunk)
        streamed = state.get_final_completion().choices[0]
        plain = (await agent.chat.completions.create(model="m", messages=USER, tools=TOOLS)).choices[0]
    assert streamed.message.content == plain.message.content == "Let me see."
    assert streamed.finish_reason == plain.finish_reason == "tool_calls"
    functions = [[_function(call) for call in choice.message.tool_calls or ()] for choice in (streamed, plain)]
    assert functions == [[("add", '{"a": 1, "b": 2}')]] * 2


def _function(call: Any) -> tuple[str, str]:
    return call.function.name, call.function.arguments


async def test_many_calls_at_once_get_their_own_answers() -> None:
    def echo(request: GenerateRequest) -> ScriptedAnswer:
        return script_of(bytes(i for i in request.prompt_ids if i < 256).decode(), chunk_size=7, chunk_delay=0.0005)

    async def stream_answer(agent: openai.AsyncOpenAI, n: int) -> bool:
        question: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"question {n}"}]
        if n % 2:
            answer = await agent.chat.completions.create(model="m", messages=question)
            return f"question {n}\n" in (answer.choices[0].message.content or "")
        stream = await agent.chat.completions.create(model="m", messages=question, stream=True)
        return f"question {n}\n" in "".join([part.choices[0].delta.content or "" async for part in stream])

    async with scripted_gateway(echo) as gateway, client(await gateway.open_attempt()) as agent:
        assert all(await asyncio.gather(*(stream_answer(agent, n) for n in range(60))))
    assert len(gateway.engine.log) == 60


async def test_errors_are_the_sdks_own_classes() -> None:
    async with scripted_gateway([EngineError("no room")], context_length=100) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            with pytest.raises(openai.InternalServerError, match="no room"):
                await agent.chat.completions.create(model="m", messages=USER)
            with pytest.raises(openai.BadRequestError) as refused:
                await agent.chat.completions.create(model="m", messages=USER, extra_body={"functions": [{"name": "f"}]})
            with pytest.raises(openai.BadRequestError) as too_long:
                long: list[ChatCompletionMessageParam] = [{"role": "user", "content": "x" * 100}]
                await agent.chat.completions.create(model="m", messages=long, stream=True)
    assert (refused.value.param, refused.value.code) == ("functions", "unsupported_parameter")
    assert too_long.value.code == "context_length_exceeded"


async def test_the_sdk_tries_again_after_our_own_failure() -> None:
    async with (
        scripted_gateway([EngineError("busy"), script_of("fine")]) as gateway,
        client(await gateway.open_attempt(), retries=1) as agent,
    ):
        answer = await agent.chat.completions.create(model="m", messages=USER)
    assert answer.choices[0].message.content == "fine"


async def test_an_engine_that_fails_in_a_stream_is_an_error_in_the_stream() -> None:
    broken = ScriptedAnswer(ids=list(b"abc"), chunk_size=1, error=EngineError("lost"))
    async with scripted_gateway([broken]) as gateway, client(await gateway.open_attempt()) as agent:
        stream = await agent.chat.completions.create(model="m", messages=USER, stream=True)
        text = ""
        with pytest.raises(openai.APIError, match="lost"):
            async for part in stream:
                text += part.choices[0].delta.content or ""
        assert text == "abc"


PIECES = st.one_of(st.text(max_size=8), st.sampled_from([CALL, "<tool_call>", "</tool_call>", "\n", " ", "END", "E"]))


@given(st.lists(PIECES, max_size=8).map("".join), st.booleans(), st.booleans(), st.data())
def test_stream_deltas_add_up_to_the_plain_answer(text: str, tools: bool, parallel: bool, data: st.DataObject) -> None:
    body: dict[str, Any] = {"model": "m", "messages": USER, "stop": ["END"], "parallel_tool_calls": parallel}
    request = parse_chat(json.dumps(body | ({"tools": TOOLS} if tools else {})).encode())
    ids = CODEC.answer(text.encode(errors="replace").decode())
    plain, live = AnswerReader(CODEC, request, "call"), AnswerReader(CODEC, request, "call")
    plain.push(ids, [])
    plain.finish()
    shown, position = list[Any](), 0
    while position < len(ids) and not live.stopped:
        size = data.draw(st.integers(1, 9))
        shown += live.push(ids[position : position + size], [])
        position += size
    shown += live.finish()
    assert "".join(part for part in shown if isinstance(part, str)) == (plain.content or "")
    assert live.content == plain.content
    assert live.calls == plain.calls
    assert [part for part in shown if not isinstance(part, str)] == live.calls

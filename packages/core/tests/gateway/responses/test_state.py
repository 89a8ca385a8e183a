"""Stored answers of the Responses API: going on from them, reading and deleting them, and what is kept for that."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import FunctionToolParam

from leyden.core.data import semconv
from leyden.core.data.identity import mint
from leyden.core.data.span import Span
from leyden.core.engine.base import GenerateRequest
from leyden.core.gateway.app import GatewayLimits
from leyden.core.gateway.calls.span_writer import SpanWriterLimits
from leyden.core.gateway.responses import state as responses_state
from leyden.core.gateway.responses.items import REASONING
from leyden.core.store.memory import MemoryStore
from leyden.core.store.open import open_store
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, ScriptedGateway, scripted_gateway

CODEC = ByteCodec()
ADD: FunctionToolParam = {"type": "function", "name": "add", "parameters": {}, "strict": False}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def numbered(request: GenerateRequest) -> ScriptedAnswer:
    """Answer with how many turns of the agent were read."""
    return ScriptedAnswer(ids=CODEC.answer(f"answer {_read(request).count('user')}"))


def _read(request: GenerateRequest) -> str:
    return bytes(token for token in request.prompt_ids if token < 256).decode()


@contextlib.asynccontextmanager
async def serving(store: MemoryStore | None = None) -> AsyncGenerator[tuple[ScriptedGateway, openai.AsyncOpenAI]]:
    async with scripted_gateway(numbered, store=store) as gateway, client(await gateway.open_attempt()) as agent:
        yield gateway, agent


def client(attempt: AttemptHandle, retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=attempt.base_url, api_key="the agent's own", max_retries=retries)


def _json(span: Span, key: str) -> Any:
    return json.loads(str(span.attributes[key]))


async def test_a_conversation_goes_on_without_its_old_instructions() -> None:
    async with serving() as (gateway, agent):
        first = await agent.responses.create(model="m", input="one?", instructions="Be brief.")
        second = await agent.responses.create(model="m", input="two?", previous_response_id=first.id)
        third = await agent.responses.create(
            model="m", input="three?", previous_response_id=second.id, instructions="Be kind."
        )
        branch = await agent.responses.create(model="m", input="other?", previous_response_id=first.id)
    assert [answer.output_text for answer in (first, second, third, branch)] == [
        "answer 1",
        "answer 2",
        "answer 3",
        "answer 2",
    ]
    assert (second.previous_response_id, second.instructions) == (first.id, None)
    expected = ["user", "one?", "assistant", "answer 1", "user", "two?", "assistant", "answer 2", "user", "three?"]
    assert _read(gateway.engine.requests[2]).split("\n")[:-2] == ["system", "Be kind.", *expected]


async def test_the_record_holds_the_whole_conversation_as_messages() -> None:
    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            first = await agent.responses.create(model="m", input="one?", tools=[ADD])
            second = await agent.responses.create(
                model="m", input="two?", previous_response_id=first.id, stream=True, metadata={"k": "v"}
            )
            answers = [event.response async for event in second if event.type == "response.completed"]
        one, two = await gateway.calls(attempt)
    answered: dict[str, Any] = {"role": "assistant", "content": "answer 1"}
    assert _json(two, semconv.INPUT_MESSAGES) == [
        {"role": "user", "content": "one?"},
        answered,
        {"role": "user", "content": "two?"},
    ]
    assert _json(two, semconv.OUTPUT_MESSAGES) == [
        answered | {"content": "answer 2", "refusal": None, "annotations": []}
    ]
    nested: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {}, "strict": False}}
    assert _json(one, semconv.TOOL_DEFINITIONS) == [nested]
    assert _json(two, semconv.SAMPLING_ASKED) == {"previous_response_id": first.id, "metadata": {"k": "v"}}
    for span, response_id in ((one, first.id), (two, answers[0].id)):
        assert span.attributes[semconv.RESPONSE_ID] == span.attributes[semconv.CALL_ID] == response_id
        assert span.attributes[semconv.DIALECT] == "responses"
        assert semconv.LEFT_OUT not in span.attributes
    assert [span.attributes[semconv.REQUEST_STREAM] for span in (one, two)] == [False, True]


async def test_the_next_prompt_begins_with_all_that_was_read_and_drawn() -> None:
    async with serving() as (gateway, agent):
        first = await agent.responses.create(model="m", input="one?")
        await agent.responses.create(model="m", input="two?", previous_response_id=first.id)
    token_ids = [*gateway.engine.log[0].prompt_ids, *gateway.engine.log[0].response_ids]
    assert list(gateway.engine.log[1].prompt_ids)[: len(token_ids)] == token_ids


async def test_a_tools_answer_follows_its_call() -> None:
    answers = [ScriptedAnswer(ids=CODEC.answer(text)) for text in (f"Hm. {CALL}{CALL}", "It is 3.")]
    async with scripted_gateway(answers) as gateway, client(await gateway.open_attempt()) as agent:
        first_answer = await agent.responses.create(model="m", input="1 + 2?", tools=[ADD])
        calls = [item.call_id for item in first_answer.output if item.type == "function_call"]
        with pytest.raises(openai.BadRequestError, match=f"No tool output found for function call {min(calls)}"):
            await agent.responses.create(model="m", input="Well?", previous_response_id=first_answer.id)
        with pytest.raises(openai.BadRequestError, match="No tool call found for function call output with call_id c9"):
            await agent.responses.create(model="m", input=[_output("c9")], previous_response_id=first_answer.id)
        answer = await agent.responses.create(
            model="m", input=[_output(call_id) for call_id in calls], previous_response_id=first_answer.id
        )
    assert len(calls) == 2
    assert answer.output_text == "It is 3."
    assert f"Hm.{CALL}{CALL}\ntool\n3\ntool\n3\n" in _read(gateway.engine.requests[1])


def _output(call_id: str) -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": "3"}


async def test_what_is_not_there_is_the_providers_error() -> None:
    async with scripted_gateway(numbered) as gateway:
        attempts = [await gateway.open_attempt() for _ in range(2)]
        async with client(attempts[0]) as agent, client(attempts[1]) as stranger:
            own = await agent.responses.create(model="m", input="?")
            unstored = await agent.responses.create(model="m", input="?", store=False)
            for who, response_id in ((agent, "resp_unknown"), (stranger, own.id), (agent, unstored.id)):
                with pytest.raises(openai.BadRequestError) as refused:
                    await who.responses.create(model="m", input="?", previous_response_id=response_id)
                assert refused.value.body == {
                    "message": f"Previous response with id '{response_id}' not found.",
                    "type": "invalid_request_error",
                    "param": "previous_response_id",
                    "code": "previous_response_not_found",
                }
                for read in (who.responses.retrieve, who.responses.delete, who.responses.cancel, _listed(who)):
                    with pytest.raises(openai.NotFoundError, match=f"Response with id '{response_id}' not found"):
                        await read(response_id)
            assert (await agent.responses.retrieve(own.id)).id == own.id
        unkept = (await gateway.calls(attempts[0]))[1]
    assert unstored.model_dump()["store"] is False
    assert not {semconv.RESPONSES_ANSWER, semconv.RESPONSES_INPUT} & set(unkept.attributes)


def _listed(agent: openai.AsyncOpenAI) -> Any:
    async def read(response_id: str) -> list[Any]:
        return [item async for item in agent.responses.input_items.list(response_id)]

    return read


@pytest.mark.parametrize("prefix", ["/v1", "/a/{token}/v1"])
async def test_stored_answers_are_read_under_both_prefixes(prefix: str) -> None:
    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt()
        url = gateway.url + prefix.format(token=attempt.token)
        headers = {"authorization": f"Bearer {attempt.token}"} if prefix == "/v1" else {}
        async with httpx.AsyncClient(headers=headers) as http:
            made = (await http.post(f"{url}/responses", json={"model": "m", "input": "?"})).json()
            kept = (await http.get(f"{url}/responses/{made['id']}")).json()
            cancel = await http.post(f"{url}/responses/{made['id']}/cancel")
            replayed = await http.get(f"{url}/responses/{made['id']}?stream=true")
            put = await http.put(f"{url}/responses/{made['id']}")
            unsigned = {"authorization": "Bearer x"}
            unsigned_answer = await http.get(f"{gateway.url}/v1/responses/{made['id']}", headers=unsigned)
    assert kept == made
    assert (cancel.status_code, cancel.json()["error"]["message"]) == (400, "Cannot cancel a synchronous response.")
    assert (replayed.status_code, replayed.json()["error"]["param"]) == (400, "stream")
    assert (put.status_code, unsigned_answer.status_code) == (405, 401)


async def test_everything_is_found_again_after_a_restart(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'store.db'}")
    try:
        async with scripted_gateway(numbered, store=store) as gateway:
            attempt = await gateway.open_attempt()
            async with client(attempt) as agent:
                first = await agent.responses.create(model="m", input="one?")
                second = await agent.responses.create(model="m", input="two?", previous_response_id=first.id)
                third = await agent.responses.create(model="m", input="three?", previous_response_id=second.id)
                await agent.responses.delete(second.id)
        async with scripted_gateway(numbered, store=store) as restarted:
            headers = _private(restarted, attempt)
            agent = openai.AsyncOpenAI(base_url=f"{restarted.url}/v1", api_key="x", default_headers=headers)
            fourth = await agent.responses.create(model="m", input="four?", previous_response_id=third.id)
            assert await agent.responses.retrieve(third.id) == third
            with pytest.raises(openai.NotFoundError):
                await agent.responses.retrieve(second.id)
            with pytest.raises(openai.BadRequestError):
                await agent.responses.create(model="m", input="?", previous_response_id=second.id)
            await agent.close()
    finally:
        await store.close()
    assert fourth.output_text == "answer 4"


def _private(gateway: ScriptedGateway, attempt: AttemptHandle) -> dict[str, str]:
    return {semconv.HEADER_ATTEMPT: mint(gateway.key, attempt.rollout_id, attempt.attempt_id)}


async def test_a_deleted_answer_is_gone_and_those_after_it_are_not() -> None:
    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            first = await agent.responses.create(model="m", input="one?")
            second = await agent.responses.create(model="m", input="two?", previous_response_id=first.id)
            gone = await agent.delete(f"/responses/{first.id}", cast_to=httpx.Response)
            assert gone.json() == {"id": first.id, "object": "response.deleted", "deleted": True}
            with pytest.raises(openai.NotFoundError):
                await agent.responses.delete(first.id)
            with pytest.raises(openai.BadRequestError):
                await agent.responses.create(model="m", input="?", previous_response_id=first.id)
            third = await agent.responses.create(model="m", input="three?", previous_response_id=second.id)
            items = [item async for item in agent.responses.input_items.list(third.id)]
        assert len(items) == 5
        assert third.output_text == "answer 3"
        spans = (await gateway.store.query_spans(attempt.rollout_id, attempt.attempt_id)).items
        assert [span.name for span in spans].count("delete response") == 1


async def test_a_deletion_that_cannot_be_recorded_did_not_happen() -> None:
    class Full(MemoryStore):
        """Takes nothing while it is full."""

        full = False

        async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
            if self.full:
                raise OSError("disk full")
            return await super().add_many_spans(spans)

    store = Full()
    async with serving(store) as (_, agent):
        made = await agent.responses.create(model="m", input="?")
        store.full = True
        with pytest.raises(openai.InternalServerError):
            await agent.responses.delete(made.id)
        store.full = False
        assert (await agent.responses.retrieve(made.id)).id == made.id
    await store.close()


async def test_input_items_are_listed_page_by_page() -> None:
    async with serving() as (_, agent):
        first = await agent.responses.create(model="m", input="one?")
        given: Any = [{"role": "developer", "content": "Hm."}, {"role": "user", "content": "two?", "id": "msg_own"}]
        second = await agent.responses.create(model="m", input=given, previous_response_id=first.id)
        newest = [item async for item in agent.responses.input_items.list(second.id, limit=3)]
        oldest: Any = [item async for item in agent.responses.input_items.list(second.id, order="asc", limit=1)]
        page = await agent.responses.input_items.list(second.id, limit=2)
        bad: list[dict[str, Any]] = [{"limit": 0}, {"limit": 101}, {"after": "msg_x"}]
        for options in bad:
            with pytest.raises(openai.BadRequestError):
                await agent.responses.input_items.list(second.id, **options)
    assert newest[::-1] == oldest
    assert [(item.role, item.content[0].text) for item in oldest] == [
        ("user", "one?"),
        ("assistant", "answer 1"),
        ("developer", "Hm."),
        ("user", "two?"),
    ]
    assert oldest[3].id == "msg_own"
    assert oldest[1].id == first.output[0].id
    assert (page.data, page.has_more) == (newest[:2], True)


async def test_references_stand_for_the_items_of_the_attempt() -> None:
    async with serving() as (gateway, agent):
        first = await agent.responses.create(model="m", input="one?")
        [first_answer] = (await agent.responses.input_items.list(first.id)).data
        given: Any = [
            {"type": "item_reference", "id": first_answer.id},
            {"id": first.output[0].id},
            {"role": "user", "content": "two?"},
        ]
        await agent.responses.create(model="m", input=given)
        with pytest.raises(openai.NotFoundError, match="Item with id 'msg_x' not found"):
            await agent.responses.create(model="m", input=[{"type": "item_reference", "id": "msg_x"}])
    read = _read(gateway.engine.requests[1]).split("\n")
    assert read[:6] == ["user", "one?", "assistant", "answer 1", "user", "two?"]


async def test_reasoning_that_is_left_out_is_noted() -> None:
    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            given: Any = [{"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "user", "content": "?"}]
            answer = await agent.responses.create(model="m", input=given, store=False)
        [span] = await gateway.calls(attempt)
    assert answer.output_text == "answer 1"
    assert span.attributes[semconv.LEFT_OUT] == [REASONING]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_is_the_same_answer_and_can_be_gone_on_from(stream: bool) -> None:
    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt()
        body = {"model": "m", "input": "?", "stream": stream}
        async with httpx.AsyncClient(base_url=attempt.base_url) as http:
            first = _answer_in(await http.post("responses", json=body), stream)
            again = _answer_in(
                await http.post("responses", json=body, headers={"x-stainless-retry-count": "1"}), stream
            )
            more = await http.post("responses", json={"model": "m", "input": "?", "previous_response_id": again["id"]})
        assert again | {"completed_at": 0} == first | {"completed_at": 0}
        assert more.json()["output"][0]["content"][0]["text"] == "answer 2"
    assert len(gateway.engine.log) == 2


def _answer_in(response: httpx.Response, stream: bool) -> Any:
    if not stream:
        return response.json()
    return json.loads(response.text.strip().rpartition("data: ")[2])["response"]


async def test_an_answer_that_nobody_heard_can_still_be_gone_on_from() -> None:
    generated = asyncio.Event()

    class Slow(MemoryStore):
        """Holds the record back until the client is gone."""

        async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
            generated.set()
            await asyncio.sleep(0.1)
            return await super().add_many_spans(spans)

    store = Slow()
    async with scripted_gateway(numbered, store=store) as gateway:
        attempt = await gateway.open_attempt()
        async with httpx.AsyncClient(base_url=attempt.base_url) as http:
            call = asyncio.create_task(http.post("responses", json={"model": "m", "input": "?"}))
            await generated.wait()
            call.cancel()
            await asyncio.wait([call])
        while not (spans := await gateway.calls(attempt)):
            await asyncio.sleep(0.005)
        async with client(attempt) as agent:
            kept = await agent.responses.retrieve(str(spans[0].attributes[semconv.RESPONSE_ID]))
    await store.close()
    assert kept.output_text == "answer 1"


@pytest.mark.parametrize("within", [0.0, 2.0])
async def test_what_memory_has_forgotten_is_read_from_the_records(
    monkeypatch: pytest.MonkeyPatch, within: float
) -> None:
    monkeypatch.setattr(responses_state, "REMEMBERED", 1)
    limits = GatewayLimits(records=SpanWriterLimits(within=within))
    async with (
        scripted_gateway(numbered, limits=limits) as gateway,
        client(await gateway.open_attempt()) as agent,
    ):
        previous: str | None = None
        for index in range(1, 5):
            answer = await agent.responses.create(model="m", input="?", previous_response_id=previous)
            assert answer.output_text == f"answer {index}"
            previous = answer.id

"""A request made again because its answer did not arrive gets that answer: one call, one record."""

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.engine.base import GenerateRequest
from leyden.core.errors import EngineError
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import Scripted, ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, scripted_gateway

CODEC = ByteCodec()
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
}
AGAIN = {"x-stainless-retry-count": "1"}


class GatedStore(MemoryStore):
    """Takes records only while `open` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.waiting = asyncio.Event(), asyncio.Event()

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        self.waiting.set()
        await self.open.wait()
        return await super().add_many_spans(spans)


async def leave_while_recording(attempt: AttemptHandle, store: GatedStore) -> None:
    """Ask, and hang up while the answer waits to be recorded."""
    leaving = asyncio.create_task(send_request(attempt))
    await store.waiting.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await asyncio.sleep(0.05)  # the server learns of it from its socket


def numbered() -> Any:
    calls: list[GenerateRequest] = []

    def script(request: GenerateRequest) -> Scripted:
        calls.append(request)
        return ScriptedAnswer(ids=CODEC.answer(f"answer {len(calls)} {CALL}"), chunk_size=3)

    return script


async def send_request(
    attempt: AttemptHandle, *, headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    async with httpx.AsyncClient(timeout=10) as http:
        return await http.post(f"{attempt.base_url}/chat/completions", json=BODY | fields, headers=headers)


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}])
async def test_a_client_that_tries_again_gets_the_answer_that_was_recorded(fields: dict[str, Any]) -> None:
    async with scripted_gateway(numbered()) as gateway:
        attempt = await gateway.open_attempt()
        first = (await send_request(attempt, **fields)).json()
        second = (await send_request(attempt, headers=AGAIN, **fields)).json()
        assert len(await gateway.calls(attempt)) == fields.get("n", 1)
    assert second == first
    assert len(gateway.engine.log) == fields.get("n", 1)


async def test_a_stream_is_repeated_too() -> None:
    async with scripted_gateway(numbered()) as gateway:
        attempt = await gateway.open_attempt()
        streams = [await send_request(attempt, stream=True, headers=headers) for headers in (None, AGAIN)]
        assert len(await gateway.calls(attempt)) == 1
    first, second = ([json.loads(line[6:]) for line in s.text.split("\n\n")[:-2]] for s in streams)
    assert [event["id"] for event in second] == [first[0]["id"]] * len(second)
    for field in ("content", "tool_calls"):
        assert _joined(second, field) == _joined(first, field)


def _joined(events: list[Any], field: str) -> str:
    deltas = [event["choices"][0]["delta"].get(field) for event in events]
    return "".join(delta if isinstance(delta, str) else json.dumps(delta) for delta in deltas if delta)


async def test_the_same_request_twice_is_two_calls() -> None:
    async with scripted_gateway(numbered()) as gateway:
        attempt = await gateway.open_attempt()
        answers = [(await send_request(attempt)).json()["choices"][0]["message"]["content"] for _ in range(2)]
        assert len(await gateway.calls(attempt)) == 2
    assert answers == ["answer 1", "answer 2"]


async def test_a_retry_belongs_to_its_attempt_parent_and_body() -> None:
    async with scripted_gateway(numbered()) as gateway:
        attempt, other = await gateway.open_attempt(), await gateway.open_attempt()
        await send_request(attempt)
        await send_request(other, headers=AGAIN)
        await send_request(attempt, headers=AGAIN | {semconv.HEADER_SPAN: "00f067aa0ba902b7"})
        await send_request(attempt, headers=AGAIN, temperature=0.5)
        assert (len(await gateway.calls(attempt)), len(await gateway.calls(other))) == (3, 1)


async def test_an_answer_whose_client_left_while_it_was_recorded_waits_for_the_next_try() -> None:
    store = GatedStore()
    async with scripted_gateway(numbered(), store=store) as gateway:
        attempt = await gateway.open_attempt()
        await leave_while_recording(attempt, store)
        store.open.set()
        while not await gateway.calls(attempt):
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.01)
        answers = [(await send_request(attempt)).json()["choices"][0]["message"]["content"] for _ in range(2)]
        assert len(await gateway.calls(attempt)) == 2
    assert answers == ["answer 1", "answer 2"], "the first try's answer, once; then a new one"


async def test_an_answer_that_failed_is_drawn_anew() -> None:
    async with scripted_gateway([EngineError("busy"), CODEC.answer("fine")]) as gateway:
        attempt = await gateway.open_attempt()
        assert (await send_request(attempt)).status_code == 500
        assert (await send_request(attempt, headers=AGAIN)).json()["choices"][0]["message"]["content"] == "fine"


async def test_a_retry_of_a_call_that_failed_does_not_get_the_answer_to_an_equal_call_before() -> None:
    script = [CODEC.answer("first"), EngineError("busy"), CODEC.answer("second")]
    async with scripted_gateway(script) as gateway:
        attempt = await gateway.open_attempt()
        answers = [await send_request(attempt), await send_request(attempt), await send_request(attempt, headers=AGAIN)]
        assert len(await gateway.calls(attempt)) == 3
    assert [answer.status_code for answer in answers] == [200, 500, 200]
    assert answers[2].json()["choices"][0]["message"]["content"] == "second"


@pytest.mark.parametrize("headers", [None, AGAIN])
async def test_a_retry_waits_for_an_answer_that_is_still_being_recorded(headers: dict[str, str] | None) -> None:
    store = GatedStore()
    async with scripted_gateway(numbered(), store=store) as gateway:
        attempt = await gateway.open_attempt()
        await leave_while_recording(attempt, store)
        again = asyncio.create_task(send_request(attempt, headers=headers))
        await asyncio.sleep(0.05)
        store.open.set()
        assert (await again).json()["choices"][0]["message"]["content"] == "answer 1"
        [span] = await gateway.calls(attempt)
    assert semconv.NOT_TRAINED not in span.attributes
    assert len(gateway.engine.log) == 1


async def test_a_retry_waits_for_a_call_whose_prompt_is_still_being_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go = threading.Event(), threading.Event()

    def slow_grammar(*_: object, **__: object) -> str:
        entered.set()
        assert go.wait(10)
        return ""

    monkeypatch.setattr(ByteCodec, "grammar", slow_grammar)
    async with scripted_gateway(numbered()) as gateway:
        attempt = await gateway.open_attempt()
        wanted = {"response_format": {"type": "json_object"}}
        first = asyncio.create_task(send_request(attempt, **wanted))
        await asyncio.to_thread(entered.wait, 10)
        second = asyncio.create_task(send_request(attempt, headers=AGAIN, **wanted))
        await asyncio.sleep(0.05)  # until the retry is read
        go.set()
        answers = [(await one).json() for one in (first, second)]
        assert len(await gateway.calls(attempt)) == 1
    assert answers[0] == answers[1]
    assert len(gateway.engine.log) == 1


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_request_that_is_read_after_its_retry_is_no_second_call_if_its_client_has_left(leaves: bool) -> None:
    """A client that stays has sent the same request twice, and gets an answer of its own."""
    store = GatedStore()
    async with scripted_gateway(numbered(), store=store) as gateway:
        attempt = await gateway.open_attempt()
        retry = asyncio.create_task(send_request(attempt, headers=AGAIN))
        await store.waiting.wait()
        late = asyncio.create_task(send_request(attempt))
        await asyncio.sleep(0.05)  # until it is read
        assert len(gateway.engine.log) == 1
        if leaves:
            late.cancel()
            await asyncio.gather(late, return_exceptions=True)
            await asyncio.sleep(0.05)
        store.open.set()
        assert (await retry).json()["choices"][0]["message"]["content"] == "answer 1"
        if not leaves:
            assert (await late).json()["choices"][0]["message"]["content"] == "answer 2"
        assert len(await gateway.calls(attempt)) == (1 if leaves else 2)


async def test_the_same_request_twice_at_once_is_two_calls_that_do_not_wait_for_each_other() -> None:
    store = GatedStore()
    async with scripted_gateway(numbered(), store=store) as gateway:
        attempt = await gateway.open_attempt()
        both = [asyncio.create_task(send_request(attempt)) for _ in range(2)]
        while len(gateway.engine.log) < 2:
            await asyncio.sleep(0.005)
        store.open.set()
        answers = {(await one).json()["choices"][0]["message"]["content"] for one in both}
    assert answers == {"answer 1", "answer 2"}


async def test_a_part_of_an_answer_is_never_given_as_the_whole() -> None:
    slow = ScriptedAnswer(ids=CODEC.answer("abcdefgh"), chunk_size=1, chunk_delay=0.02)
    async with scripted_gateway([slow, CODEC.answer("anew")]) as gateway:
        attempt = await gateway.open_attempt()
        leaving = asyncio.create_task(send_request(attempt))
        while not gateway.engine.in_flight:
            await asyncio.sleep(0.005)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert (await send_request(attempt, headers=AGAIN)).json()["choices"][0]["message"]["content"] == "anew"
        cut, whole = await gateway.calls(attempt)
    assert cut.attributes[semconv.NOT_TRAINED] == "client disconnected"
    assert semconv.NOT_TRAINED not in whole.attributes

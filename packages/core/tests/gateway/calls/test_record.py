"""What the gateway records, against the engine's own log."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
import openai
import pytest

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.rollout import Attempt, Rollout, RolloutMode
from leyden.core.data.sampling import Sampling
from leyden.core.data.span import Span
from leyden.core.engine.base import EngineRecord, GenerateRequest
from leyden.core.errors import EngineError, StoreError
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import Script, ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, scripted_gateway

CODEC = ByteCodec()
USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "does f"}}]
HONOURED: list[tuple[RolloutMode | None, dict[str, str], float]] = [
    ("val", {}, 0.0),
    (None, {}, 0.0),
    ("val", {"sampling": "policy"}, 0.5),
]


def script_of(text: str, **how: Any) -> Script:
    def script(_: GenerateRequest) -> ScriptedAnswer:
        return ScriptedAnswer(ids=CODEC.answer(text), **how)

    return script


async def post(
    attempt: AttemptHandle, headers: dict[str, str] | None = None, expect: int = 200, **fields: Any
) -> httpx.Response:
    async with httpx.AsyncClient(headers=headers, timeout=10) as http:
        body = {"model": "gpt-4o", "messages": USER, **fields}
        response = await http.post(f"{attempt.base_url}/chat/completions", json=body)
    assert response.status_code == expect
    return response


def packed(span: Span, key: str) -> bytes:
    value = span.attributes[key]
    assert isinstance(value, bytes)
    return value


def assert_same_calls(spans: Sequence[Span], log: Sequence[EngineRecord]) -> None:
    """Every call of the engine's log is in exactly one span, token by token."""
    by_call = {span.attributes[semconv.CALL_ID]: span for span in spans if semconv.PROMPT_IDS in span.attributes}
    assert sorted(map(str, by_call)) == sorted(record.request_id for record in log)
    for record in log:
        span = by_call[record.request_id]
        assert list(unpack_ids(packed(span, semconv.PROMPT_IDS))) == record.prompt_ids
        assert list(unpack_ids(packed(span, semconv.RESPONSE_IDS))) == record.response_ids
        assert list(unpack_log_probs(packed(span, semconv.RESPONSE_LOGPROBS))) == record.logprobs
        assert list(unpack_log_probs(packed(span, semconv.SAMPLING_LOGPROBS))) == pytest.approx(
            record.sampling_logprobs, rel=1e-6
        )
        if record.response_ids:
            assert span.attributes[semconv.POLICY_VERSION] == record.version


async def eventually(found: Any) -> Any:
    """Wait for what a server does after its client has gone."""
    for _ in range(400):
        if value := await found():
            return value
        await asyncio.sleep(0.005)
    raise AssertionError("it never came")


async def test_a_call_is_recorded_in_full() -> None:
    headers = {
        semconv.HEADER_AGENT: "write%20r%C3%A9sum%C3%A9",
        semconv.HEADER_NODE: "writer",
        semconv.HEADER_SPAN: "00f067aa0ba902b7",
        semconv.HEADER_TRACE: "4bf92f3577b34da6a3ce929d0e0e4736",
    }
    async with scripted_gateway(script_of("hello", chunk_size=2), sampling=Sampling(temperature=0.5)) as gateway:
        await gateway.engine.update_weights({}, 7)
        attempt = await gateway.open_attempt("train")
        answer = (await post(attempt, headers, temperature=0, seed=3, tools=TOOLS)).json()
        [span] = await gateway.calls(attempt)
        assert_same_calls([span], gateway.engine.log)
    assert (span.trace_id, span.parent_id) == (headers[semconv.HEADER_TRACE], headers[semconv.HEADER_SPAN])
    assert (span.name, span.status.code, span.sequence_id) == ("chat gpt-4o", "ok", 1)
    assert span.end_time is not None
    assert span.end_time >= span.start_time > 1e9
    attributes = dict(span.attributes)
    assert attributes.pop(semconv.LATENCY) == pytest.approx(span.end_time - span.start_time, abs=1e-3)
    for key in (
        semconv.PROMPT_IDS,
        semconv.RESPONSE_IDS,
        semconv.RESPONSE_LOGPROBS,
        semconv.SAMPLING_LOGPROBS,
        semconv.OUTPUT_MESSAGES,
        semconv.SAMPLING_ASKED,
        semconv.SAMPLING_USED,
        semconv.INPUT_MESSAGES,
        semconv.TOOL_DEFINITIONS,
        semconv.FINGERPRINT,
    ):
        attributes.pop(key)
    assert attributes == {
        semconv.OPERATION: "chat",
        semconv.PROVIDER: "leyden",
        semconv.ROLLOUT_ID: attempt.rollout_id,
        semconv.ATTEMPT_ID: attempt.attempt_id,
        semconv.AGENT_NAME: "write résumé",
        semconv.NODE: "writer",
        semconv.REQUEST_MODEL: "gpt-4o",
        semconv.REQUEST_STREAM: False,
        semconv.RESPONSE_MODEL: "policy",
        semconv.RESPONSE_ID: answer["id"],
        semconv.CALL_ID: answer["id"],
        semconv.FINISH_REASONS: ["stop"],
        semconv.CHOICE_INDEX: 0,
        semconv.POLICY: "policy",
        semconv.POLICY_VERSION: 7,
        semconv.POLICY_VERSIONS: [7, 6],
        semconv.DIALECT: "chat",
        semconv.ENGINE_FINISH: "stop",
        semconv.INPUT_TOKENS: answer["usage"]["prompt_tokens"],
        semconv.OUTPUT_TOKENS: answer["usage"]["completion_tokens"],
    }
    assert _json(span, semconv.INPUT_MESSAGES) == USER
    assert _json(span, semconv.TOOL_DEFINITIONS) == TOOLS
    assert _json(span, semconv.OUTPUT_MESSAGES) == [answer["choices"][0]["message"]]
    assert _json(span, semconv.SAMPLING_ASKED) == {"temperature": 0, "seed": 3}
    assert msgspec.convert(_json(span, semconv.SAMPLING_USED), Sampling) == Sampling(temperature=0.5)


def _json(span: Span, key: str) -> Any:
    return json.loads(str(span.attributes[key]))


async def test_the_agents_own_sampling_is_used_outside_training() -> None:
    async with scripted_gateway(script_of("x"), sampling=Sampling(temperature=0.5)) as gateway:
        for mode, metadata, temperature in HONOURED:
            attempt = await gateway.open_attempt(mode, **metadata)
            await post(attempt, temperature=0)
            [span] = await gateway.calls(attempt)
            assert _json(span, semconv.SAMPLING_USED)["temperature"] == temperature
            assert gateway.engine.requests[-1].sampling.temperature == temperature


async def test_records_equal_the_engines_log_over_a_mixture_of_calls() -> None:
    def answer(request: GenerateRequest) -> Any:
        n = len(gateway.engine.requests)
        if n % 17 == 0:
            return EngineError("down")
        text = f"réponse {n} " + ('<tool_call>{"name": "f", "arguments": {}}</tool_call>' if n % 3 else "STOP here")
        return ScriptedAnswer(ids=CODEC.answer(text * (1 + n % 4)), chunk_size=1 + n % 5, chunk_delay=0.0002)

    async def call(attempt: AttemptHandle, http: httpx.AsyncClient, n: int) -> None:
        fields: dict[str, Any] = {"stream": n % 2 == 0, "temperature": 0.5 * (n % 3)}
        fields |= {"stop": ["STOP"]} if n % 5 == 0 else {}
        fields |= {"tools": TOOLS} if n % 4 else {}
        body = {"model": "m", "messages": [{"role": "user", "content": f"question {n}"}], **fields}
        headers = {semconv.HEADER_AGENT: f"agent{n % 3}"}
        if n % 11 == 0:
            with contextlib.suppress(httpx.TimeoutException):
                await http.post(f"{attempt.base_url}/chat/completions", json=body, headers=headers, timeout=0.003)
        else:
            await http.post(f"{attempt.base_url}/chat/completions", json=body, headers=headers)

    async with scripted_gateway(answer) as gateway:
        attempts = [await gateway.open_attempt() for _ in range(8)]
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=32), timeout=20) as http:
            await asyncio.gather(*(call(attempts[n % 8], http, n) for n in range(66)))

        async def settled() -> bool:
            kept = sum([len(await gateway.calls(attempt)) for attempt in attempts])
            return kept >= len(gateway.engine.log) and gateway.engine.in_flight == 0

        await eventually(settled)
        spans = [span for attempt in attempts for span in await gateway.calls(attempt)]
        assert_same_calls(spans, gateway.engine.log)
        for attempt in attempts:
            for span in await gateway.calls(attempt):
                n = int(_json(span, semconv.INPUT_MESSAGES)[0]["content"].split()[1])
                assert attempts[n % 8] == attempt
                assert span.attributes[semconv.AGENT_NAME] == f"agent{n % 3}"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_leaves_a_partial_record_that_never_trains(stream: bool) -> None:
    async with scripted_gateway(script_of("abcdefgh" * 50, chunk_size=1, chunk_delay=0.002)) as gateway:
        attempt = await gateway.open_attempt()
        async with httpx.AsyncClient() as http:
            body = {"model": "m", "messages": USER, "stream": stream}
            with pytest.raises(httpx.ReadTimeout):
                await asyncio.wait_for(_read_some(http, attempt, body, 20 if stream else 0.25), 20)
        [span] = await eventually(lambda: gateway.calls(attempt))
        assert gateway.engine.in_flight == 0
        assert_same_calls([span], gateway.engine.log)
    assert 0 < len(gateway.engine.log[0].response_ids) < 400
    assert span.attributes[semconv.NOT_TRAINED] == "client disconnected"
    written = bytes(gateway.engine.log[0].response_ids).decode()
    assert _json(span, semconv.OUTPUT_MESSAGES)[0]["content"] == written


async def _read_some(http: httpx.AsyncClient, attempt: AttemptHandle, body: dict[str, Any], timeout: float) -> None:
    async with http.stream("POST", f"{attempt.base_url}/chat/completions", json=body, timeout=timeout) as response:
        async for line in response.aiter_lines():
            if '"content":"c"' in line:
                raise httpx.ReadTimeout("enough")


async def test_the_sdk_closing_a_stream_ends_the_engines_call() -> None:
    async with scripted_gateway(script_of("abcdefgh" * 50, chunk_size=1, chunk_delay=0.002)) as gateway:
        attempt = await gateway.open_attempt()
        async with openai.AsyncOpenAI(base_url=attempt.base_url, api_key="x", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            await anext(aiter(stream))
            await stream.close()
        [span] = await eventually(lambda: gateway.calls(attempt))
        assert span.attributes[semconv.NOT_TRAINED] == "client disconnected"
        assert_same_calls([span], gateway.engine.log)


async def test_an_engine_error_is_a_span_with_an_error() -> None:
    broken = ScriptedAnswer(ids=list(b"ab"), error=EngineError("out of memory"))
    async with scripted_gateway([broken]) as gateway:
        attempt = await gateway.open_attempt()
        await post(attempt, expect=500)
        [span] = await gateway.calls(attempt)
        assert_same_calls([span], gateway.engine.log)
    assert (span.status.code, span.status.description) == ("error", "out of memory")
    assert span.attributes[semconv.NOT_TRAINED] == "engine error"
    assert span.attributes[semconv.ERROR_TYPE] == "EngineError"


async def test_a_refused_request_is_recorded_without_reaching_the_engine() -> None:
    async with scripted_gateway([]) as gateway:
        attempt = await gateway.open_attempt()
        await post(attempt, expect=400, n=0)
        [span] = await gateway.calls(attempt)
    assert gateway.engine.requests == []
    assert span.status.code == "error"
    assert span.attributes[semconv.NOT_TRAINED] == "refused"
    assert semconv.PROMPT_IDS not in span.attributes


async def test_an_answer_of_two_versions_says_how_many_tokens_each_drew() -> None:
    async with scripted_gateway(script_of("abcdefgh", chunk_size=1, chunk_delay=0.01)) as gateway:
        attempt = await gateway.open_attempt()
        calling = asyncio.create_task(post(attempt))
        while not gateway.engine.in_flight:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        await gateway.engine.update_weights({}, 1)
        await calling
        [span] = await gateway.calls(attempt)
    assert span.attributes[semconv.POLICY_VERSION] == 0
    ranges = span.attributes[semconv.POLICY_VERSIONS]
    assert isinstance(ranges, list)
    assert (ranges[0::2], sum(map(int, ranges[1::2]))) == ([0, 1], 9)
    assert [tuple(ranges[n : n + 2]) for n in (0, 2)] == gateway.engine.log[0].versions
    assert semconv.NOT_TRAINED not in span.attributes


@pytest.mark.parametrize("stream", [False, True])
async def test_the_record_is_stored_before_the_answer_is_complete(stream: bool) -> None:
    class SlowStore(MemoryStore):
        async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
            await asyncio.sleep(0.05)
            return await super().add_many_spans(spans)

    async with scripted_gateway(script_of("hi"), store=SlowStore()) as gateway:
        attempt = await gateway.open_attempt()
        await post(attempt, stream=stream)
        assert len(await gateway.calls(attempt)) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_cannot_be_recorded_is_not_given(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    class FullStore(MemoryStore):
        async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
            raise OSError("disk full")

    async with scripted_gateway(script_of("hi"), store=FullStore()) as gateway:
        attempt = await gateway.open_attempt()
        response = await post(attempt, expect=200 if stream else 500, stream=stream)
    assert "could not be recorded" in response.text
    assert '"finish_reason":"stop"' not in response.text
    assert "disk full" in caplog.text
    assert attempt.token not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_does_not_notice_an_outage_of_the_store(stream: bool) -> None:
    class RestartedStore(MemoryStore):
        failures = 0

        def fail(self) -> None:
            if self.failures:
                self.failures -= 1
                raise StoreError("connection refused")

        async def find_attempt(self, rollout_id: str, attempt_id: str) -> tuple[Rollout, Attempt] | None:
            self.fail()
            return await super().find_attempt(rollout_id, attempt_id)

        async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
            stored = await super().add_many_spans(spans)  # whether it was stored is unknown to the caller
            self.fail()
            return stored

    store = RestartedStore()
    async with scripted_gateway(script_of("hi"), store=store) as gateway:
        attempt = await gateway.open_attempt()
        store.failures = 4
        response = await post(attempt, stream=stream)
        store.failures = 1
        await post(attempt)
        assert store.failures == 0
        assert_same_calls(await gateway.calls(attempt), gateway.engine.log)
    assert "hi" in response.text
    assert len(gateway.engine.log) == 2


async def test_a_gateway_that_stops_records_what_was_in_flight() -> None:
    store = MemoryStore()
    async with scripted_gateway(script_of("a" * 5000, chunk_size=1, chunk_delay=0.01), store=store) as gateway:
        attempt = await gateway.open_attempt()
        calling = asyncio.create_task(post(attempt))
        while not gateway.engine.in_flight:
            await asyncio.sleep(0.001)
    with pytest.raises((httpx.HTTPError, AssertionError)):
        await calling
    [span] = await gateway.calls(attempt)
    assert span.attributes[semconv.NOT_TRAINED] == "gateway stopped"
    assert_same_calls([span], gateway.engine.log)

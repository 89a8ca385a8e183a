"""Spans from an ordinary OpenTelemetry exporter, over real HTTP."""

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.rollout import Attempt
from leyden.core.store.common.rows import encode
from leyden.core.store.http.admission import ServerLimits
from leyden.core.store.http.otlp.reading import OtlpLimits, read_request
from leyden.core.store.http.refused import Refused
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.servers.store_server import ACCESS, TOKEN, StoreServer
from leyden.core.testing.store_contract.shared import attempt_now, claimed

PROTOBUF, JSON = "application/x-protobuf", "application/json"
APP = """
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
with trace.get_tracer("app").start_as_current_span("agent"):
    for n in range(3):
        with trace.get_tracer(f"library {n % 2}").start_as_current_span(f"step {n}", attributes={"n": n}):
            pass
trace.get_tracer_provider().shutdown()
"""


@dataclass(frozen=True)
class Served:
    """A store, an attempt in it, and where its spans go."""

    store: MemoryStore
    attempt: Attempt
    url: str

    def request(self, spans: int = 1, **changes: Any) -> ExportTraceServiceRequest:
        """Spans of the attempt; `changes` are further fields of each."""
        request: Any = ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        for name, value in self.named().items():
            resource.resource.attributes.add(key=name).value.string_value = value
        scoped = resource.scope_spans.add()
        for n in range(1, spans + 1):
            fields: dict[str, Any] = {"trace_id": b"t" * 16, "span_id": n.to_bytes(8, "big"), "name": f"s{n}"}
            scoped.spans.add(**(fields | changes), start_time_unix_nano=n, end_time_unix_nano=n + 1)
        return request

    def named(self) -> dict[str, str]:
        return {semconv.ROLLOUT_ID: self.attempt.rollout_id, semconv.ATTEMPT_ID: self.attempt.attempt_id}

    async def post(
        self, body: bytes, kind: str = PROTOBUF, token: str = TOKEN, **headers: str
    ) -> tuple[int, bytes, Mapping[str, str]]:
        given = {"authorization": f"Bearer {token}", "content-type": kind, **headers}
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url, data=io.BytesIO(body), headers=given) as answer,
        ):
            return answer.status, await answer.read(), answer.headers

    async def names(self) -> list[str]:
        return [span.name for span in await self.store.query_spans(self.attempt.rollout_id)]


@pytest.fixture
async def served(server: StoreServer) -> AsyncGenerator[Served]:
    store = MemoryStore()
    limits = ServerLimits(max_body=8 << 20, max_json=2 << 20, max_span=100_000)
    url = f"{server.add(store, limits=limits)}/v1/traces"
    yield Served(store, (await claimed(store)).attempt, url)
    await store.close()


async def test_an_unmodified_application_sends_its_spans_in_order(served: Served) -> None:
    environment = {
        **os.environ,
        "OTEL_RESOURCE_ATTRIBUTES": ",".join(f"{name}={value}" for name, value in served.named().items()),
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": served.url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{TOKEN}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_SERVICE_NAME": "my-app",
    }
    done = subprocess.run([sys.executable, "-c", APP], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    spans = (await served.store.query_spans(served.attempt.rollout_id)).items
    assert [(span.sequence_id, span.name) for span in spans] == [
        (1, "step 0"),
        (2, "step 1"),
        (3, "step 2"),
        (4, "agent"),
    ]
    assert {span.parent_id for span in spans[:3]} == {spans[3].span_id}
    assert spans[1].attributes == {"n": 1}
    assert spans[0].resource["service.name"] == "my-app"
    assert semconv.ATTEMPT_ID not in spans[0].resource  # it is the span's own field
    assert all(span.end_time is not None and span.start_time <= span.end_time for span in spans)
    assert (await attempt_now(served.store, served.attempt)).status == "running"


def exported(served: Served, attributes: Mapping[str, Any], token: str = TOKEN, **resource: str) -> None:
    exporter = OTLPSpanExporter(
        endpoint=served.url, headers={"authorization": f"Bearer {token}"}, compression=Compression.Deflate
    )
    provider = TracerProvider(resource=Resource(resource), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    with provider.get_tracer("app").start_as_current_span("chat", attributes=attributes) as span:
        span.add_event("thought", {"about": "x"})
    provider.shutdown()


async def test_ids_come_as_lists_of_numbers_or_as_bytes(served: Served) -> None:
    numbers = {semconv.PROMPT_IDS: [0, 2, 70_000], semconv.RESPONSE_LOGPROBS: [-0.5, -1.0]}
    exported(served, {**served.named(), **numbers, semconv.RESPONSE_IDS: b"\x07\x00\x00\x00", "mixed": [1, 2]})
    [span] = (await served.store.query_spans(served.attempt.rollout_id)).items
    ids, packed = span.attributes[semconv.PROMPT_IDS], span.attributes[semconv.RESPONSE_IDS]
    logprobs = span.attributes[semconv.RESPONSE_LOGPROBS]
    assert isinstance(ids, bytes) and isinstance(packed, bytes) and isinstance(logprobs, bytes)
    assert [*unpack_ids(ids)] == [0, 2, 70_000]
    assert [*unpack_ids(packed)] == [7]
    assert [*unpack_log_probs(logprobs)] == [-0.5, -1.0]
    assert span.attributes["mixed"] == [1, 2]
    assert [event.name for event in span.events] == ["thought"]
    assert semconv.ATTEMPT_ID not in span.attributes


async def test_an_agents_token_names_the_attempt_by_itself(served: Served) -> None:
    exported(served, {"a": 1}, ACCESS.agent_token(served.attempt.rollout_id, served.attempt.attempt_id))
    assert await served.names() == ["chat"]


async def test_an_exporter_that_is_told_to_come_again_does(server: StoreServer) -> None:
    store, answers = MemoryStore(), [429, 503]
    app = store_app(store, authorize=ACCESS.is_trainer)

    async def busy(scope: Scope, receive: Receive, send: Send) -> None:
        if not answers:
            await app(scope, receive, send)
            return
        await Response(status_code=answers.pop(), headers={"retry-after": "0"})(scope, receive, send)

    attempt = (await claimed(store)).attempt
    served = Served(store, attempt, f"{server.add_app(busy)}/v1/traces")
    exported(served, served.named())
    assert (answers, await served.names()) == ([], ["chat"])


async def test_json_holds_ids_as_hexadecimal_digits(served: Served) -> None:
    span: dict[str, Any] = {
        "traceId": "5B8EFFF798038103D269B633813FC60C",
        "spanId": "EEE19B7EC3C1B174",
        "parentSpanId": "EEE19B7EC3C1B173",
        "name": "from json",
        "kind": 2,
        "startTimeUnixNano": "1544712660000000000",
        "endTimeUnixNano": 1544712661000000000,
        "attributes": [
            {"key": "count", "value": {"intValue": "3"}},
            {"key": "map", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"boolValue": True}}]}}},
            {"key": "nested", "value": {"arrayValue": {"values": [{"arrayValue": {"values": []}}]}}},
            {"key": "nothing", "value": {}},
        ],
        "status": {"code": 2, "message": "bad"},
        "unknownField": 1,
    }
    named = [{"key": name, "value": {"stringValue": value}} for name, value in served.named().items()]
    body: dict[str, Any] = {"resourceSpans": [{"resource": {"attributes": named}, "scopeSpans": [{"spans": [span]}]}]}
    status, answer, headers = await served.post(msgspec.json.encode(body), f"{JSON}; charset=utf-8")
    assert (status, msgspec.json.decode(answer), headers["content-type"]) == (200, {}, JSON)
    [stored] = (await served.store.query_spans(served.attempt.rollout_id)).items
    assert (stored.trace_id, stored.span_id) == ("5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174")
    assert stored.parent_id == "eee19b7ec3c1b173"
    assert (stored.start_time, stored.end_time) == (1544712660.0, 1544712661.0)
    assert (stored.status.code, stored.status.description) == ("error", "bad")
    assert stored.attributes == {"count": 3, "map": '{"k": true}', "nested": ["[]"]}


async def test_half_a_surrogate_pair_in_json_costs_no_span(served: Served) -> None:
    attributes = [{"key": "said", "value": {"stringValue": "a\ud800b\ud83d\ude00"}}]
    spans = [
        {"traceId": f"{1:032x}", "spanId": f"{n:016x}", "name": name, "attributes": attributes}
        for n, name in enumerate(["plain", "call \ud800"], start=1)
    ]
    resource = {"attributes": [{"key": key, "value": {"stringValue": name}} for key, name in served.named().items()]}
    body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}
    assert (await served.post(json.dumps(body).encode(), JSON))[0] == 200
    read = (await served.store.query_spans(served.attempt.rollout_id)).items
    assert [span.name for span in read] == ["plain", "call \ufffd"]
    assert [span.attributes for span in read] == 2 * [{"said": "a\ufffdb\U0001f600"}]


async def test_an_attempt_whose_name_cannot_be_is_refused_like_an_unknown_one(served: Served) -> None:
    request: Any = served.request(2)
    odd: Any = served.request(1, span_id=b"another1")
    odd.resource_spans[0].resource.attributes[0].value.string_value = "ro\0"
    request.resource_spans.extend(odd.resource_spans)
    status, answer, _ = await served.post(request.SerializeToString())
    partial = ExportTraceServiceResponse.FromString(answer).partial_success
    assert (status, partial.rejected_spans, await served.names()) == (200, 1, ["s1", "s2"])
    assert "invalid ids of rollout and attempt" in partial.error_message


async def test_a_burst_is_stored_whole_and_once(served: Served) -> None:
    body = gzip.compress(served.request(10_000).SerializeToString())
    for _ in range(2):
        status, answer, _ = await served.post(body, **{"content-encoding": "gzip"})
        assert (status, answer) == (200, b"")
    assert await served.names() == [f"s{n}" for n in range(1, 10_001)]


async def test_what_is_wrong_with_some_is_said_and_the_others_are_stored(served: Served) -> None:
    request: Any = served.request(2)
    for changes, attempt in (
        ({"trace_id": b"short"}, served.attempt.attempt_id),
        ({"span_id": bytes(8)}, served.attempt.attempt_id),
        ({"name": "x" * 100_001}, served.attempt.attempt_id),
        ({}, "at-unknown"),
    ):
        other: Any = served.request(1, **{"span_id": b"another1", **changes})
        [_, attempt_attribute] = other.resource_spans[0].resource.attributes
        attempt_attribute.value.string_value = attempt
        request.resource_spans.extend(other.resource_spans)
    nameless: Any = served.request(1)
    del nameless.resource_spans[0].resource.attributes[:]
    request.resource_spans.extend(nameless.resource_spans)
    status, answer, headers = await served.post(request.SerializeToString())
    partial = ExportTraceServiceResponse.FromString(answer).partial_success
    assert (status, headers["content-type"], partial.rejected_spans) == (200, PROTOBUF, 5)
    assert "has no valid trace id and span id" in partial.error_message
    assert "bytes; it may have 100000" in partial.error_message
    assert "1 more reasons" in partial.error_message
    assert await served.names() == ["s1", "s2"]


async def test_ids_that_are_none_are_refused(served: Served) -> None:
    request: Any = served.request(1)
    pair = request.resource_spans[0].scope_spans[0].spans[0].attributes.add(key=semconv.PROMPT_IDS)
    pair.value.array_value.values.add().string_value = "seven"
    _, answer, _ = await served.post(request.SerializeToString())
    said = ExportTraceServiceResponse.FromString(answer).partial_success.error_message
    assert "cannot be packed" in said
    assert await served.names() == []


async def test_requests_of_which_nothing_is_stored(served: Served) -> None:
    whole = served.request(3).SerializeToString()
    bomb = gzip.compress(bytes(9 << 20))
    zipped = {"content-encoding": "gzip"}
    cases: list[tuple[bytes, str, dict[str, str], int, str]] = [
        (whole[:-5], PROTOBUF, {}, 400, "not an OTLP request"),
        (b"\xff\xff", PROTOBUF, {}, 400, "not an OTLP request"),
        (b"{", JSON, {}, 400, "not an OTLP request"),
        (b'{"resourceSpans": 1}', JSON, {}, 400, "not an OTLP request"),
        (gzip.compress(whole)[:-9], PROTOBUF, zipped, 400, "is incomplete"),
        (whole, PROTOBUF, zipped, 400, "content encoding"),
        (whole, PROTOBUF, {"content-encoding": "br"}, 415, "gzip or deflate"),
        (bomb, PROTOBUF, zipped, 413, "decompressed request"),
        (bytes(9 << 20), PROTOBUF, {}, 413, "fewer spans"),
        (b" " * 3_000_000, JSON, {}, 413, "JSON request"),
    ]
    for body, kind, headers, wanted, said in cases:
        status, answer, got = await served.post(body, kind, **headers)
        text = Status.FromString(answer).message if kind == PROTOBUF else msgspec.json.decode(answer)["message"]
        assert (status, got["content-type"]) == (wanted, kind), said
        assert said in text and "\n" not in text
    for kind in ("text/plain", "application/msgpack"):
        assert (await served.post(whole, kind))[0] == 415
    assert (await served.post(whole, token="wrong"))[0] == 401
    assert await served.names() == []


async def test_a_store_that_fails_asks_the_exporter_to_come_again(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def full(spans: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(served.store, "add_many_spans", full)
        status, _, headers = await served.post(served.request(2).SerializeToString())
        assert (status, headers["retry-after"]) == (503, "1")
    assert "No space left" in caplog.text
    assert (await served.post(served.request(2).SerializeToString()))[0] == 200
    assert await served.names() == ["s1", "s2"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("00f067aa0ba902b7"),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(st.sampled_from(["stringValue", "intValue", "arrayValue", "values", "key", "value"]), inside)
    ),
    max_leaves=12,
)
json_spans = st.fixed_dictionaries(
    {},
    optional={
        name: values
        for name in ("traceId", "spanId", "parentSpanId", "name", "startTimeUnixNano", "attributes", "events", "status")
    },
)


@given(json_spans, st.binary(max_size=200), st.integers(0, 10_000))
def test_whatever_comes_is_read_or_refused(span: Any, noise: bytes, cut: int) -> None:
    body = msgspec.json.encode({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    request: Any = ExportTraceServiceRequest()
    given_span = request.resource_spans.add().scope_spans.add().spans.add(trace_id=b"t" * 16, span_id=b"s" * 8)
    given_span.attributes.add(key="x").value.bytes_value = noise
    valid = request.SerializeToString()
    at = cut % len(valid)
    for sent, kind in ((body, JSON), (noise, PROTOBUF), (valid[:at], PROTOBUF), (valid[:at] + noise, PROTOBUF)):
        try:
            taken = read_request(sent, kind, OtlpLimits(100, 10_000, 1000), attempt=("ro", "at"))
        except Refused as refused:
            assert refused.status == 400 and "\n" not in str(refused)
        else:
            assert taken.answer(kind) is not None
            encode([*taken.spans], "spans")

"""Ten and more ways to forge calls, rewards and ids by HTTP, for an agent in Python, a command and any other process.

Run as a program, it takes a `Target` as JSON on its standard input, and writes the status of each way to `out`.
"""

import http.client
import json
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent))  # an isolated Python does not look here

import msgspec
from forging import CALL, RECORD, forged_span
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from leyden.core.data import semconv
from leyden.core.data.span import Attributes, Span, SpanEvent, SpanLink

MSGPACK, JSON, PROTOBUF = "application/msgpack", "application/json", "application/x-protobuf"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What the attacker has: a run's server, tokens, its own attempt, and what it has learnt of another."""

    url: str
    model_token: str
    """Its attempt's token for model calls."""
    store_token: str
    """What it sends to the store: the best that it has."""
    own: tuple[str, str]
    """(rollout id, attempt id)."""
    other: tuple[str, str]
    other_answer: str
    """Id of an answer that the other attempt was given."""
    out: str
    """Where the statuses are written."""


def send(target: Target, path: str, body: bytes, kind: str, token: str) -> tuple[int, bytes]:
    """POST without any library that Leyden reaches."""
    connection = http.client.HTTPConnection(urlsplit(target.url).netloc)
    try:
        connection.request("POST", path, body, {"content-type": kind, "authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _stored(target: Target, method: str, call: Mapping[str, Any]) -> int:
    body = msgspec.msgpack.encode(call)
    return send(target, f"/store/{method}", body, MSGPACK, target.store_token)[0]


def _attributes(target: Target) -> int:
    return _stored(target, "add_span", {"span": forged_span(*target.own)})


def _as_json(target: Target) -> int:
    lists: Attributes = {semconv.CALL_ID: "forged", semconv.PROMPT_IDS: [1, 2], semconv.RESPONSE_IDS: [3], "x": 1}
    body = json.dumps({"span": msgspec.to_builtins(forged_span(*target.own, lists))}).encode()
    return send(target, "/store/add_span", body, JSON, target.store_token)[0]


def _elsewhere_in_spans(target: Target) -> int:
    spans = [
        forged_span(*target.own, {}, resource=RECORD),
        forged_span(*target.own, {}, events=[SpanEvent(name="chat", time=1.0, attributes=RECORD)]),
        forged_span(*target.own, {}, links=[SpanLink(trace_id="0" * 32, span_id="0" * 16, attributes=RECORD)]),
    ]
    return _stored(target, "add_many_spans", {"spans": spans})


def _by_otlp(target: Target) -> int:
    request: Any = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    for name, value in zip((semconv.ROLLOUT_ID, semconv.ATTEMPT_ID), target.own, strict=True):
        resource.resource.attributes.add(key=name).value.string_value = value
    span = resource.scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.name = b"t" * 16, secrets.token_bytes(8), "chat"
    span.start_time_unix_nano, span.end_time_unix_nano = 1, 2
    for name, value in RECORD.items():
        if isinstance(value, bytes):
            span.attributes.add(key=name).value.bytes_value = value
    return send(target, "/store/v1/traces", request.SerializeToString(), PROTOBUF, target.store_token)[0]


def _together(target: Target) -> int:
    parts = [("add_span", "", msgspec.msgpack.encode({"span": forged_span(*target.own)}))]
    status, body = send(target, "/store/together", msgspec.msgpack.encode(parts), MSGPACK, target.store_token)
    return int(msgspec.msgpack.decode(body)[0][0]) if status == 200 else status


def _with_the_mark(target: Target) -> int:
    return _stored(target, "add_span", {"span": forged_span(*target.own, {**RECORD, semconv.FORGED: 0})})


def _over_the_real_call(target: Target) -> int:
    body = msgspec.msgpack.encode({"rollout_id": target.own[0], "attempt_id": target.own[1]})
    status, answer = send(target, "/store/query_spans", body, MSGPACK, target.store_token)
    span = forged_span(*target.own)
    if status == 200:
        stored = msgspec.convert(msgspec.msgpack.decode(answer)["items"], list[Span])
        real = next(one for one in stored if semconv.CALL_ID in one.attributes and semconv.FORGED not in one.attributes)
        span = msgspec.structs.replace(
            real, attributes={**real.attributes, semconv.RESPONSE_IDS: RECORD[semconv.RESPONSE_IDS]}
        )
    return _stored(target, "add_span", {"span": span})


def _in_another_attempt(target: Target) -> int:
    return _stored(target, "add_span", {"span": forged_span(*target.other)})


def _reward_of_another(target: Target) -> int:
    span = forged_span(*target.other, {semconv.REWARD_VALUE: 1.0})
    return _stored(target, "add_span", {"span": msgspec.structs.replace(span, name=semconv.REWARD)})


def _own_reward(target: Target) -> int:
    span = forged_span(*target.own, {semconv.REWARD_VALUE: 1.0})
    return _stored(target, "add_span", {"span": msgspec.structs.replace(span, name=semconv.REWARD)})


def _made_up_token(target: Target) -> int:
    from leyden.core.data.identity import mint

    signature = target.model_token.rpartition(".")[2]
    token = f"{mint(b'guessed', *target.other).rpartition('.')[0]}.{signature}"
    return send(target, "/v1/chat/completions", json.dumps(CALL).encode(), JSON, token)[0]


def _anothers_answer(target: Target) -> int:
    call = {"model": "m", "input": "go on", "previous_response_id": target.other_answer}
    return send(target, "/v1/responses", json.dumps(call).encode(), JSON, target.model_token)[0]


WAYS: Mapping[str, Callable[[Target], int]] = {
    "a span that bears the record of a call": _attributes,
    "the same as JSON, ids as lists": _as_json,
    "the record in a resource, an event and a link": _elsewhere_in_spans,
    "the record by OTLP": _by_otlp,
    "the record among several calls together": _together,
    "a record that says itself that nothing was removed": _with_the_mark,
    "the span of the real call again, with other ids": _over_the_real_call,
    "a record in another attempt": _in_another_attempt,
    "a reward of another attempt": _reward_of_another,
    "a reward of its own": _own_reward,
    "a call in the name of another attempt, by a made-up token": _made_up_token,
    "a call that goes on from another attempt's answer": _anothers_answer,
}


def forge(target: Target) -> str:
    """Call the model once, as agents do, then forge in every way; writes and returns the statuses."""
    status, answer = send(target, "/v1/chat/completions", json.dumps(CALL).encode(), JSON, target.model_token)
    assert status == 200, answer
    said = json.dumps({name: way(target) for name, way in WAYS.items()})
    Path(target.out).write_text(said)
    return said


if __name__ == "__main__":
    forge(msgspec.json.decode(sys.stdin.buffer.read(), type=Target))

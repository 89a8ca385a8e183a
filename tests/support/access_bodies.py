"""Bodies of the requests of the access table: in order, of other attempts, forged, and what no server should take."""

import base64
import gzip
import json
import random
import secrets
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from forging import RECORD, forged_span
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from leyden.core.data import semconv
from leyden.core.data.production import CaptureBegin, CaptureEnd, CaptureSpans
from leyden.core.data.resources import PromptTemplate
from leyden.core.data.rollout import EnqueueRollout
from leyden.core.data.run import PolicyVersion, Run, StepMetrics
from leyden.core.data.span import Attributes, Span
from leyden.core.store.rpc import WAITING, BatchPart, methods

IN_ORDER = ("own", "other", "forged", "reward", "ending", "compressed")
FAULTY = ("empty", "wrong type", "random", "huge", "badly compressed", "unknown encoding")
VARIANTS = (*IN_ORDER, *FAULTY)
REWARD: Attributes = {semconv.REWARD_VALUE: 1.0, f"{semconv.REWARD_DIMENSION}style": 1.0}
_MSGPACK, _JSON, _PROTOBUF = "application/msgpack", "application/json", "application/x-protobuf"
_WRONG: tuple[Any, ...] = ([1, 2], "text", 7, None, {"span": 1, "messages": 2, "rollout_id": [], "unknown": {}})
_MODEL_CALLS = {
    "chat": "messages",
    "completions": "prompt",
    "responses": "input",
    "messages": "messages",
    "messages to count": "messages",
}
"""Kinds of model calls, and the field of each that has its prompt."""
_HUGE: tuple[Any, ...] = (2**63 - 1, -(2**63), 10**400, 1e308, 2**31)


class Names(NamedTuple):
    """What a request names."""

    rollout_id: str
    attempt_id: str
    response_id: str
    """Of a stored answer of the attempt."""


class Body(NamedTuple):
    """A body, and the headers that say what it is."""

    content: bytes
    headers: Mapping[str, str]


def body_of(kind: str, method: str, names: Names, variant: str, rng: random.Random) -> Body:
    """Return a body for a row of the access table: `kind` is its `body`, `method` the last part of its path.

    `names` are those that the variant is about.
    """
    if variant == "empty":
        return Body(b"", {"content-type": _kind_of(kind)})
    if variant == "random":
        return Body(
            rng.randbytes(rng.randrange(1, 64)), {"content-type": rng.choice([_MSGPACK, _JSON, _PROTOBUF, "x"])}
        )
    if variant == "wrong type":
        return _encoded(rng.choice(_WRONG), _kind_of(kind))
    body = _whole(kind, method, names, variant, rng)
    if variant == "compressed":
        packed = rng.choice([("gzip", gzip.compress(body.content, mtime=0)), ("deflate", zlib.compress(body.content))])
        return Body(packed[1], {**body.headers, "content-encoding": packed[0]})
    if variant == "badly compressed":
        cut = gzip.compress(body.content + b" ", mtime=0)[:-5]
        return Body(rng.choice([cut, b"no gzip"]), {**body.headers, "content-encoding": "gzip"})
    if variant == "unknown encoding":
        return Body(body.content, {**body.headers, "content-encoding": "x-unknown"})
    return body


def _kind_of(kind: str) -> str:
    if kind == "otlp":
        return _PROTOBUF
    return _JSON if kind in (*_MODEL_CALLS, "response", "nothing") else _MSGPACK


def _encoded(value: Any, kind: str) -> Body:
    if kind == _JSON:
        return Body(json.dumps(value).encode(), {"content-type": kind})
    return Body(msgspec.msgpack.encode(value), {"content-type": kind})


def _whole(kind: str, method: str, names: Names, variant: str, rng: random.Random) -> Body:
    if kind in _MODEL_CALLS:
        return _encoded(_model_call(kind, names, variant, rng), _JSON)
    if kind in ("response", "nothing"):
        return Body(b"", {})
    if kind == "otlp":
        return Body(_otlp(names, variant), {"content-type": _PROTOBUF})
    if kind == "call":
        return _call(method, names, variant, rng)
    if kind == "together":
        return _encoded(_parts(names, variant, rng), _MSGPACK)
    return _encoded(_captured(kind, names, variant), _MSGPACK)


def _model_call(kind: str, names: Names, variant: str, rng: random.Random) -> dict[str, Any]:
    call: dict[str, Any] = {"model": "gpt-4.1-mini"}
    call[_MODEL_CALLS[kind]] = "hello" if kind == "completions" else [{"role": "user", "content": "hello"}]
    if kind == "messages":
        call["max_tokens"] = 50
    elif kind != "messages to count":
        call["user"] = names.attempt_id
    if kind == "responses" and variant == "other":
        call["previous_response_id"] = names.response_id
    if variant == "forged":
        call["user" if kind == "completions" else "metadata"] = {
            semconv.CALL_ID: "forged",
            semconv.ROLLOUT_ID: names.rollout_id,
        }
    if variant == "huge":
        names_of = ["temperature", "top_p", "seed", "max_output_tokens" if kind == "responses" else "max_tokens"]
        call[rng.choice(names_of)] = rng.choice(_HUGE)
    return call


def span_for(names: Names, variant: str, rng: random.Random) -> Span:
    """A span of the attempt, with what the variant adds to it."""
    attributes: Attributes = {"note": "x"}
    if variant == "forged":
        attributes |= RECORD
    if variant == "reward":
        attributes |= REWARD
    number = rng.choice([2**63 - 1, 2**31, 10**9]) if variant == "huge" else 0
    made = forged_span(names.rollout_id, names.attempt_id, attributes)
    return msgspec.structs.replace(made, sequence_id=number)


def _otlp(names: Names, variant: str) -> bytes:
    request: Any = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    for name, value in ((semconv.ROLLOUT_ID, names.rollout_id), (semconv.ATTEMPT_ID, names.attempt_id)):
        resource.resource.attributes.add(key=name).value.string_value = value
    span = resource.scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.name = b"t" * 16, secrets.token_bytes(8), "chat"
    span.start_time_unix_nano, span.end_time_unix_nano = (1, 2) if variant != "huge" else (2**64 - 1, 2**64 - 1)
    if variant == "forged":
        span.attributes.add(key=semconv.CALL_ID).value.string_value = "forged"
        span.attributes.add(key=semconv.PROMPT_IDS).value.bytes_value = b"\1\0\0\0"
    if variant == "reward":
        span.attributes.add(key=semconv.REWARD_VALUE).value.double_value = 1.0
    return request.SerializeToString()


def _captured(kind: str, names: Names, variant: str) -> object:
    if kind == "begin":
        return CaptureBegin(task={"rollout_id": names.rollout_id}, metadata={"rollout_id": names.rollout_id})
    spans = [span_for(names, variant, random.Random(0))]
    if kind == "capture spans":
        return CaptureSpans(spans=spans)
    return CaptureEnd(failed=variant == "ending", notes=spans)


def _call(method: str, names: Names, variant: str, rng: random.Random) -> Body:
    call = arguments(method, names, variant, rng)
    if rng.random() < 0.7:
        return _encoded(call, _MSGPACK)
    return Body(msgspec.json.encode(call), {"content-type": _JSON})


def _parts(names: Names, variant: str, rng: random.Random) -> list[BatchPart]:
    chosen = ["add_span", "update_attempt", *rng.sample(sorted(methods().keys() - WAITING), 3)]
    return [BatchPart(name, "", msgspec.msgpack.encode(arguments(name, names, variant, rng))) for name in chosen]


def arguments(method: str, names: Names, variant: str, rng: random.Random) -> dict[str, Any]:
    """Arguments of a store's method, about the attempt; raises KeyError for a parameter that has no value here."""
    ids = names.rollout_id, names.attempt_id
    values: dict[str, Any] = {
        "rollout_id": ids[0],
        "attempt_id": ids[1],
        "rollout_ids": [ids[0]],
        "span": span_for(names, variant, rng),
        "spans": [span_for(names, variant, rng), span_for(names, variant, rng)],
        "rollout_attempt_ids": [ids],
        "input": {"question": "?"},
        "rollouts": [EnqueueRollout(input=1)],
        "resources": {"prompt": PromptTemplate(template="x")},
        "resources_id": "res",
        "worker_id": "w",
        "run_id": "run",
        "run": Run(run_id="run", name="run"),
        "step": 0,
        "version": 0,
        "metrics": [StepMetrics(step=0, values={"loss": 1.0})],
        "versions": [PolicyVersion(run_id="run", version=0)],
    }
    parameters = methods()[method].signature.parameters
    given = {name: values[name] for name, one in parameters.items() if one.default is one.empty}
    if method == "query_spans":
        given["attempt_id"] = ids[1]
    if method == "update_attempt":
        given["status"] = rng.choice(["succeeded", "failed"]) if variant == "ending" else "running"
    if method == "wait_for_rollouts":
        given["timeout"] = 0.0
    if variant == "huge":
        huge = {"limit": 2**63 - 1, "offset": 2**63 - 1, "step": 2**63 - 1, "version": 2**63 - 1}
        given |= {name: value for name, value in huge.items() if name in parameters and method not in WAITING}
    return given


def basic(token: str) -> str:
    """The token as a password."""
    return base64.b64encode(f"user:{token}".encode("latin-1", "replace")).decode()

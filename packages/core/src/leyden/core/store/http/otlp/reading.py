"""Conversion of OTLP requests into Leyden's spans, with reasons for spans that cannot be converted.

Needs `opentelemetry-proto` (`pip install 'leyden-core[otlp]'`). Each span names its attempt by `leyden.rollout.id` and
`leyden.attempt.id`, in its resource or in its own attributes.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from leyden.core.data import semconv
from leyden.core.data.encoding.text import well_formed
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.span import Attributes, Span, SpanEvent, SpanLink, SpanStatus, StatusCode
from leyden.core.store.http.admission import too_many
from leyden.core.store.http.body_counting import json_values, message_fields, protobuf_fields, protobuf_messages
from leyden.core.store.http.long_work import yield_to_threads
from leyden.core.store.http.refused import Refused
from leyden.core.store.text import can_be_stored

JSON = "application/json"
json_format: Any = import_module("google.protobuf.json_format")  # untyped, and type inference for it takes minutes
_NANOSECONDS = 1e9
_CODES: Mapping[int, StatusCode] = {0: "unset", 1: "ok", 2: "error"}
_TRACE_BYTES, _SPAN_BYTES = 16, 8
_READ_AT_ONCE = 32
"""Number of spans between two calls of `yield_to_threads`."""
_MOST_REASONS = 3
"""Largest number of different reasons in an answer."""
_Packing = tuple[Callable[[Iterable[Any]], bytes], Callable[[Any], Any]]
_IDS: _Packing = (pack_ids, attrgetter("int_value"))
_LOGPROBS: _Packing = (pack_log_probs, attrgetter("double_value"))
_PACKED: Mapping[str, _Packing] = {
    semconv.PROMPT_IDS: _IDS,
    semconv.RESPONSE_IDS: _IDS,
    semconv.RESPONSE_LOGPROBS: _LOGPROBS,
    semconv.SAMPLING_LOGPROBS: _LOGPROBS,
}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""In JSON, half of a surrogate pair, which protobuf refuses without the other half."""
_LIST_ITEMS = (str, bool, int, float)


_MESSAGES = message_fields(ExportTraceServiceRequest.DESCRIPTOR)
_SPANS = (1, 2, 2)
"""Path to the spans of a request: the field numbers of `resource_spans`, `scope_spans` and `spans`."""


class OtlpLimits(NamedTuple):
    """Limits of a request."""

    spans: int
    values: int
    """Fields, with those of inner messages; in JSON names, values and containers."""
    span_bytes: int


@dataclass(slots=True)
class ReadRequest:
    """Result of reading a request: its spans, and the number and reasons of refused ones."""

    spans: list[Span] = field(default_factory=list[Span])
    """Spans in the order in which they ended, as Leyden's own processes send them; without numbers."""
    refused: int = 0
    reasons: dict[str, None] = field(default_factory=dict[str, None])

    def refuse(self, reason: str, spans: int = 1) -> None:
        """Count spans that are not stored."""
        self.refused += spans
        self.reasons[reason] = None

    def attempts(self) -> set[tuple[str, str]]:
        """Return the rollout id and attempt id of every span."""
        return {(span.rollout_id, span.attempt_id) for span in self.spans}

    def keep(self, problem: Callable[[Span], str | None]) -> None:
        """Refuse the spans for which `problem` returns a reason."""
        kept: list[Span] = []
        for span in self.spans:
            reason = problem(span)
            if reason is None:
                kept.append(span)
            else:
                self.refuse(reason)
        self.spans = kept

    def answer(self, kind: str) -> bytes:
        """Return the answer of the OTLP specification: empty, or the number and reasons of refused spans."""
        answer = ExportTraceServiceResponse()
        if self.refused:
            reasons = list(self.reasons)
            more = f"; and {len(reasons) - _MOST_REASONS} more reasons" if len(reasons) > _MOST_REASONS else ""
            text = "; ".join(reasons[:_MOST_REASONS]) + more
            answer.partial_success.CopyFrom(ExportTracePartialSuccess(rejected_spans=self.refused, error_message=text))
        return _encoded(answer, kind)


def failure(message: str, kind: str) -> bytes:
    """Return the answer to a request of which nothing is stored: a `google.rpc.Status`."""
    from google.rpc.status_pb2 import Status

    return _encoded(Status(message=message), kind)


def read_request(body: bytes, kind: str, most: OtlpLimits, *, attempt: tuple[str, str] | None = None) -> ReadRequest:
    """Read a request in protobuf or JSON.

    Raises Refused: with status 400 for an invalid request, and 413 for one with too many values, which are counted
    before decoding. Spans without the name of an attempt belong to `attempt`, where it is given. Spans with too many
    bytes or without valid ids are refused one by one.
    """
    _check_count(body, kind, most)
    request = _decoded(body, kind)
    if kind == JSON:
        _check_spans(sum(len(scoped.spans) for of in request.resource_spans for scoped in of.scope_spans), most)
    taken = ReadRequest()
    ended: list[tuple[int, Span]] = []
    for of_resource in request.resource_spans:
        resource = _attributes(of_resource.resource.attributes)
        named = _named(resource, attempt or (None, None))
        for n, given in enumerate(span for scoped in of_resource.scope_spans for span in scoped.spans):
            if n % _READ_AT_ONCE == 0:
                yield_to_threads()
            if given.ByteSize() > most.span_bytes:
                taken.refuse(f"span {given.name[:64]!r} has {given.ByteSize()} bytes; it may have {most.span_bytes}")
                continue
            try:
                span = _span(given, resource, named, from_json=kind == JSON)
            except _Wrong as wrong:
                taken.refuse(f"span {given.name[:64]!r} {wrong}")
            else:
                ended.append((given.end_time_unix_nano or given.start_time_unix_nano, span))
    taken.spans = [span for _, span in sorted(ended, key=lambda pair: pair[0])]
    return taken


def _check_count(body: bytes, kind: str, most: OtlpLimits) -> None:
    if kind != JSON:
        _check_spans(protobuf_messages(body, _SPANS, most.spans), most)
    if len(body) <= most.values:
        return
    values = json_values(body, most.values) if kind == JSON else protobuf_fields(body, _MESSAGES, most.values)
    if values > most.values:
        raise too_many("more", most.values, "values")


def _check_spans(spans: int, most: OtlpLimits) -> None:
    if spans > most.spans:
        raise too_many("more", most.spans, "spans")


def _decoded(body: bytes, kind: str) -> Any:
    request: Any = ExportTraceServiceRequest()
    try:
        if kind == JSON:
            _parse(body, request)
        else:
            request.ParseFromString(body)
    except (DecodeError, json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        line = " ".join(str(error).split())[:300]
        raise Refused(400, f"the body is not an OTLP request in {kind}: {line}") from None
    return request


def _parse(body: bytes, request: Any) -> None:
    options: dict[str, Any] = {"ignore_unknown_fields": True, "max_recursion_depth": 64}
    try:
        json_format.Parse(body, request, **options)
    except (json_format.ParseError, UnicodeEncodeError):
        if _SURROGATE.search(body) is None:
            raise
        request.Clear()
        json_format.ParseDict(well_formed(json.loads(body)), request, **options)


class _Wrong(Exception):
    """The reason why a span is refused."""


_Named = tuple[str | None, str | None]


def _named(attributes: Attributes, default: _Named) -> _Named:
    """Remove and return the ids of rollout and attempt from attributes, since spans store them in fields of their own.

    Returns `default` where they are missing.
    """
    rollout_id, attempt_id = attributes.pop(semconv.ROLLOUT_ID, None), attributes.pop(semconv.ATTEMPT_ID, None)
    return (rollout_id, attempt_id) if isinstance(rollout_id, str) and isinstance(attempt_id, str) else default


def _span(given: Any, resource: Attributes, named: _Named, *, from_json: bool) -> Span:
    """Return a span in Leyden's form; raises _Wrong."""
    attributes = _attributes(given.attributes)
    rollout_id, attempt_id = _named(attributes, named)
    if rollout_id is None or attempt_id is None:
        raise _Wrong(f"has no attempt: its resource needs {semconv.ROLLOUT_ID} and {semconv.ATTEMPT_ID}")
    if not can_be_stored(rollout_id + attempt_id):
        raise _Wrong(f"has invalid ids of rollout and attempt: {rollout_id[:64]!a}, {attempt_id[:64]!a}")
    trace_id, span_id = (_hex(raw, from_json=from_json) for raw in (given.trace_id, given.span_id))
    if not _is_id(trace_id, _TRACE_BYTES) or not _is_id(span_id, _SPAN_BYTES):
        raise _Wrong("has no valid trace id and span id")
    return Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=0,
        trace_id=trace_id,
        span_id=span_id,
        parent_id=_hex(given.parent_span_id, from_json=from_json) or None,
        name=given.name,
        status=SpanStatus(code=_CODES.get(given.status.code, "unset"), description=given.status.message or None),
        attributes=attributes,
        events=[
            SpanEvent(name=event.name, time=_seconds(event.time_unix_nano), attributes=_attributes(event.attributes))
            for event in given.events
        ],
        links=[
            SpanLink(
                trace_id=_hex(link.trace_id, from_json=from_json),
                span_id=_hex(link.span_id, from_json=from_json),
                attributes=_attributes(link.attributes),
            )
            for link in given.links
        ],
        start_time=_seconds(given.start_time_unix_nano),
        end_time=_seconds(given.end_time_unix_nano) if given.end_time_unix_nano else None,
        resource=resource,
    )


def _hex(raw: bytes, *, from_json: bool) -> str:
    """Return an id as hexadecimal digits; in JSON it is hexadecimal, which the parser has decoded as base64."""
    return base64.b64encode(raw).decode().lower() if from_json else raw.hex()


def _is_id(text: str, size: int) -> bool:
    return len(text) == 2 * size and not text.strip("0123456789abcdef") and bool(text.strip("0"))


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / _NANOSECONDS


def _attributes(pairs: Iterable[Any]) -> Attributes:
    return {pair.key: value for pair in pairs if (value := _value(pair.key, pair.value)) is not None}


def _value(name: str, value: Any) -> Any:
    """Return an attribute's value in Leyden's form: maps become JSON, and so do nested values of lists.

    Token ids and log-probabilities may be lists of numbers, which are packed.
    """
    kind = value.WhichOneof("value")
    if kind == "array_value" and name in _PACKED:
        try:
            pack, numbers = _PACKED[name]
            return pack(_numbers(value.array_value.values, numbers))
        except (TypeError, OverflowError) as error:
            raise _Wrong(f"has a list in {name} that cannot be packed: {error}") from None
    if kind == "array_value":
        return [*_items(value.array_value.values)]
    if kind == "kvlist_value":
        return json.dumps(_plain(value))
    return None if kind is None else getattr(value, kind)


def _numbers(values: Any, numbers: Callable[[Any], Any]) -> list[Any]:
    """Return the numbers in a list.

    A value of another type reads as 0, so only zeros are read again, which takes several times longer.
    """
    found = [*map(numbers, values)]
    return [number or _plain(item) for number, item in zip(found, values, strict=True)] if 0 in found else found


def _items(values: Iterable[Any]) -> Iterator[Any]:
    for item in values:
        plain = _plain(item)
        if isinstance(plain, _LIST_ITEMS):
            yield plain
        elif plain is not None:
            yield json.dumps(plain)


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it: bytes in base64."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _plain(pair.value) for pair in value.kvlist_value.values}
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return None if kind is None else getattr(value, kind)


def _encoded(message: Any, kind: str) -> bytes:
    return json_format.MessageToJson(message, indent=None).encode() if kind == JSON else message.SerializeToString()

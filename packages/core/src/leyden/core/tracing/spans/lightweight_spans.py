"""Lightweight spans: OpenTelemetry spans that become Leyden's `Span`s without OpenTelemetry's SDK.

The SDK takes three times as long. These spans have OpenTelemetry's interface, and may be parents or children of any
other span. Only spans of attempts are kept.
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.util import types

from leyden.core.data.plain.own_methods import short_name
from leyden.core.data.plain.reading import WITHOUT_METHODS
from leyden.core.data.plain.spans import marked
from leyden.core.data.plain.values import is_a, message_of, reading, stack_of
from leyden.core.data.span import Attributes, Span, SpanEvent, SpanLink, SpanStatus
from leyden.core.tracing.context import current_attempt

Keep = Callable[[Span], object]
"""Called with a span that has ended."""

RESOURCE: Attributes = {"service.name": "leyden"}
_NANOSECONDS = 1e9
_SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)
_STATE = trace.TraceState()
_UNSET = SpanStatus()


class LightweightSpan(trace.Span):
    """A span of an attempt, which calls `keep` when it ends. It is as thread-safe as a dict."""

    __slots__ = (
        *("_attempt", "_attributes", "_context", "_events", "_keep", "_links", "_name", "_parent_id"),
        *("_reasons", "_started", "_status", "span_id", "trace_id"),
    )

    def __init__(
        self, name: str, under: trace.Span | None, attributes: Mapping[str, Any] | None, started: int, keep: Keep
    ) -> None:
        attempt = current_attempt()
        self._name, self._started, self._keep, self._attempt = name, started, keep, attempt
        trace_id, self._parent_id = (None, None) if under is None else ids(under)
        if trace_id is None:
            trace_id = f"{random.getrandbits(128):032x}" if attempt is None else attempt.trace_id
        self.trace_id: str = trace_id
        """32 hexadecimal digits."""
        self.span_id = f"{random.getrandbits(64) or 1:016x}"
        """16 hexadecimal digits."""
        self._context: trace.SpanContext | None = None
        self._reasons: list[str] = []
        """Reasons why parts of the span are not complete."""
        self._attributes: Attributes = _add({}, attributes, self._reasons) if attributes else {}
        self._status = _UNSET
        self._events: list[SpanEvent] = []
        self._links: list[SpanLink] = []

    def get_span_context(self) -> trace.SpanContext:
        """Return the span's context, made at the first call."""
        if self._context is None:  # most spans never need it
            ids = int(self.trace_id, 16), int(self.span_id, 16)
            self._context = trace.SpanContext(*ids, False, _SAMPLED, _STATE)
        return self._context

    def is_recording(self) -> bool:
        """Return whether the span has not ended."""
        return self._keep is not None

    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        """Set an attribute of any type."""
        self.set_attributes({key: value})

    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        """Set several attributes."""
        if self._keep is not None:
            _add(self._attributes, attributes, self._reasons)

    def update_name(self, name: str) -> None:
        """Set the span's name."""
        if self._keep is not None:
            self._name = name

    def set_status(self, status: trace.Status | trace.StatusCode, description: str | None = None) -> None:
        """Set the span's status. After OK, later calls have no effect, as OpenTelemetry requires."""
        given = status if isinstance(status, trace.Status) else trace.Status(status, description)
        if self._keep is None or self._status.code == "ok" or given.status_code is trace.StatusCode.UNSET:
            return
        code = "ok" if given.status_code is trace.StatusCode.OK else "error"
        self._status = SpanStatus(code=code, description=given.description)

    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        """Add an event. `timestamp` is in Unix nanoseconds."""
        if self._keep is not None:
            at = (time.time_ns() if timestamp is None else timestamp) / _NANOSECONDS
            self._events.append(SpanEvent(name=name, time=at, attributes=self._read(attributes, "event")))

    def add_link(self, context: trace.SpanContext, attributes: types.Attributes = None) -> None:
        """Add a link to another span."""
        if self._keep is not None:
            trace_id, span_id = f"{context.trace_id:032x}", f"{context.span_id:016x}"
            self._links.append(SpanLink(trace_id=trace_id, span_id=span_id, attributes=self._read(attributes, "link")))

    def _read(self, attributes: Mapping[str, object] | None, path: str) -> Attributes:
        return _add({}, attributes, self._reasons, path) if attributes else {}

    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add an exception as an event, with OpenTelemetry's names."""
        exception_attributes = {
            "exception.type": short_name(exception),
            "exception.message": message_of(exception),
            "exception.stacktrace": stack_of(exception),
            "exception.escaped": str(escaped),
        }
        self.add_event("exception", {**exception_attributes, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """End the span and pass it to `keep` if it belongs to an attempt. Later changes have no effect."""
        keep, self._keep = self._keep, None
        attempt = self._attempt
        if keep is None or attempt is None:
            return
        ended = Span(
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            sequence_id=0,
            trace_id=self.trace_id,
            span_id=self.span_id,
            parent_id=self._parent_id,
            name=self._name,
            status=self._status,
            attributes=self._attributes,
            events=self._events,
            links=self._links,
            start_time=self._started / _NANOSECONDS,
            end_time=(time.time_ns() if end_time is None else end_time) / _NANOSECONDS,
            resource=RESOURCE,
        )
        keep(marked(ended, self._reasons) if self._reasons else ended)


class LightweightTracer(trace.Tracer):
    """Tracer whose spans call `keep` when they end."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep

    def below(
        self, under: trace.Span | None, name: str, attributes: Mapping[str, Any] | None, started: int
    ) -> LightweightSpan:
        """Start a span below another one, without changing the context. `started` is in Unix nanoseconds."""
        return LightweightSpan(name, under, attributes, started, self._keep)

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
        attributes: types.Attributes = None,
        links: Any = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> LightweightSpan:
        """Start a span below the one in `context`. `kind` and the options for blocks have no effect."""
        started = time.time_ns() if start_time is None else start_time
        span = self.below(trace.get_current_span(context), name, attributes, started)
        for link in links or ():
            span.add_link(link.context, link.attributes)
        return span

    def start_as_current_span(  # noqa: PLR0913 -- OpenTelemetry's signature
        self,
        name: str,
        context: Context | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
        attributes: types.Attributes = None,
        links: Any = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> Any:
        """Start a span that is the current one inside the block."""
        span = self.start_span(name, context, kind, attributes, links, start_time)
        return trace.use_span(span, end_on_exit, record_exception, set_status_on_exception)


def ids(span: trace.Span) -> tuple[str | None, str | None]:
    """Return the trace id and span id in hexadecimal digits. None and None for an invalid span."""
    if type(span) is LightweightSpan:
        return span.trace_id, span.span_id
    context = span.get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else (None, None)


def _add(
    known: dict[str, Any], given: Mapping[str, object], reasons: list[str], path: str = "attributes"
) -> Attributes:
    """Copy values into `known` as they are now. Appends to `reasons` why a value is not complete."""
    for name, value in given.items():
        kind = type(value)
        if kind is str or kind is int or kind is float or kind is bool:
            known[name] = value
        elif kind is list and _is_flat(cast("list[object]", value)):
            known[name] = cast("Any", value).copy()
        elif value is not None:
            known[name] = _snapshot(value, f"{path}.{name}", reasons)
    return known


def _is_flat(items: list[object]) -> bool:
    for item in items:
        kind = type(item)
        if kind is not str and kind is not int and kind is not float and kind is not bool:
            return False
    return True


def _snapshot(value: object, path: str, reasons: list[str]) -> Any:
    """Return a copy of an unusual value as it is now.

    An object that can be read only through its own methods is returned itself. The recorder reads it in a thread.
    """
    read = reading(WITHOUT_METHODS)
    found = read.read(value, path)
    if read.reasons and type(found) is str and not is_a(value, str):
        return value
    kept = read.attribute(found, path)
    reasons += read.all_reasons()
    return kept

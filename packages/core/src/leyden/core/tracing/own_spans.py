"""Spans of OpenTelemetry's shape that become our own without its SDK, which takes three times as long. Knows no sink.

They look to whoever holds them like any other span, and are below or above any other. Only spans of attempts are kept.
"""

import random
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.util import types

from leyden.core.data.span import Attributes, Span, SpanEvent, SpanLink, SpanStatus
from leyden.core.store.otel import plain
from leyden.core.tracing.context import OpenAttempt, current_attempt

Keep = Callable[[Span], object]
"""Takes a span that has ended."""

RESOURCE: Attributes = {"service.name": "leyden"}
_NANOSECONDS = 1e9
_PLAIN = frozenset((str, int, float, bool))
_SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)
_STATE = trace.TraceState()


class OwnSpan(trace.Span):
    """A span of an attempt from its start on; it reaches `keep` when it ends. As safe to share as a dict."""

    __slots__ = ("_attempt", "_attributes", "_context", "_events", "_keep", "_links", "_name", "_parent", "_started")

    def __init__(
        self, name: str, parent: trace.SpanContext | None, attributes: types.Attributes, started: int, keep: Keep
    ) -> None:
        attempt = current_attempt()
        self._name, self._started, self._parent = name, started, parent
        if parent is not None:
            trace_id = parent.trace_id
        else:
            trace_id = random.getrandbits(128) if attempt is None else int(attempt.trace_id, 16)
        self._context = trace.SpanContext(trace_id, random.getrandbits(64) or 1, False, _SAMPLED, _STATE)
        self._attempt: OpenAttempt | None = attempt
        self._attributes: Attributes = {}
        self._status = SpanStatus()
        self._events: list[SpanEvent] = []
        self._links: list[SpanLink] = []
        self._keep: Keep | None = keep
        if attributes:
            self.set_attributes(attributes)

    def get_span_context(self) -> trace.SpanContext:
        """Who it is."""
        return self._context

    def is_recording(self) -> bool:
        """Whether it has not ended."""
        return self._keep is not None

    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        """Note a value; what is none of OpenTelemetry's types is left out with a warning of its own."""
        self.set_attributes({key: value})

    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        """Note values."""
        if self._keep is not None:
            _add(self._attributes, attributes)

    def update_name(self, name: str) -> None:
        """Rename it."""
        if self._keep is not None:
            self._name = name

    def set_status(self, status: trace.Status | trace.StatusCode, description: str | None = None) -> None:
        """Note how it ended; after ok nothing more is heard, as with any span."""
        given = status if isinstance(status, trace.Status) else trace.Status(status, description)
        if self._keep is None or self._status.code == "ok" or given.status_code is trace.StatusCode.UNSET:
            return
        code = "ok" if given.status_code is trace.StatusCode.OK else "error"
        self._status = SpanStatus(code=code, description=given.description)

    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        """Note a moment."""
        if self._keep is not None:
            at = (time.time_ns() if timestamp is None else timestamp) / _NANOSECONDS
            self._events.append(SpanEvent(name=name, time=at, attributes=_add({}, attributes or {})))

    def add_link(self, context: trace.SpanContext, attributes: types.Attributes = None) -> None:
        """Refer to another span."""
        if self._keep is not None:
            trace_id, span_id = f"{context.trace_id:032x}", f"{context.span_id:016x}"
            self._links.append(SpanLink(trace_id=trace_id, span_id=span_id, attributes=_add({}, attributes or {})))

    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Note an exception as an event, with OpenTelemetry's names."""
        told = {
            "exception.type": type(exception).__qualname__,
            "exception.message": str(exception),
            "exception.stacktrace": "".join(traceback.format_exception(exception)),
            "exception.escaped": str(escaped),
        }
        self.add_event("exception", {**told, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """End it, and hand it on if it works for an attempt; it hears nothing more."""
        keep, self._keep = self._keep, None
        attempt = self._attempt
        if keep is None or attempt is None:
            return
        ended = Span(
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            sequence_id=0,
            trace_id=f"{self._context.trace_id:032x}",
            span_id=f"{self._context.span_id:016x}",
            parent_id=None if self._parent is None else f"{self._parent.span_id:016x}",
            name=self._name,
            status=self._status,
            attributes=self._attributes,
            events=self._events,
            links=self._links,
            start_time=self._started / _NANOSECONDS,
            end_time=(time.time_ns() if end_time is None else end_time) / _NANOSECONDS,
            resource=RESOURCE,
        )
        keep(ended)


class OwnTracer(trace.Tracer):
    """Makes spans that reach `keep`."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep

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
    ) -> OwnSpan:
        """Start a span below the one in `context`. Its kind is not kept; what only blocks read has no effect here."""
        parent = trace.get_current_span(context).get_span_context()
        started = time.time_ns() if start_time is None else start_time
        span = OwnSpan(name, parent if parent.is_valid else None, attributes, started, self._keep)
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


def _add(known: Attributes, given: Mapping[str, Any]) -> Attributes:
    for name, value in given.items():
        # Nearly all are plain, and OpenTelemetry's own check of a value takes as long as all the rest.
        if type(value) in _PLAIN:
            known[name] = value
        elif (checked := BoundedAttributes(attributes={name: value}).get(name)) is not None:
            known[name] = plain(checked)
    return known

"""`span_from_otel`: a span of the OpenTelemetry SDK as ours. Imports the SDK for its types alone."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from leyden.core.data.span import Attributes, Span, SpanEvent, SpanLink, SpanStatus, StatusCode

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_NANOSECONDS = 1e9
_PLAIN = frozenset((str, int, float, bool))
_CODES: dict[int, StatusCode] = {0: "unset", 1: "ok", 2: "error"}


def span_from_otel(readable: "ReadableSpan", rollout_id: str, attempt_id: str, sequence_id: int = 0) -> Span:
    """Return `readable` as a span of an attempt; 0 lets the store number it.

    Raises ValueError for a span without a span context.
    """
    context = readable.context
    if context is None:
        raise ValueError(f"span {readable.name!r} has no span context, so no id to be stored under")
    return Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=sequence_id,
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=None if readable.parent is None else f"{readable.parent.span_id:016x}",
        name=readable.name,
        status=SpanStatus(code=_CODES[readable.status.status_code.value], description=readable.status.description),
        attributes=_attributes(readable.attributes),
        events=[
            SpanEvent(name=event.name, time=event.timestamp / _NANOSECONDS, attributes=_attributes(event.attributes))
            for event in readable.events
        ],
        links=[
            SpanLink(
                trace_id=f"{link.context.trace_id:032x}",
                span_id=f"{link.context.span_id:016x}",
                attributes=_attributes(link.attributes),
            )
            for link in readable.links
        ],
        start_time=(readable.start_time or 0) / _NANOSECONDS,
        end_time=None if readable.end_time is None else readable.end_time / _NANOSECONDS,
        resource=_attributes(readable.resource.attributes),
    )


def _attributes(given: Mapping[str, Any] | None) -> Attributes:
    return {name: plain(value) for name, value in (given or {}).items()}


def plain(value: Any) -> Any:
    """An attribute's value as ours: a mapping as JSON.

    Sequences arrive as tuples, and a None inside one stands for a value that was refused.
    """
    if type(value) in _PLAIN:  # nearly all are, and asking for a Mapping takes longer than the rest
        return value
    if isinstance(value, Mapping):
        return json.dumps(value, default=str)
    if not isinstance(value, (tuple, list)):
        return value
    return [item for item in cast("Sequence[Any]", value) if item is not None]

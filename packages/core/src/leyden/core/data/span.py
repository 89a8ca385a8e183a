"""Spans: one timed thing inside an attempt, in OpenTelemetry's shape. Knows nothing of the OpenTelemetry SDK."""

from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    Attribute = str | bool | int | float | bytes | list[str] | list[bool] | list[int] | list[float]
else:
    # msgspec cannot tell text from bytes, or one list from another, when decoding; the store checks what it takes in.
    Attribute = Any
Attributes = dict[str, Attribute]
StatusCode = Literal["unset", "ok", "error"]


class SpanStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a span ended."""

    code: StatusCode = "unset"
    description: str | None = None


class SpanEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened at one moment of a span."""

    name: str
    time: float
    attributes: Attributes = {}


class SpanLink(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to another span."""

    trace_id: str
    span_id: str
    attributes: Attributes = {}


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One timed thing inside an attempt."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """Its place in the order of the rollout's spans, from 1; 0 asks the store for the next number."""
    trace_id: str
    """32 hexadecimal digits. The attempt, never the trace, is the key."""
    span_id: str
    """16 hexadecimal digits."""
    parent_id: str | None = None
    name: str
    status: SpanStatus = SpanStatus()
    attributes: Attributes = {}
    events: list[SpanEvent] = []
    links: list[SpanLink] = []
    start_time: float
    """Unix seconds."""
    end_time: float | None = None
    resource: Attributes = {}

    def size(self) -> int:
        """About how many bytes it holds."""
        size = 512 + len(self.name) + _held(self.attributes)
        if self.resource or self.events or self.links:
            size += _held(self.resource) + sum(_held(part.attributes) for part in (*self.events, *self.links))
        return size

    def text(self, key: str) -> str | None:
        """The attribute `key`, if it is there and is text."""
        value = self.attributes.get(key)
        return value if isinstance(value, str) else None


def _held(attributes: Attributes) -> int:
    held = 0
    for value in attributes.values():
        if isinstance(value, (str, bytes)):  # a union costs thrice as much to test
            held += len(value)
        elif isinstance(value, list):
            held += len(value) + sum(len(item) for item in value if isinstance(item, str))
    return held

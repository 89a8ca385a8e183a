"""Spans: timed operations inside an attempt, with the fields of OpenTelemetry spans.

Does not use the OpenTelemetry SDK; see `store.sdk_spans` for its spans.
"""

from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

if TYPE_CHECKING:
    Attribute = str | bool | int | float | bytes | list[str] | list[bool] | list[int] | list[float]
else:
    # When decoding, msgspec cannot distinguish text from bytes, or one list type from another. The store checks values.
    Attribute = Any
Attributes = dict[str, Attribute]
MOST_BYTES = 64 << 20
"""Largest size of a span in bytes, and also of a request to a server."""
StatusCode = Literal["unset", "ok", "error"]


class SpanStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a span ended."""

    code: StatusCode = "unset"
    description: str | None = None


class SpanEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event at one moment of a span."""

    name: str
    time: float
    attributes: Attributes = {}


class SpanLink(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to another span."""

    trace_id: str
    span_id: str
    attributes: Attributes = {}


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One timed operation inside an attempt."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    """Position among the rollout's spans, from 1; with 0, the store sets the next number."""
    trace_id: str
    """32 hexadecimal digits. Spans are stored by attempt, never by trace."""
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
        """Return the approximate size in bytes, with each character counted as one byte."""
        size = 512 + len(self.name) + _held(self.attributes)
        if self.status.description is not None:
            size += len(self.status.description)
        if self.resource or self.events or self.links:
            size += _held(self.resource)
            size += sum(64 + len(event.name) + _held(event.attributes) for event in self.events)
            size += sum(64 + len(link.trace_id + link.span_id) + _held(link.attributes) for link in self.links)
        return size

    def bytes(self) -> int:
        """Return the size in bytes, or slightly more."""
        parts = (self.attributes, self.resource, *(part.attributes for part in (*self.events, *self.links)))
        texts = [f"{link.trace_id}{link.span_id}" for link in self.links]
        names = (*texts, *(event.name for event in self.events), self.status.description or "", self.name)
        return self.size() + sum(map(_more, names)) + sum(map(_more_bytes, parts))

    def text(self, key: str) -> str | None:
        """Return the attribute `key` where it is text, else None."""
        value = self.attributes.get(key)
        return value if isinstance(value, str) else None


def size_of(value: object) -> int:
    """Return the approximate size of an attribute's value in bytes, with each character counted as one byte."""
    if isinstance(value, (str, bytes)):  # testing against a union would cost three times as much
        return len(value)
    if isinstance(value, list):
        items = cast("list[object]", value)
        return 9 * len(items) + sum(len(item) for item in items if isinstance(item, str))
    return 9


def bytes_of(value: object) -> int:
    """Return the size of an attribute's value in bytes, or slightly more."""
    texts = cast("list[object]", value) if isinstance(value, list) else [value]
    return size_of(value) + sum(_more(text) for text in texts if isinstance(text, str))  # type: ignore[reportUnknownArgumentType] of a list of anything


def _held(attributes: Attributes) -> int:
    held = 16 * len(attributes) + sum(map(len, attributes))
    for value in attributes.values():
        if isinstance(value, (str, bytes)):
            held += len(value)
        elif isinstance(value, list):
            held += size_of(value)
    return held


def _more_bytes(attributes: Attributes) -> int:
    more = sum(map(_more, attributes))
    return more + sum(bytes_of(value) - size_of(value) for value in attributes.values())


def _more(text: str) -> int:
    """Return how many bytes UTF-8 needs beyond one for each character."""
    return 0 if text.isascii() else len(text.encode("utf-8", "surrogatepass")) - len(text)

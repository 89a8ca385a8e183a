"""Spans as plain data: every span passes through here on its way to a store.

A span that is plain already is returned unchanged. For any other span, `data.plain.values` reads each field. Parts that
cannot be kept whole are shortened, and `semconv.REDUCED` on the span records which, and why. A span is refused only
where it would have no identity (an id that is no text, an impossible number), or an impossible status or reward.
"""

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, cast

from msgspec.structs import astuple, replace

from leyden.core.data import semconv
from leyden.core.data.encoding.text import is_well_formed
from leyden.core.data.plain.class_members import class_of
from leyden.core.data.plain.own_methods import type_name
from leyden.core.data.plain.reading import Reading, ReadingLimits, scalar_size
from leyden.core.data.plain.values import reading, shown
from leyden.core.data.span import MOST_BYTES, Attributes, Span, SpanEvent, SpanLink, SpanStatus, StatusCode
from leyden.core.errors import UsageError

_Dict: Any = dict
MOST_NUMBERS = 1 << 63
"""Span numbers are below this."""
_FAR = 1e300
"""Times are below this absolute value."""
LIMITS = ReadingLimits(bytes=4 * MOST_BYTES)
"""Limits of one attribute. They exceed `MOST_BYTES`, so that a too large span is shortened with all attributes known.
"""
_FEW_ITEMS, _FEW_BYTES = 1000, 1 << 20
"""Limits of a span's name, status, times and number together."""
_CODES: tuple[StatusCode, ...] = ("unset", "ok", "error")


def is_plain_span(span: Any) -> bool:
    """Whether a span is plain data and needs no reading, as for nearly all spans; size, ids and characters aside.

    Checks classes only, and calls no methods of the values.
    """
    if type(span) is not Span:
        return False
    rollout, attempt, number, trace, own, parent, name, status, attributes, events, links, start, end, resource = (
        astuple(span)
    )
    return (
        type(own) is str
        and type(name) is str
        and type(start) is float
        and -_FAR < start < _FAR
        and (end is None or (type(end) is float and -_FAR < end < _FAR))
        and type(number) is int
        and type(rollout) is type(attempt) is type(trace) is str
        and (parent is None or type(parent) is str)
        and _are_attributes(attributes)
        and _are_attributes(resource)
        and _is_status(status)
        and type(events) is list
        and type(links) is list
        and not (events and not all(map(_is_event, cast("list[Any]", events))))
        and not (links and not all(map(_is_link, cast("list[Any]", links))))
    )


def _are_attributes(attributes: Any) -> bool:
    if type(attributes) is not dict:
        return False
    try:
        for name, value in cast("dict[object, object]", attributes).items():
            kind = type(value)
            # Compared one by one: a set would hash the class, whose metaclass may define its own `__hash__`.
            if kind is not str and kind is not int and kind is not float and kind is not bytes and kind is not bool:
                if kind is list and _are_scalars(cast("list[object]", value)):
                    continue
                return False
            if type(name) is not str:
                return False
    except RuntimeError:  # another thread changes it
        return False
    return True


def _are_scalars(items: list[object]) -> bool:
    for item in items:
        kind = type(item)
        if kind is not str and kind is not int and kind is not float and kind is not bool:
            return False
    return True


def _is_status(status: Any) -> bool:
    if type(status) is not SpanStatus or type(status.code) is not str or status.code not in _CODES:
        return False
    return status.description is None or type(status.description) is str


def _is_event(event: Any) -> bool:
    return (
        type(event) is SpanEvent
        and type(event.name) is str
        and type(event.time) is float
        and -_FAR < event.time < _FAR
        and _are_attributes(event.attributes)
    )


def _is_link(link: Any) -> bool:
    if type(link) is not SpanLink or type(link.trace_id) is not str or type(link.span_id) is not str:
        return False
    return _are_attributes(link.attributes)


def plain_spans(spans: Iterable[Any], limits: ReadingLimits = LIMITS) -> list[Span]:
    """Return spans as plain data. Raises UsageError for a value that is no span, or a span without an identity."""
    return [span if is_plain_span(span) else plain_span(span, limits) for span in spans]


def plain_span(span: Any, limits: ReadingLimits = LIMITS) -> Span:
    """Return a span as plain data, with the reasons for incomplete parts in `semconv.REDUCED`.

    Raises UsageError for a value that is no span, or a span without an identity.
    """
    given = _given(span)
    read = reading(limits)
    rollout_id, attempt_id, trace_id, span_id = (
        _id(name, given[name]) for name in ("rollout_id", "attempt_id", "trace_id", "span_id")
    )
    # Small parts are read first, so that enormous parts leave them room. Events and links are read last.
    with read.at_most(_FEW_ITEMS, _FEW_BYTES):
        number, code = _number(read, given["sequence_id"], span_id), _code(read, given["status"], span_id)
        start, end = _times(read, given["start_time"], given["end_time"])
        parent, name = _parent(read, given["parent_id"]), _text(read, given["name"], "name")
        description = _description(read, given["status"].description)
    plain = Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=number,
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent,
        name=name,
        status=SpanStatus(code=code, description=description),
        attributes=_attributes(read, given["attributes"], "attributes"),
        resource=_attributes(read, given["resource"], "resource"),
        events=[_event(read, event, start, path) for event, path in _members(read, given["events"], "events")],
        links=[link for one in _members(read, given["links"], "links") if (link := _link(read, *one)) is not None],
        start_time=start,
        end_time=end,
    )
    return marked(plain, read.all_reasons())


def marked(span: Span, reasons: Sequence[str]) -> Span:
    """Return a span with `reasons` added to its attribute `semconv.REDUCED`."""
    if not reasons:
        return span
    before = span.attributes.get(semconv.REDUCED)
    known = cast("list[str]", before) if isinstance(before, list) else []
    return replace(span, attributes={**span.attributes, semconv.REDUCED: [*known, *reasons]})


# --- Fields


def _given(span: Any) -> dict[str, Any]:
    """Return a span's fields by name, unaffected by properties of a subclass."""
    if not issubclass(type(span), Span):
        raise UsageError(f"{shown(span)} is not a span, but of type {type_name(span)}")
    try:
        return dict(zip(Span.__struct_fields__, astuple(span), strict=False))
    except AttributeError as error:
        raise UsageError(f"a span lacks {error}") from None


def _id(name: str, value: Any) -> str:
    if not issubclass(type(value), str):
        raise UsageError(f"the {name} of a span is {shown(value)}; it must be text")
    return str.__str__(value)


def _number(read: Reading, value: Any, span_id: str) -> int:
    number = read.read(value, "sequence_id")
    if type(number) is float and number.is_integer():
        number = int(number)
    if type(number) is not int or not 0 <= number < MOST_NUMBERS:
        raise UsageError(f"span {span_id} has sequence id {shown(value)}; numbers start at 1")
    return number


def _parent(read: Reading, value: Any) -> str | None:
    if value is None:
        return None
    if issubclass(type(value), str) and is_well_formed(text := str.__str__(value)):
        return text
    read.reduce("parent_id", f"{shown(value)} is not an id and is left out")
    return None


def _text(read: Reading, value: Any, path: str) -> str:
    plain = read.read(value, path)
    if type(plain) is str:
        return plain
    read.reduce(path, f"a value of type {type_name(value)} is kept as text")
    return read.json(plain, path) if type(plain) in (list, dict) else str(plain)


def _code(read: Reading, value: Any, span_id: str) -> StatusCode:
    if type(value) is not SpanStatus:
        raise UsageError(f"span {span_id} has the status {shown(value)}, which is not a SpanStatus")
    code: StatusCode | None = next((known for known in _CODES if read.read(value.code, "status.code") == known), None)
    if code is None:
        raise UsageError(f"span {span_id} has the status {shown(value.code)}; use {', '.join(_CODES)}")
    return code


def _description(read: Reading, value: Any) -> str | None:
    return None if value is None else _text(read, value, "status.description")


def _times(read: Reading, start: Any, end: Any) -> tuple[float, float | None]:
    began, ended = _time(read, start, "start_time"), None if end is None else _time(read, end, "end_time")
    if end is not None and ended is None:
        read.reduce("end_time", f"{shown(end)} is not a time and is left out")
    if began is None:
        began = time.time() if ended is None else ended
        read.reduce("start_time", f"{shown(start)} is not a time; {began} is kept instead")
    return began, ended


def _time(read: Reading, value: Any, path: str) -> float | None:
    """Return a time in Unix seconds; None where the value is no time."""
    plain = read.read(value, path)
    if type(plain) is datetime:
        return plain.timestamp()
    if type(plain) is int or type(plain) is float:
        return float(plain) + 0.0 if -_FAR < plain < _FAR else None  # SQLite returns -0.0 as 0.0
    return None


def _attributes(read: Reading, value: Any, path: str) -> Attributes:
    """Return attributes; each may have as many bytes as a span, independent of the others."""
    if value is None:
        return {}
    pairs = _Dict.items(value) if issubclass(class_of(value), dict) else _pairs(read, value, path)
    found = read.first(pairs)
    kept: Attributes = {}
    for key, item in found:
        read.next_value()
        name = read.key(key, path)
        if isinstance(name, int):
            read.reduce(f"{path}.{name}", "a name that is a number is kept as text")
        free = str(read.unused_key(kept, str(name), path))
        scalar = _attribute(read, item, f"{path}.{free}")
        if scalar is not None:
            kept[free] = scalar
    read.next_value()
    return kept


def _attribute(read: Reading, value: Any, path: str) -> Any:
    """Return one attribute; a list of plain scalars is copied whole, however long."""
    given: Any = value
    if type(given) is list and _is_flat(cast("list[object]", given)):
        return cast("Any", given)[:]
    return read.attribute(read.read(value, path), path)


def _is_flat(items: list[object]) -> bool:
    return _are_scalars(items) and all(scalar_size(item) >= 0 for item in items)


def _pairs(read: Reading, value: Any, path: str) -> Any:
    plain = read.read(value, path)
    if type(plain) is dict:
        return cast("dict[Any, Any]", plain).items()
    read.reduce(path, f"a value of type {type_name(value)} is kept under the name `value`")
    return [("value", plain)]


def _members(read: Reading, value: Any, path: str) -> list[tuple[Any, str]]:
    """Return the events or links of a span, each with its place."""
    if value is None:
        return []
    base: Any = list if issubclass(class_of(value), list) else tuple
    if not issubclass(class_of(value), base):
        read.reduce(path, f"a value of type {type_name(value)} is not a list and is left out")
        return []
    members = read.first(base.__iter__(value))
    if len(members) < base.__len__(value):
        read.reduce(path, f"{len(members)} of {base.__len__(value)} are kept")
    return [(item, f"{path}[{number}]") for number, item in enumerate(members)]


def _event(read: Reading, value: Any, start: float, path: str) -> SpanEvent:
    if type(value) is not SpanEvent:
        read.reduce(path, f"a value of type {type_name(value)} is not an event; its text is kept as a name")
        return SpanEvent(name=shown(value), time=start)
    event_time = _time(read, value.time, f"{path}.time")
    if event_time is None:
        read.reduce(f"{path}.time", f"{shown(value.time)} is not a time; the span's start is kept instead")
    return SpanEvent(
        name=_text(read, value.name, f"{path}.name"),
        time=start if event_time is None else event_time,
        attributes=_attributes(read, value.attributes, f"{path}.attributes"),
    )


def _link(read: Reading, value: Any, path: str) -> SpanLink | None:
    if type(value) is not SpanLink:
        read.reduce(path, f"{shown(value)} is not a link and is left out")
        return None
    return SpanLink(
        trace_id=_text(read, value.trace_id, f"{path}.trace_id"),
        span_id=_text(read, value.span_id, f"{path}.span_id"),
        attributes=_attributes(read, value.attributes, f"{path}.attributes"),
    )

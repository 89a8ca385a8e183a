"""Shortening of spans that are too large to be stored; attributes used for training are never shortened.

All attributes above a common limit are shortened to that limit.
"""

from typing import Any, cast

from msgspec.structs import replace

from leyden.core.data import semconv
from leyden.core.data.plain.reading import ELLIPSIS, MOST_REASONS
from leyden.core.data.plain.spans import marked
from leyden.core.data.span import MOST_BYTES, Attributes, Span, bytes_of

EXACT = frozenset(
    {
        *(semconv.PROMPT_IDS, semconv.RESPONSE_IDS, semconv.RESPONSE_LOGPROBS, semconv.SAMPLING_LOGPROBS),
        *(semconv.SAMPLING_USED, semconv.SAMPLING_GRAMMAR, semconv.SAMPLING_KEPT, semconv.POLICY_VERSIONS),
    }
)
"""Attributes that training reads; they are kept whole."""
LARGEST = MOST_BYTES - (2 << 20)
"""Largest size in bytes of a shortened span; the rest of a request is left for the data around the span."""
_NAME_BYTES, _KEY_BYTES = 16 << 10, 1 << 10
_MOST_ATTRIBUTES = 10_000
"""Largest number of attributes of a span that is too large."""
_PER_ATTRIBUTE = 16
"""Bytes of an attribute beside its name and its value."""


def shortened(span: Span, most: int = LARGEST) -> Span | None:
    """Return a plain span of at most `most` bytes; None where the attributes in `EXACT` are too large for that."""
    if span.bytes() <= most:
        return span
    reasons: list[str] = []
    span = _without_extras(span, most, reasons)
    attributes = _named(span.attributes, most // 4, reasons)
    room = most - replace(span, attributes={}).bytes()
    room -= sum(bytes_of(name) + _PER_ATTRIBUTE for name in attributes)
    room -= sum(bytes_of(value) for name, value in attributes.items() if name in EXACT)
    if room < 0:
        return None
    sizes = {name: bytes_of(value) for name, value in attributes.items() if name not in EXACT}
    limit = _limit(list(sizes.values()), room)
    for name, size in sizes.items():
        if size > limit:
            attributes[name] = _beginning(attributes[name], limit)
            reasons.append(f"attributes.{name[:200]}: the beginning of {size} bytes is kept")
    more = [f"and {len(reasons) - MOST_REASONS} more"] if len(reasons) > MOST_REASONS else []
    return marked(replace(span, attributes=attributes), [*reasons[:MOST_REASONS], *more])


def _without_extras(span: Span, most: int, reasons: list[str]) -> Span:
    """Shorten an enormous name or status; leave out events, links and resource where these are enormous."""
    name, description = span.name, span.status.description
    if bytes_of(name) > _NAME_BYTES:
        reasons.append(f"name: the beginning of {bytes_of(name)} bytes is kept")
        name = str(_beginning(name, _NAME_BYTES))
    if description is not None and bytes_of(description) > most // 4:
        reasons.append(f"status.description: the beginning of {bytes_of(description)} bytes is kept")
        description = str(_beginning(description, most // 4))
    span = replace(span, name=name, status=replace(span.status, description=description))
    extras = replace(span, attributes={}).bytes()
    if extras > most // 2:
        reasons.append(f"events, links, resource: {extras} bytes are left out")
        span = replace(span, events=[], links=[], resource={})
    return span


def _named(attributes: Attributes, most: int, reasons: list[str]) -> Attributes:
    """Return attributes limited in number, with limited names; names take at most `most` bytes in all.

    Attributes in `EXACT` are all kept, and are counted first.
    """
    kept: Attributes = {name: value for name, value in attributes.items() if name in EXACT}
    used = sum(bytes_of(name) + _PER_ATTRIBUTE for name in kept)
    for name, value in attributes.items():
        if name in kept:
            continue
        short = name if bytes_of(name) <= _KEY_BYTES else f"{_beginning(name, _KEY_BYTES)} ({len(kept)})"
        used += bytes_of(short) + _PER_ATTRIBUTE
        if len(kept) >= _MOST_ATTRIBUTES or used > most:
            reasons.append(f"attributes: {len(kept)} of {len(attributes)} are kept")
            break
        if short != name:
            reasons.append(f"attributes.{name[:200]}: a name of {bytes_of(name)} bytes is shortened")
        kept[short] = value
    return kept


def _limit(sizes: list[int], room: int) -> int:
    """Return the largest size for each part with which all parts together fit into `room` bytes."""
    left = max(room, 0)
    ordered = sorted(sizes)
    for index, size in enumerate(ordered):
        share = left // (len(ordered) - index)
        if size > share:
            return share
        left -= size
    return left


def _beginning(value: Any, most: int) -> Any:
    """Return the beginning of a value of more than `most` bytes."""
    if isinstance(value, bytes):
        return value[:most]
    if isinstance(value, str):
        room = max(most - len(ELLIPSIS.encode()), 0)
        return value[:most].encode("utf-8", "replace")[:room].decode("utf-8", "ignore") + ELLIPSIS
    kept: list[Any] = []
    for item in cast("list[Any]", value):
        most -= bytes_of(item) + 9
        if most < 0:
            break
        kept.append(item)
    return kept

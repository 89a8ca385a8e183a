"""How spans enter a store, whichever it is: as plain data under ids that can be stored, or refused with one line."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from leyden.core.data.plain.reading import QUICK, OverLimits
from leyden.core.data.plain.span_sizes import shortened
from leyden.core.data.plain.spans import is_plain_span, plain_span, plain_spans
from leyden.core.data.plain.values import listed, shown
from leyden.core.data.span import MOST_BYTES, Span
from leyden.core.errors import CallRefused, UsageError, WrongType
from leyden.core.store.text import storable


class SpanTooLarge(CallRefused):
    """A span has more bytes than a store takes."""


MENDABLE = (UsageError, SpanTooLarge, RuntimeError)
"""What storing plain spans may raise for what they hold: numbers, characters, bytes; the last, where another thread
changes a span's attributes while they are counted."""


def too_large(span: Span) -> SpanTooLarge | None:
    """Return why a span cannot be stored that has too many bytes."""
    if 4 * span.size() <= MOST_BYTES or (size := span.bytes()) <= MOST_BYTES:  # a character has four bytes at most
        return None
    return SpanTooLarge(f"span {span.span_id} has {size} bytes; a span may have {MOST_BYTES}")


async def entered(given: Sequence[Any]) -> Sequence[Span]:
    """Return spans of plain data; raises UsageError for one without an identity.

    What takes long, or needs objects' own methods, is done on another thread.
    """
    spans: list[Any] = cast("list[Any]", given) if type(given) is list else await _listed(given)
    if all(map(is_plain_span, spans)):
        return storable(spans)
    try:
        return storable(plain_spans(spans, QUICK))
    except OverLimits:
        return storable(await asyncio.to_thread(plain_spans, spans))


async def _listed(spans: object) -> list[Any]:
    try:
        found = listed(spans, QUICK)
    except OverLimits:  # it is none of Python's own lists, whose members are there already
        found = await asyncio.to_thread(listed, spans)
    if found is None:
        raise WrongType(f"spans is {shown(spans)}; it must be a list of spans")
    return found


async def mended(spans: Sequence[Span], error: Exception) -> Sequence[Span]:
    """Return spans that were refused for what they hold, shortened; raises `error` where nothing can be done."""
    return await asyncio.to_thread(_mended, spans, error)


async def encoded(spans: Sequence[Span], encode: Callable[[Sequence[Span]], bytes]) -> tuple[Sequence[Span], bytes]:
    """Return spans as they can be stored, with what `encode`, which raises UsageError, makes of them."""
    spans = await entered(spans)
    try:
        for large in filter(None, map(too_large, spans)):
            raise large
        return spans, encode(spans)
    except MENDABLE as error:
        spans = await mended(spans, error)
        return spans, encode(spans)


async def ready(given: Sequence[Any]) -> list[Span]:
    """Return spans that can be sent on: of plain data, of text that can be encoded, and not too large."""
    spans, _ = await encoded(given, _encode)
    return [*spans]


def ready_now(span: Span) -> tuple[Span, int]:
    """Return a span that can be sent on, with its bytes; for a thread that may wait for an object's own methods.

    Raises UsageError for a span without an identity.
    """
    spans = storable(plain_spans([span]))
    try:
        for large in filter(None, map(too_large, spans)):
            raise large
        size = len(_encode(spans))
    except MENDABLE as error:
        spans = _mended(spans, error)
        size = len(_encode(spans))
    return spans[0], size


def _encode(spans: Sequence[Span]) -> bytes:
    try:
        return msgspec.msgpack.encode(spans)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise UsageError(f"a span cannot be encoded: {error}") from error


def _mended(spans: Sequence[Span], error: Exception) -> Sequence[Span]:
    kept = [plain_span(short) for span in spans if (short := shortened(span)) is not None]
    if len(kept) < len(spans) or kept == [*spans]:
        raise error
    return kept

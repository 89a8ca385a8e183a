"""Entry of spans into any store: converts spans to plain data with valid ids, or refuses them."""

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
    """A span has more bytes than a store accepts."""


MENDABLE = (UsageError, SpanTooLarge, RuntimeError)
"""Errors from storing plain spans that `mended` may correct: wrong numbers, characters, or too many bytes.

RuntimeError occurs where another thread changes a span's attributes while they are counted.
"""


def too_large(span: Span) -> SpanTooLarge | None:
    """Return the error for a span with too many bytes, otherwise None."""
    # UTF-8 has at most four bytes for a character
    if 4 * span.size() <= MOST_BYTES or (size := span.bytes()) <= MOST_BYTES:
        return None
    return SpanTooLarge(f"span {span.span_id} has {size} bytes; a span may have {MOST_BYTES}")


async def entered(given: Sequence[Any]) -> Sequence[Span]:
    """Return spans as plain data; raises UsageError for a span without an identity.

    Work that takes long, or calls objects' own methods, is done on another thread.
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
    except OverLimits:  # the value is no builtin list, tuple or set
        found = await asyncio.to_thread(listed, spans)
    if found is None:
        raise WrongType(f"spans is {shown(spans)}; it must be a list of spans")
    return found


async def mended(spans: Sequence[Span], error: Exception) -> Sequence[Span]:
    """Return shortened forms of spans refused for their content; raises `error` where that is not possible."""
    return await asyncio.to_thread(_mended, spans, error)


async def encoded(spans: Sequence[Span], encode: Callable[[Sequence[Span]], bytes]) -> tuple[Sequence[Span], bytes]:
    """Return spans in storable form with the result of `encode`, a function that may raise UsageError."""
    spans = await entered(spans)
    try:
        for large in filter(None, map(too_large, spans)):
            raise large
        return spans, encode(spans)
    except MENDABLE as error:
        spans = await mended(spans, error)
        return spans, encode(spans)


async def ready(given: Sequence[Any]) -> list[Span]:
    """Return spans that can be sent: plain data, text that can be encoded, and sizes within the limit."""
    spans, _ = await encoded(given, _encode)
    return [*spans]


def ready_now(span: Span) -> tuple[Span, int]:
    """Return a span that can be sent, with its size in bytes; for a thread that may wait for objects' own methods.

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

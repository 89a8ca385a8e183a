"""Streaming of large answers: the spans of a long query are sent while they are read page by page.

Invariant: a complete answer is a page as a single read would have returned it. Where new spans would shift those that
follow, the answer is cut off, and the client repeats the request.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from leyden.core.data.page import Page
from leyden.core.data.span import Span
from leyden.core.store.base import LightningStore

METHOD = "query_spans"
SPANS = 1024
"""Number of spans that are read at once."""
_TRIES = 10
"""Number of attempts to read two pages between which no span is added."""


class PagesShifted(Exception):
    """Spans were added between two pages, and shifted those that follow."""


async def small(store: LightningStore, call: Mapping[str, Any]) -> Page[Span] | None:
    """Return the answer to a call of `query_spans`; None where it has more than `SPANS` spans."""
    if not 0 <= call["limit"] <= SPANS:
        count = _wanted(await _read(store, call, call["offset"], 0), call)
        if count > SPANS:
            return None
    return await _read(store, call, call["offset"], call["limit"])


async def whole(store: LightningStore, call: Mapping[str, Any], *, json: bool) -> AsyncGenerator[bytes]:
    """Yield the encoded answer while it is read; raises PagesShifted when new spans have changed it."""
    encode = msgspec.json.encode if json else msgspec.msgpack.encode
    page, last = await _settled(store, call)
    count = _wanted(page, call)
    yield _head(count, json=json)
    sent, items = 0, page.items
    while True:
        parts = [encode(span) for span in items]
        sent += len(parts)
        if json:
            yield (b"," if sent > len(parts) else b"") + b",".join(parts)
        else:
            yield b"".join(parts)
        if sent >= count:
            break
        items = (await _read(store, call, page.offset + sent, min(SPANS, count - sent))).items
        if not items:
            raise PagesShifted
    if _key(items[-1]) != last:
        raise PagesShifted
    yield _tail(page, json=json)


async def _settled(store: LightningStore, call: Mapping[str, Any]) -> tuple[Page[Span], tuple[str, str]]:
    """Return the first page, and the key of the last span; any span added before that one would shift it."""
    for _ in range(_TRIES):
        page = await _read(store, call, call["offset"], SPANS)
        found = await _read(store, call, page.offset + _wanted(page, call) - 1, 1)
        if found.items and found.total == page.total:
            return msgspec.structs.replace(page, limit=call["limit"]), _key(found.items[0])
    raise PagesShifted


def _wanted(page: Page[Span], call: Mapping[str, Any]) -> int:
    """Return the number of spans in the answer; `page` is a part of it."""
    available = max(page.total - call["offset"], 0)
    return available if call["limit"] < 0 else min(call["limit"], available)


async def _read(store: LightningStore, call: Mapping[str, Any], offset: int, limit: int) -> Page[Span]:
    part: dict[str, Any] = {**call, "offset": offset, "limit": limit}
    return await store.query_spans(**part)


def _key(span: Span) -> tuple[str, str]:
    return span.attempt_id, span.span_id


def _head(count: int, *, json: bool) -> bytes:
    """Return the bytes before the first span: a page is a map whose first key is `items`."""
    if json:
        return b'{"items":['
    return b"\x84" + msgspec.msgpack.encode("items") + b"\xdd" + count.to_bytes(4, "big")


def _tail(page: Page[Span], *, json: bool) -> bytes:
    rest = {"limit": page.limit, "offset": page.offset, "total": page.total}
    if json:
        return b"]," + msgspec.json.encode(rest)[1:]
    return b"".join(msgspec.msgpack.encode(part) for pair in rest.items() for part in pair)

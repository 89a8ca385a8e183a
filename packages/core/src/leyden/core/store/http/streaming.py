"""Answers too large to be held: the spans of a long query, read page by page and sent while they are read.

Invariant: what arrives whole is a page as one read would have given it. Where spans come in between that would shift
those that follow, the answer is cut off, and the caller asks again. Knows nothing of HTTP.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from leyden.core.data.page import Page
from leyden.core.data.span import Span
from leyden.core.store.base import LightningStore

METHOD = "query_spans"
SPANS = 1024
"""Spans that are read at once."""
_TRIES = 10
"""For a moment in which no span comes in."""


class Shifted(Exception):
    """Spans came between two pages, and moved those that follow."""


async def small(store: LightningStore, call: Mapping[str, Any]) -> Page[Span] | None:
    """Return the answer to a call of `query_spans`; None where it has more spans than are read at once."""
    if not 0 <= call["limit"] <= SPANS:
        count = _wanted(await _read(store, call, call["offset"], 0), call)
        if count > SPANS:
            return None
    return await _read(store, call, call["offset"], call["limit"])


async def whole(store: LightningStore, call: Mapping[str, Any], *, json: bool) -> AsyncGenerator[bytes]:
    """Yield the answer, encoded, while it is read; raises Shifted when it can no longer be what it was."""
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
            raise Shifted
    if _key(items[-1]) != last:
        raise Shifted
    yield _tail(page, json=json)


async def _settled(store: LightningStore, call: Mapping[str, Any]) -> tuple[Page[Span], tuple[str, str]]:
    """The first page, and the span that must be the last: one that comes before it from now on moves it."""
    for _ in range(_TRIES):
        page = await _read(store, call, call["offset"], SPANS)
        found = await _read(store, call, page.offset + _wanted(page, call) - 1, 1)
        if found.items and found.total == page.total:
            return msgspec.structs.replace(page, limit=call["limit"]), _key(found.items[0])
    raise Shifted


def _wanted(page: Page[Span], call: Mapping[str, Any]) -> int:
    """How many spans the answer has, when `page` is a part of it."""
    there = max(page.total - call["offset"], 0)
    return there if call["limit"] < 0 else min(call["limit"], there)


async def _read(store: LightningStore, call: Mapping[str, Any], offset: int, limit: int) -> Page[Span]:
    part: dict[str, Any] = {**call, "offset": offset, "limit": limit}
    return await store.query_spans(**part)


def _key(span: Span) -> tuple[str, str]:
    return span.attempt_id, span.span_id


def _head(count: int, *, json: bool) -> bytes:
    """What stands before the first span: a page is a map, its items come first."""
    if json:
        return b'{"items":['
    return b"\x84" + msgspec.msgpack.encode("items") + b"\xdd" + count.to_bytes(4, "big")


def _tail(page: Page[Span], *, json: bool) -> bytes:
    rest = {"limit": page.limit, "offset": page.offset, "total": page.total}
    if json:
        return b"]," + msgspec.json.encode(rest)[1:]
    return b"".join(msgspec.msgpack.encode(part) for pair in rest.items() for part in pair)

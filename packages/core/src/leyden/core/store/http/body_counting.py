"""Counting of the values in a body before it is decoded, since a small body can stand for millions of objects.

Every count stops at `most`. Bodies that are cut off or malformed are counted as far as possible; the decoder refuses
them. In MessagePack and JSON a value has at least one byte, in Protocol Buffers a field at least two.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from leyden.core.store.http.long_work import yield_to_threads

Messages: TypeAlias = "Mapping[int, Messages]"
"""For a Protocol Buffers message: the numbers of its fields that hold messages, each with the same for that message."""

_MSGPACK_MAP16, _MSGPACK_MAP32 = 0xDE, 0xDF
_JSON_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{,:]', re.DOTALL)
_JSON_MARKS = (b"[", b"{", b",", b":")
_AT_ONCE = 4096
"""Number of steps that take about a millisecond."""
_VARINT, _LENGTH = 0, 2
_FIXED = {1: 8, 5: 4}
"""Sizes in bytes of values of the fixed-size kinds."""


def _msgpack_kind(tag: int) -> tuple[int, int, int]:
    """Return the layout of a value by its first byte: bytes that follow, size of a length field, and what it counts.

    The length counts bytes (0), items (1) or pairs (2). Where its size is 0, the third number is the number of items.
    """
    if 0x80 <= tag <= 0x9F:
        return 0, 0, (tag & 0x0F) * (2 if tag < 0x90 else 1)
    if 0xA0 <= tag <= 0xBF:
        return tag & 0x1F, 0, 0
    fixed = {0xCA: 4, 0xCB: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
    fixed |= {first + n: 1 << n for first in (0xCC, 0xD0) for n in range(4)}
    sized = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
    items = {0xDC: 2, 0xDD: 4, _MSGPACK_MAP16: 2, _MSGPACK_MAP32: 4}
    if tag in sized:
        return 0, sized[tag], 0
    if tag in items:
        return 0, items[tag], 2 if tag >= _MSGPACK_MAP16 else 1
    if 0xC7 <= tag <= 0xC9:  # the type is between the length and the bytes
        return 1, 1 << (tag - 0xC7), 0
    return fixed.get(tag, 0), 0, 0


_MSGPACK = [_msgpack_kind(tag) for tag in range(256)]


def msgpack_length(body: bytes) -> int | None:
    """Return the number of items of a body that is a list in MessagePack; None for any other body."""
    tag = body[0] if body else 0
    if 0x90 <= tag <= 0x9F:
        return tag & 0x0F
    size = {0xDC: 2, 0xDD: 4}.get(tag)
    return None if size is None else int.from_bytes(body[1 : 1 + size], "big")


def msgpack_values(body: bytes, most: int) -> int:
    """Return the number of values in a MessagePack body, keys and containers included.

    The declared number of items of a container counts as soon as the container begins.
    """
    at, count, left = 0, 0, 1
    while left:
        count += 1
        if count % _AT_ONCE == 0:
            yield_to_threads()
        if count + left - 1 > most or at >= len(body):
            return count + left - 1
        skip, size, items = _MSGPACK[body[at]]
        at += 1 + skip
        if size:
            number = int.from_bytes(body[at - skip : at - skip + size], "big")
            at += size
            if items:
                items *= number
            else:
                at += number
        left += items - 1
    return count


def json_values(body: bytes, most: int) -> int:
    """Return the number of brackets, colons and commas outside a JSON body's strings; each value has at least one."""
    if (count := sum(map(body.count, _JSON_MARKS))) <= most:  # some of them may be inside strings
        return count
    count = 0
    for n, found in enumerate(_JSON_TOKEN.finditer(body), start=1):
        count += found.end() - found.start() == 1
        if n % _AT_ONCE == 0:
            yield_to_threads()
        if count > most:
            break
    return count


def protobuf_messages(body: bytes, path: Sequence[int], most: int) -> int:
    """Return the number of messages at `path`, a sequence of field numbers; their content is not read."""
    messages: Messages = {}
    for number in reversed(path[:-1]):
        messages = {number: messages}
    return _walked(body, messages, most, depth=len(path) - 1, number=path[-1])


def protobuf_fields(body: bytes, messages: Messages, most: int) -> int:
    """Return the number of fields in a Protocol Buffers body, those of inner messages included."""
    return _walked(body, messages, most)


def _walked(body: bytes, messages: Messages, most: int, *, depth: int = 0, number: int = 0) -> int:
    """Count all fields or, with a `number`, those of this number at this depth."""
    at, end, known = 0, len(body), messages
    count = steps = 0
    outer: list[tuple[int, Messages]] = []
    try:
        while count <= most:
            steps += 1
            if steps % _AT_ONCE == 0:
                yield_to_threads()
            while at >= end:
                at = end
                if not outer:
                    return count
                end, known = outer.pop()
            key, at = _varint(body, at)
            count += not number or (key >> 3 == number and len(outer) == depth)
            kind = key & 7
            if kind == _LENGTH:
                size, at = _varint(body, at)
                inner = known.get(key >> 3)
                if inner is None:
                    at += size
                else:
                    outer.append((end, known))
                    end, known = min(at + size, end), inner
            elif kind == _VARINT:
                _, at = _varint(body, at)
            else:
                at += _FIXED.get(kind, 0)
    except IndexError:
        pass  # the body is cut off
    return count


def message_fields(descriptor: Any) -> Messages:
    """Return `Messages` of a Protocol Buffers descriptor, with one shared object per message type."""
    known: dict[str, dict[int, Any]] = {}

    def fields(of: Any) -> dict[int, Any]:
        if of.full_name not in known:
            known[of.full_name] = {}
            kinds = {field.number: field.message_type for field in of.fields if field.message_type is not None}
            known[of.full_name].update({number: fields(kind) for number, kind in kinds.items()})
        return known[of.full_name]

    return fields(descriptor)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a varint and the position after it; raises IndexError where the body ends before."""
    byte = body[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value, shift = byte & 0x7F, 7
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return value, at
        shift += 7

"""Counts what a body holds before anything is made of it: a small body can stand for millions of objects.

Every count goes no further than `most`. Bodies that are cut off or make no sense are counted as far as they go; it is
the decoder that refuses them. In MessagePack and JSON a value has one byte at least, in Protocol Buffers a field two.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from leyden.core.store.http.long_work import let_go

Messages: TypeAlias = "Mapping[int, Messages]"
"""Of a message of Protocol Buffers: the numbers of its fields that hold messages, with those of theirs."""

_MSGPACK_MAP16, _MSGPACK_MAP32 = 0xDE, 0xDF
_JSON_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{,:]', re.DOTALL)
_JSON_MARKS = (b"[", b"{", b",", b":")
_AT_ONCE = 4096
"""Steps that take a millisecond or so."""
_VARINT, _LENGTH = 0, 2
_FIXED = {1: 8, 5: 4}
"""Bytes of values of other kinds."""


def _msgpack_kind(tag: int) -> tuple[int, int, int]:
    """For the first byte of a value: bytes that follow it, size of the number behind it, and what that number is.

    It counts bytes (0), items (1) or pairs (2); without a number, what follows are items.
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
    if 0xC7 <= tag <= 0xC9:  # the type stands between the number and the bytes
        return 1, 1 << (tag - 0xC7), 0
    return fixed.get(tag, 0), 0, 0


_MSGPACK = [_msgpack_kind(tag) for tag in range(256)]


def msgpack_length(body: bytes) -> int | None:
    """How many items the list has that a body in MessagePack says it is; None where it is none."""
    tag = body[0] if body else 0
    if 0x90 <= tag <= 0x9F:
        return tag & 0x0F
    size = {0xDC: 2, 0xDD: 4}.get(tag)
    return None if size is None else int.from_bytes(body[1 : 1 + size], "big")


def msgpack_values(body: bytes, most: int) -> int:
    """Values in a body in MessagePack, keys and containers included. What containers say they hold counts at once."""
    at, count, left = 0, 0, 1
    while left:
        count += 1
        if count % _AT_ONCE == 0:
            let_go()
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
    """Brackets, colons and commas outside the strings of a body in JSON, of which every value has one at least."""
    if (count := sum(map(body.count, _JSON_MARKS))) <= most:  # some may be in strings
        return count
    count = 0
    for n, found in enumerate(_JSON_TOKEN.finditer(body), start=1):
        count += found.end() - found.start() == 1
        if n % _AT_ONCE == 0:
            let_go()
        if count > most:
            break
    return count


def protobuf_messages(body: bytes, path: Sequence[int], most: int) -> int:
    """How many messages are at `path`, the numbers of the fields that lead to them; nobody looks at what is in them."""
    messages: Messages = {}
    for number in reversed(path[:-1]):
        messages = {number: messages}
    return _walked(body, messages, most, depth=len(path) - 1, number=path[-1])


def protobuf_fields(body: bytes, messages: Messages, most: int) -> int:
    """Fields in a body of Protocol Buffers, those of the messages in it included."""
    return _walked(body, messages, most)


def _walked(body: bytes, messages: Messages, most: int, *, depth: int = 0, number: int = 0) -> int:
    """Count all fields or, with a `number`, those of this number at this depth."""
    at, end, known = 0, len(body), messages
    count = steps = 0
    around: list[tuple[int, Messages]] = []
    try:
        while count <= most:
            steps += 1
            if steps % _AT_ONCE == 0:
                let_go()
            while at >= end:
                at = end
                if not around:
                    return count
                end, known = around.pop()
            key, at = _varint(body, at)
            count += not number or (key >> 3 == number and len(around) == depth)
            kind = key & 7
            if kind == _LENGTH:
                size, at = _varint(body, at)
                inner = known.get(key >> 3)
                if inner is None:
                    at += size
                else:
                    around.append((end, known))
                    end, known = min(at + size, end), inner
            elif kind == _VARINT:
                _, at = _varint(body, at)
            else:
                at += _FIXED.get(kind, 0)
    except IndexError:
        pass  # it is cut off
    return count


def message_fields(descriptor: Any) -> Messages:
    """Return `Messages` of a descriptor of Protocol Buffers, the same object for the same kind of message."""
    known: dict[str, dict[int, Any]] = {}

    def fields(of: Any) -> dict[int, Any]:
        if of.full_name not in known:
            known[of.full_name] = {}
            kinds = {field.number: field.message_type for field in of.fields if field.message_type is not None}
            known[of.full_name].update({number: fields(kind) for number, kind in kinds.items()})
        return known[of.full_name]

    return fields(descriptor)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends; raises IndexError where the body ends before."""
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

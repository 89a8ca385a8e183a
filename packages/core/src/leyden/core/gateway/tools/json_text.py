"""Incremental JSON parser: strictly parses JSON (RFC 8259) that is still arriving, and returns it as written."""

import json
import re
from collections.abc import Callable
from typing import Final

import msgspec

from leyden.core.gateway.codec import ToolCall
from leyden.core.gateway.tools.cursor import Cursor, NotAToolCall, Reading

MAX_DEPTH: Final = 100
"""Deepest nesting of a call's arguments: no tool needs more, and agents' own JSON parsers fail on more."""
_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_HEX = re.compile(r"[0-9a-fA-F]")
_ATOM_CHARACTERS = re.compile(r"[-+.0-9A-Za-z]*")
_ATOM = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")


def read_object(cursor: Cursor, depth: int = 0) -> Reading[dict[str, str]]:
    """Parse an object; return the text of each member's value by name. The last value of a repeated name counts.

    Raises NotAToolCall if the text is not a JSON object.
    """
    yield from cursor.one_of("{")
    members: dict[str, str] = {}
    yield from _space(cursor)
    if (yield from cursor.peek()) == "}":
        cursor.position += 1
        return members
    while True:
        yield from _space(cursor)
        name: str = json.loads((yield from _string(cursor)))
        yield from _space(cursor)
        yield from cursor.one_of(":")
        members[name] = yield from _value(cursor, depth)
        if (yield from cursor.one_of(",", "}")) == "}":
            return members


def read_object_text(cursor: Cursor) -> Reading[str]:
    """Parse an object; return its text as written. Raises NotAToolCall if the text is not a JSON object."""
    begin = cursor.position
    yield from read_object(cursor)
    return cursor.text[begin : cursor.position]


def read_json_call(cursor: Cursor, *keys: str) -> Reading[ToolCall]:
    """Parse a call written as one object, with its `name` and its arguments (an object) under one of `keys`.

    Raises NotAToolCall for any other text.
    """
    members = yield from read_object(cursor)
    arguments = next((members[key] for key in keys if key in members), "")
    name = members.get("name", "")
    if not name.startswith('"') or not arguments.startswith("{"):
        raise NotAToolCall
    return ToolCall(name=call_name(json.loads(name)), arguments=arguments)


def call_name(name: str) -> str:
    """Return `name`; raises NotAToolCall if it is empty or contains an unpaired surrogate."""
    if not name or any("\ud800" <= char <= "\udfff" for char in name):
        raise NotAToolCall
    return name


def leading_object(text: str) -> str | None:
    """Return the text of the object at the beginning of `text`; None if there is none."""
    return _leading(text, read_object_text)


def leading_string(text: str) -> str | None:
    """Return the text of the string at the beginning of `text`, with its quotes; None if there is none."""
    return _leading(text, _string)


def is_json(text: str) -> bool:
    """Whether `text` is one JSON value."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _leading(text: str, read: Callable[[Cursor], Reading[str]]) -> str | None:
    cursor = Cursor(text, complete=True)
    reading = read(cursor)
    try:
        next(reading)
    except StopIteration as end:
        return end.value
    except NotAToolCall:
        return None
    raise AssertionError("the JSON text is already complete")


def _value(cursor: Cursor, depth: int) -> Reading[str]:
    """Parse a value and the white space around it; return the text of the value."""
    yield from _space(cursor)
    begin = cursor.position
    if depth == MAX_DEPTH:
        raise NotAToolCall
    match (yield from cursor.peek()):
        case '"':
            yield from _string(cursor)
        case "{":
            yield from read_object(cursor, depth + 1)
        case "[":
            yield from _array(cursor, depth + 1)
        case _:
            if _ATOM.fullmatch((yield from cursor.run(_ATOM_CHARACTERS))) is None:
                raise NotAToolCall
    end = cursor.position
    yield from _space(cursor)
    return cursor.text[begin:end]


def _array(cursor: Cursor, depth: int) -> Reading[None]:
    yield from cursor.one_of("[")
    yield from _space(cursor)
    if (yield from cursor.peek()) == "]":
        cursor.position += 1
        return
    while True:
        yield from _value(cursor, depth)
        if (yield from cursor.one_of(",", "]")) == "]":
            return


def _string(cursor: Cursor) -> Reading[str]:
    begin = cursor.position
    yield from cursor.one_of('"')
    while True:
        yield from cursor.run(_PLAIN)
        if (yield from cursor.one_of('"', "\\")) == '"':
            return cursor.text[begin : cursor.position]
        escape = yield from cursor.one_of(*'"\\/bfnrtu')
        for _ in range(4 if escape == "u" else 0):
            if _HEX.match((yield from cursor.peek())) is None:
                raise NotAToolCall
            cursor.position += 1


def _space(cursor: Cursor) -> Reading[None]:
    yield from cursor.run(_SPACE)

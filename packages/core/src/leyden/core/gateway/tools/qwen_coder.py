"""Qwen3-Coder tool family: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>`.

The format is that of the templates of Qwen3-Coder and of later Qwen models, for example
`examples/tool_chat_template_qwen3coder.jinja` of github.com/vllm-project/vllm. Values have no types in this format, so
a value is parsed by the tool's schema. The templates write one line break before and after each value. They write
values other than strings as JSON, and booleans and null as in Python or JSON. A value is a string if the schema has no
type or the value does not match it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from leyden.core.gateway.codec import Forced, ToolCall, ToolDefinition
from leyden.core.gateway.tools.cursor import Cursor, NotAToolCall, Reading
from leyden.core.gateway.tools.family import ToolFamily
from leyden.core.gateway.tools.json_text import is_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_NAME = re.compile(r"[^<>\s]*")
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def _read(cursor: Cursor, tools: Sequence[ToolDefinition]) -> Reading[None]:
    yield from cursor.one_of(OPEN)
    yield from cursor.space()
    yield from cursor.one_of(FUNCTION)
    name = yield from _name(cursor)
    schema, members = _properties(tools, name), dict[str, str]()
    while True:
        yield from cursor.space()
        if (yield from cursor.one_of(PARAMETER, END_FUNCTION)) == END_FUNCTION:
            break
        key = yield from _name(cursor)
        members[key] = _value((yield from cursor.until(END_PARAMETER)), schema.get(key))
    yield from cursor.space()
    yield from cursor.one_of(CLOSE)
    yield ToolCall(name=name, arguments=_object(members) + "}")


def _name(cursor: Cursor) -> Reading[str]:
    name = yield from cursor.run(_NAME)
    yield from cursor.one_of(">")
    if not name:
        raise NotAToolCall
    return name


def _opening(forced: Forced) -> str:
    return f"{OPEN}\n{FUNCTION}" + (f"{forced.name}>\n" if forced.name is not None else "")


def _salvage(text: str, forced: Forced) -> tuple[ToolCall, str]:
    """Return the call of a malformed forced answer, and the text after the call.

    If the answer was cut off, the arguments are also cut off JSON, so that they cannot look complete.
    """
    name, parameters = forced.name, text
    if name is None:
        name, _, parameters = text.partition(">")
    call, ended, rest = parameters.partition(CLOSE)
    *whole, last = call.split(END_PARAMETER)
    members = dict[str, str]()
    for parameter in whole:
        key, value = _split(parameter)
        members[key] = json.dumps(_trimmed(value), ensure_ascii=False)
    written = _object(members)
    if ended or END_FUNCTION in last:
        return ToolCall(name=name.strip(), arguments=written + "}"), rest
    if PARAMETER in last:
        key, value = _split(last)
        text_so_far = json.dumps(value.removeprefix("\n"), ensure_ascii=False)[:-1]
        written += (", " if members else "") + f"{json.dumps(key, ensure_ascii=False)}: {text_so_far}"
    return ToolCall(name=name.strip(), arguments=written), rest


def _split(parameter: str) -> tuple[str, str]:
    key, _, value = parameter.partition(PARAMETER)[2].partition(">")
    return key, value


def _object(members: Mapping[str, str]) -> str:
    """Return the JSON text of an object without its closing brace."""
    return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members.items())


def _value(text: str, schema: object) -> str:
    """Return the JSON of a parameter's value, with a type that its schema allows."""
    types, text = set(_types(schema)), _trimmed(text)
    written = _PYTHON.get(text, text)
    if written == "null" and "null" in types:
        return written
    if types and "string" not in types and is_json(written):
        return written.strip()
    return json.dumps(text, ensure_ascii=False)


def _trimmed(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


def _types(schema: object) -> Iterator[str]:
    """Yield the types that a JSON schema allows, including those in `anyOf` and `oneOf`."""
    if not isinstance(schema, dict):
        return
    known = cast("dict[str, Any]", schema)
    types: object = known.get("type")
    yield from [types] if isinstance(types, str) else cast("list[str]", types) if isinstance(types, list) else []
    for key in ("anyOf", "oneOf"):
        options: object = known.get(key)
        for option in cast("list[object]", options) if isinstance(options, list) else []:
            yield from _types(option)


def _properties(tools: Sequence[ToolDefinition], name: str) -> Mapping[str, object]:
    """Return the schemas of a tool's parameters by name; empty for an unknown tool or one without a schema."""
    for tool in tools:
        function = tool["function"]
        if function["name"] == name:
            parameters: object = function.get("parameters")
            found: object = cast("dict[str, Any]", parameters).get("properties") if isinstance(parameters, dict) else {}
            return cast("dict[str, object]", found) if isinstance(found, dict) else {}
    return {}


QWEN_CODER = ToolFamily(
    marks=(OPEN, CLOSE, FUNCTION, PARAMETER),
    read=_read,
    mark=OPEN,
    tokens=(OPEN, CLOSE),
    opening=_opening,
    salvage=_salvage,
)

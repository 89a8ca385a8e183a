"""Pythonic tool family of Llama 3.2 and 4: `[name(key=value), other()]`, optionally after `<|python_tag|>`.

The format is that of `examples/tool_chat_template_llama3.2_pythonic.jinja`, and of the template for Llama 4, in
github.com/vllm-project/vllm. Arguments are keyword arguments with literals of Python or JSON. A list without the tag,
at the beginning of an answer, contains calls only if their names are tools of the request.
"""

import ast
import json
import re
import warnings
from collections.abc import Sequence
from typing import Any

from leyden.core.gateway.codec import Forced, ToolCall, ToolDefinition
from leyden.core.gateway.tools.cursor import Cursor, NotAToolCall, Reading
from leyden.core.gateway.tools.family import ToolFamily
from leyden.core.gateway.tools.llama import TAG, one_call_a_message, passed_tag

MAX_DEPTH = 50
_NAME = re.compile(r"[\w.-]*")
_PLAIN = re.compile(r"[^\"'()\[\]{}]*")
_IN_STRING = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_JSON_NAMES: dict[str, object] = {"true": True, "false": False, "null": None}


def _read(cursor: Cursor, tools: Sequence[ToolDefinition]) -> Reading[None]:
    names = {tool["function"]["name"] for tool in tools}
    tagged = yield from passed_tag(cursor)
    yield from cursor.space()
    yield from cursor.one_of("[")
    while True:
        yield from cursor.space()
        name = yield from cursor.run(_NAME)
        yield from cursor.one_of("(")
        if not name or (not tagged and name not in names):
            raise NotAToolCall
        yield ToolCall(name=name, arguments=_arguments((yield from _until_closed(cursor))))
        yield from cursor.space()
        if (yield from cursor.one_of(",", "]")) == "]":
            return


def _until_closed(cursor: Cursor) -> Reading[str]:
    """Pass all text up to and including the closing bracket of the call; return the text before that bracket."""
    begin, open_brackets = cursor.position, [")"]
    while True:
        yield from cursor.run(_PLAIN)
        char = yield from cursor.peek()
        cursor.position += 1
        if char in _IN_STRING:
            yield from _pass_string(cursor, char)
        elif char in _CLOSERS:
            open_brackets.append(_CLOSERS[char])
            if len(open_brackets) > MAX_DEPTH:
                raise NotAToolCall
        elif char != open_brackets.pop():
            raise NotAToolCall
        elif not open_brackets:
            return cursor.text[begin : cursor.position - 1]


def _pass_string(cursor: Cursor, quote: str) -> Reading[None]:
    while True:
        yield from cursor.run(_IN_STRING[quote])
        if (yield from cursor.one_of(quote, "\\")) == quote:
            return
        yield from cursor.peek()
        cursor.position += 1


def _arguments(text: str) -> str:
    """Return the JSON of a call's keyword arguments; raises NotAToolCall if the text is anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ignores warnings about invalid escapes, which Python keeps as text
            call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            raise NotAToolCall
        values = {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords}
        if len(values) < len(call.keywords):
            raise NotAToolCall
        written = json.dumps(values, ensure_ascii=False, allow_nan=False)
        written.encode()  # fails for an unpaired surrogate
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise NotAToolCall from None
    return written


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _literal(value) for key, value in zip(keys, values, strict=True)}
        case _:
            raise NotAToolCall


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise NotAToolCall


def _opening(forced: Forced) -> str:
    return "[" if forced.name is None else f"[{forced.name}("


def _salvage(text: str, forced: Forced) -> tuple[ToolCall, str]:
    name, arguments = forced.name, text
    if name is None:
        name, _, arguments = text.partition("(")
    if arguments.rstrip().endswith(")]"):
        arguments = arguments.rstrip()[:-2]
    return ToolCall(name=name.strip(), arguments=arguments), ""


PYTHONIC = ToolFamily(
    marks=("[func_name1(params_name1=",),
    read=_read,
    mark=TAG,
    bare="[",
    tokens=(TAG,),
    opening=_opening,
    salvage=_salvage,
    messages=one_call_a_message,
)

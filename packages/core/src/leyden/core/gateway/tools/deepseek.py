"""DeepSeek tool family: calls between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`, each with its own marks.

V3 and R1 write `function<｜tool▁sep｜>NAME`, then the arguments as a fenced block of JSON. V3.1 writes
`NAME<｜tool▁sep｜>{...}`. The formats come from `examples/tool_chat_template_deepseekv3.jinja` and
`..._deepseekv31.jinja` of github.com/vllm-project/vllm.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from leyden.core.gateway.codec import Forced, ToolCall, ToolDefinition
from leyden.core.gateway.tools.call_grammar import CallSyntax
from leyden.core.gateway.tools.cursor import Cursor, Reading
from leyden.core.gateway.tools.family import ToolFamily
from leyden.core.gateway.tools.json_text import call_name, read_object_text
from leyden.core.gateway.tools.salvage import salvage_arguments

CALLS, END_CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, END_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
FENCE, END_FENCE = "```json", "```"
_WORD = re.compile(r"[^\s<`]*")


def _read(cursor: Cursor, tools: Sequence[ToolDefinition]) -> Reading[None]:
    yield from cursor.one_of(CALLS)
    yield from cursor.space()
    yield from cursor.one_of(CALL)
    while True:
        yield (yield from _read_one(cursor))
        yield from cursor.space()
        if (yield from cursor.one_of(CALL, END_CALLS)) == END_CALLS:
            return


def _read_one(cursor: Cursor) -> Reading[ToolCall]:
    name = yield from cursor.run(_WORD)
    yield from cursor.one_of(SEPARATOR)
    fenced = (yield from cursor.peek()) != "{"
    if fenced:
        name = yield from cursor.run(_WORD)
        yield from cursor.space()
        yield from cursor.one_of(FENCE)
        yield from cursor.space()
    arguments = yield from read_object_text(cursor)
    yield from cursor.space()
    if fenced:
        yield from cursor.one_of(END_FENCE)
        yield from cursor.space()
    yield from cursor.one_of(END_CALL)
    return ToolCall(name=call_name(name), arguments=arguments)


def _fenced_opening(forced: Forced) -> str:
    named = "" if forced.name is None else f"{forced.name}\n{FENCE}\n"
    return f"{CALLS}{CALL}function{SEPARATOR}{named}"


def _fenced_salvage(text: str, forced: Forced) -> tuple[ToolCall, str]:
    name, arguments = forced.name, text
    if name is None:
        name, _, arguments = text.partition(FENCE)
    return salvage_arguments(name.strip(), arguments, END_FENCE, END_CALL, END_CALLS, stop=END_FENCE)


def _plain_opening(forced: Forced) -> str:
    return f"{CALLS}{CALL}" + ("" if forced.name is None else f"{forced.name}{SEPARATOR}")


def _plain_salvage(text: str, forced: Forced) -> tuple[ToolCall, str]:
    name, arguments = forced.name, text
    if name is None:
        name, _, arguments = text.partition(SEPARATOR)
    return salvage_arguments(name.strip(), arguments, END_CALL, END_CALLS, stop=END_CALL)


DEEPSEEK = ToolFamily(
    marks=(CALLS, SEPARATOR, FENCE),
    read=_read,
    mark=CALLS,
    tokens=(CALLS, END_CALLS, CALL, END_CALL, SEPARATOR),
    opening=_fenced_opening,
    salvage=_fenced_salvage,
    syntax=CallSyntax(
        begin=CALLS,
        before=f"{CALL}function{SEPARATOR}",
        middle=f"\n{FENCE}\n",
        after=f"\n{END_FENCE}{END_CALL}",
        between="\n",
        end=END_CALLS,
        json_name=False,
    ),
)
"""Family of V3 and R1."""
DEEPSEEK_31 = replace(
    DEEPSEEK,
    marks=(CALLS, SEPARATOR),
    opening=_plain_opening,
    salvage=_plain_salvage,
    syntax=CallSyntax(
        begin=CALLS, before=CALL, middle=SEPARATOR, after=END_CALL, between="", end=END_CALLS, json_name=False
    ),
)
"""Family of V3.1."""

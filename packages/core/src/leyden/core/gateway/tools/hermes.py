"""Hermes tool family: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, also written by Qwen models.

The format is that of the templates of Qwen2.5, QwQ, Qwen3 and Hermes 2 Pro and 3, for example
`examples/tool_chat_template_hermes.jinja` of github.com/vllm-project/vllm.
"""

import json
from collections.abc import Sequence

from leyden.core.gateway.codec import Forced, ToolCall, ToolDefinition
from leyden.core.gateway.tools.call_grammar import CallSyntax
from leyden.core.gateway.tools.cursor import Cursor, Reading
from leyden.core.gateway.tools.family import ToolFamily
from leyden.core.gateway.tools.json_text import read_json_call
from leyden.core.gateway.tools.salvage import salvage_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def _read(cursor: Cursor, tools: Sequence[ToolDefinition]) -> Reading[None]:
    yield from cursor.one_of(OPEN)
    yield from cursor.space()
    call = yield from read_json_call(cursor, "arguments")
    yield from cursor.space()
    yield from cursor.one_of(CLOSE)
    yield call


def _opening(forced: Forced) -> str:
    if forced.name is None:
        return f'{OPEN}\n{{"name": "'
    return f'{OPEN}\n{{"name": {json.dumps(forced.name)}, "arguments":'


def _salvage(text: str, forced: Forced) -> tuple[ToolCall, str]:
    return salvage_json(text, forced, CLOSE, stop=CLOSE)


HERMES = ToolFamily(
    marks=(OPEN, CLOSE, '"arguments"'),
    read=_read,
    mark=OPEN,
    tokens=(OPEN, CLOSE),
    opening=_opening,
    salvage=_salvage,
    syntax=CallSyntax(before=f'{OPEN}\n{{"name": "', middle='", "arguments": ', after=f"}}\n{CLOSE}", between="\n"),
)

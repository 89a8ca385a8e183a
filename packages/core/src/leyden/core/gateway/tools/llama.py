"""Llama tool family: `{"name": ..., "parameters": {...}}`, optionally after `<|python_tag|>`, separated by `;`.

The format is that of the templates of Llama 3.1, 3.2, 3.3 and 4, for example
`examples/tool_chat_template_llama3.1_json.jinja` of github.com/vllm-project/vllm. A call without the tag, at the
beginning of an answer, looks like an answer in JSON. It counts as a call only if its name is a tool of the request. The
built-in tools (`name.call(...)` after the tag, Python code) are content.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from leyden.core.gateway.codec import Forced, Message, ToolCall, ToolDefinition
from leyden.core.gateway.tools.call_grammar import CallSyntax
from leyden.core.gateway.tools.cursor import Cursor, NotAToolCall, Reading
from leyden.core.gateway.tools.family import ToolFamily
from leyden.core.gateway.tools.json_text import read_json_call
from leyden.core.gateway.tools.salvage import salvage_json

TAG = "<|python_tag|>"
ONE_CALL = "only supports single tool-calls"
"""Text in templates that reject messages with several calls."""


def _read(cursor: Cursor, tools: Sequence[ToolDefinition]) -> Reading[None]:
    names = {tool["function"]["name"] for tool in tools}
    tagged = yield from passed_tag(cursor)
    while True:
        yield from cursor.space()
        call = yield from read_json_call(cursor, "parameters", "arguments")
        if not tagged and call.name not in names:
            raise NotAToolCall
        yield call
        yield from cursor.space()
        yield from cursor.one_of(";")


def passed_tag(cursor: Cursor) -> Reading[bool]:
    """Pass `<|python_tag|>` if it comes next; return whether it was there."""
    if (yield from cursor.peek()) != TAG[0]:
        return False
    yield from cursor.one_of(TAG)
    return True


def one_call_a_message(messages: list[Message], template: str) -> list[Message]:
    """Return messages with at most one call each, followed by its result, if the template rejects several calls."""
    if ONE_CALL not in template:
        return messages
    results = {message.get("tool_call_id"): message for message in messages if message["role"] == "tool"}
    split: list[Message] = []
    answered: set[object] = set()
    for message in messages:
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            split += [message] if message.get("tool_call_id") not in answered else []
            continue
        for call in calls:
            split.append({**message, "tool_calls": [call]})
            if call.get("id") in results:
                split.append(results[call["id"]])
                answered.add(call["id"])
    return split


def _opening(forced: Forced) -> str:
    return '{"name": "' if forced.name is None else f'{{"name": {json.dumps(forced.name)}, "parameters":'


def _salvage(text: str, forced: Forced) -> tuple[ToolCall, str]:
    return salvage_json(text, forced, ";")


LLAMA = ToolFamily(
    marks=("<|start_header_id|>", '"parameters": '),
    read=_read,
    mark=TAG,
    bare="{",
    tokens=(TAG,),
    opening=_opening,
    salvage=_salvage,
    syntax=CallSyntax(before='{"name": "', middle='", "parameters": ', after="}", between="; "),
    messages=one_call_a_message,
)
LLAMA_4 = replace(LLAMA, marks=("<|header_start|>", '"parameters": '))

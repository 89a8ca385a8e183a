"""Mistral tool family: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}`.

The formats come from Mistral's templates and from github.com/mistralai/mistral-common
(`tokens/tokenizers/instruct.py`). Up to tokenizer version 7, the calls are one list. From version 11, each call has its
own mark; in version 11, `[CALL_ID]id` follows the name. The name may also be directly before the object. The templates
accept only some orders of messages, so `mistral_messages` converts messages as mistral-common does.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace

from leyden.core.gateway.codec import Forced, Message, ToolCall, ToolDefinition
from leyden.core.gateway.tools.call_grammar import CallSyntax
from leyden.core.gateway.tools.cursor import Cursor, Reading
from leyden.core.gateway.tools.family import ToolFamily
from leyden.core.gateway.tools.json_text import call_name, read_json_call, read_object_text
from leyden.core.gateway.tools.salvage import salvage_arguments, salvage_json

MARK, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r'[^\s\[\]{}"]*')
_NINE = re.compile(r"[A-Za-z0-9]{9}")


def _read(cursor: Cursor, tools: Sequence[ToolDefinition]) -> Reading[None]:
    yield from cursor.one_of(MARK)
    yield from cursor.space()
    if (yield from cursor.peek()) == "[":
        yield from _read_list(cursor)
        return
    name = call_name((yield from cursor.run(_NAME)))
    if (yield from cursor.peek()) == "[" and (yield from cursor.one_of(CALL_ID, ARGS)) == CALL_ID:
        yield from cursor.run(_NAME)
        yield from cursor.one_of(ARGS)
    yield from cursor.space()
    yield ToolCall(name=name, arguments=(yield from read_object_text(cursor)))


def _read_list(cursor: Cursor) -> Reading[None]:
    yield from cursor.one_of("[")
    while True:
        yield from cursor.space()
        yield (yield from read_json_call(cursor, "arguments"))
        yield from cursor.space()
        if (yield from cursor.one_of(",", "]")) == "]":
            return


def mistral_messages(messages: list[Message], template: str) -> list[Message]:
    """Return messages in the form that Mistral's templates accept.

    All system messages move to the beginning. Consecutive messages of the same role (system, user or assistant) without
    tool calls become one. Ids of calls become nine letters and digits; the same id always becomes the same characters.
    """
    system = [message for message in messages if message["role"] == "system"]
    joined: list[Message] = []
    for message in [*system, *(message for message in messages if message["role"] != "system")]:
        last = joined[-1] if joined else {}
        same = message["role"] in ("system", "user", "assistant") and message["role"] == last.get("role")
        if same and not (message.get("tool_calls") or last.get("tool_calls")):
            joined[-1] = {**last, "content": f"{last['content']}\n\n{message['content']}"}
        else:
            joined.append(_with_ids(message))
    return joined


def _with_ids(message: Message) -> Message:
    message = dict(message)
    if message.get("tool_calls"):
        message["tool_calls"] = [{**call, "id": nine_characters(call.get("id"))} for call in message["tool_calls"]]
    if message["role"] == "tool":
        message["tool_call_id"] = nine_characters(message.get("tool_call_id"))
    return message


def nine_characters(call_id: object) -> str:
    """Return an id of nine letters and digits for a call's id; an id in this form stays unchanged."""
    text = str(call_id or "")
    return text if _NINE.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()[:9]


def _list_opening(forced: Forced) -> str:
    return f"{MARK} {_list_begin(forced)}"


def _tekken_opening(forced: Forced) -> str:
    return MARK + _list_begin(forced)


def _list_begin(forced: Forced) -> str:
    return '[{"name": "' if forced.name is None else f'[{{"name": {json.dumps(forced.name)}, "arguments":'


def _args_opening(forced: Forced) -> str:
    return MARK if forced.name is None else f"{MARK}{forced.name}{ARGS}"


def _call_id_opening(forced: Forced) -> str:
    return MARK if forced.name is None else f"{MARK}{forced.name}{CALL_ID}"


def _list_salvage(text: str, forced: Forced) -> tuple[ToolCall, str]:
    return salvage_json(text, forced, "]")


def _args_salvage(text: str, forced: Forced) -> tuple[ToolCall, str]:
    name, arguments = forced.name, text
    if name is None:
        name = re.split(r"[\[{]", text, maxsplit=1)[0]
        arguments = text[len(name) :]
    call_id, mark, after = arguments.partition(ARGS)
    if mark and "{" not in call_id:
        arguments = after
    return salvage_arguments(name.strip(), arguments)


_LIST_SYNTAX = CallSyntax(
    begin=f"{MARK} [", before='{"name": "', middle='", "arguments": ', after="}", between=", ", end="]"
)

MISTRAL = ToolFamily(
    marks=(f"{MARK} [",),
    read=_read,
    mark=MARK,
    tokens=(MARK, CALL_ID, ARGS),
    opening=_list_opening,
    salvage=_list_salvage,
    syntax=_LIST_SYNTAX,
    messages=mistral_messages,
)
"""Family of tokenizer versions 3 and 7 with SentencePiece."""
MISTRAL_TEKKEN = replace(
    MISTRAL, marks=(f"{MARK}[",), opening=_tekken_opening, syntax=replace(_LIST_SYNTAX, begin=f"{MARK}[")
)
"""Family of tokenizer versions 3 and 7 with Tekken, which write no space after the mark."""
MISTRAL_ARGS = replace(
    MISTRAL,
    marks=(MARK, ARGS),
    opening=_args_opening,
    salvage=_args_salvage,
    syntax=CallSyntax(before=MARK, middle=ARGS, after="", between="", json_name=False),
)
"""Family of tokenizer version 13."""
MISTRAL_CALL_ID = replace(
    MISTRAL_ARGS,
    marks=(MARK, CALL_ID, ARGS),
    opening=_call_id_opening,
    syntax=None,
)
"""Family of tokenizer version 11: the model writes the call's id itself, and the parser ignores the id."""

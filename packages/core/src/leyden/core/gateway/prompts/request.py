"""Prompt edits of a request: replaces its texts as a policy reads them, or in the body that an endpoint gets.

What the agent sent stays as it is: a policy's request is copied, and a body is written anew.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from leyden.core.data.prompts.matching import CallerEdits, ReplacedText
from leyden.core.data.prompts.places import (
    SYSTEM_ROLES,
    JoinedBy,
    PromptText,
    format_texts,
    joined_lines,
    joined_without_images,
    message_texts,
    never_joined,
    prompt_texts,
    system_texts,
    tool_texts,
)
from leyden.core.gateway.codec import Message
from leyden.core.gateway.limits.long_work import RequestWork
from leyden.core.gateway.model_request import UNREADABLE, ModelRequest, RecordedRequest, read_fields

_PLACES = ("user", *SYSTEM_ROLES)
_BYTES_FOR_ONE = 8
"""Bytes of a parsed request that take about as long to edit as one byte takes to be parsed and encoded.

Editing 64 kB takes less time than a thread takes to start.
"""


class _Head(msgspec.Struct, frozen=True):
    role: Any = None


@dataclass(frozen=True, slots=True)
class Replacement:
    """A text that was replaced, with the new one."""

    record: ReplacedText
    new: str


def edited_request(edits: CallerEdits, request: ModelRequest) -> tuple[ModelRequest, list[Replacement]]:
    """Return a request with the new texts, as a policy reads it, and what was replaced.

    The prompts of a request that has them repeated in its response are not replaced.
    """
    if request.prompts:
        return (request, []) if request.echo else _edited_prompts(edits, request)
    messages = [_copied(message) for message in request.messages]
    replaced = _replaced(edits, message_texts(messages))
    if replaced:
        request = _with(request, messages=messages, as_sent=_recorded(request, messages=messages))
    if "tool" not in edits.roles or not request.tools:
        return request, replaced
    tools: list[Any] = [{**tool, "function": {**tool["function"]}} for tool in request.tools]
    of_tools = _replaced(edits, tool_texts(tools))
    if of_tools:
        offered: list[Any] = msgspec.json.decode(request.as_sent.tools or "[]")
        new = {(one.record.place, one.record.own): one.new for one in of_tools}
        for found in tool_texts(offered):
            found.put(new.get((found.place, found.text), found.text))
        request = _with(request, tools=tools, as_sent=_recorded(request, tools=offered))
    return request, [*replaced, *of_tools]


async def edit_call(
    edits: CallerEdits, request: ModelRequest, size: int, work: RequestWork
) -> tuple[ModelRequest, list[ReplacedText]]:
    """Return a policy's request with the new texts, and the texts that the agent sent; see `edited_request`.

    A request with a body of very many bytes, `size`, is edited on a thread.
    """
    edited, replaced = await work.run(size // _BYTES_FOR_ONE, lambda: edited_request(edits, request))
    return edited, [one.record for one in replaced]


def edited_body(edits: CallerEdits, dialect: str, body: bytes) -> tuple[bytes, list[Replacement]]:
    """Return the body of a request with the new texts, for an endpoint, and what was replaced.

    `dialect` is the name of the body's API. Fields without a replaced text stay byte for byte. Raises Refusal if the
    body is no JSON object. A field that has another form than the API's is left for the endpoint to refuse.
    """
    fields = read_fields(body)
    replaced: list[Replacement] = []
    new: dict[str, object] = {}
    for name in fields.keys() & _FIELDS[dialect].keys():
        try:
            found, value = _FIELDS[dialect][name](edits, fields, name)
        except UNREADABLE:
            continue
        if found:
            replaced += found
            new[name] = value
    return (msgspec.json.encode({**fields, **new}), replaced) if new else (body, [])


def _edited_prompts(edits: CallerEdits, request: ModelRequest) -> tuple[ModelRequest, list[Replacement]]:
    prompts: list[Any] = list(request.prompts)
    replaced = _replaced(edits, list(prompt_texts(prompts)))
    return (_with(request, prompts=tuple(prompts)), replaced) if replaced else (request, [])


def _with(request: ModelRequest, **fields: Any) -> ModelRequest:
    return msgspec.structs.replace(request, **fields)


def _recorded(request: ModelRequest, **parts: list[Any]) -> RecordedRequest:
    texts = {name: msgspec.json.encode(part).decode() for name, part in parts.items()}
    return msgspec.structs.replace(request.as_sent, **texts)


def _replaced(edits: CallerEdits, texts: Iterable[PromptText]) -> list[Replacement]:
    return [Replacement(record, new) for _, record, new in edits.replace(texts)]


def _copied(message: Message) -> Message:
    """Return a message that can be changed, if it may have a component; else the message itself."""
    if message.get("role") not in _PLACES:
        return message
    content: Any = message.get("content")
    parts: list[Any] | None = content if isinstance(content, list) else None  # pyright: ignore[reportUnknownVariableType]  # any JSON
    return {**message, "content": content if parts is None else [{**part} for part in parts]}


_Found: TypeAlias = tuple[list[Replacement], object]
"""What was replaced in a field, and the new value of the field."""
_Field: TypeAlias = Callable[[CallerEdits, Mapping[str, msgspec.Raw], str], _Found]


def _messages(joined_by: JoinedBy, system: str | None = None) -> _Field:
    """Return the function for a list of messages; the field `system`, if the request has it, is a message before."""

    def read(edits: CallerEdits, fields: Mapping[str, msgspec.Raw], name: str) -> _Found:
        given = msgspec.json.decode(fields[name], type=list[msgspec.Raw])
        roles = [msgspec.json.decode(one, type=_Head).role for one in given]
        messages: list[Any] = [
            msgspec.json.decode(one) if role in _PLACES else {"role": role}
            for one, role in zip(given, roles, strict=True)
        ]
        has_system = system is not None and bytes(fields.get(system, b"null")) not in (b"null", b'""', b"[]")
        replaced = edits.replace(message_texts(messages, joined_by, first_system=int(has_system)))
        changed = {found.index for found, _, _ in replaced}
        value = [messages[index] if index in changed else one for index, one in enumerate(given)]
        return [Replacement(record, new) for _, record, new in replaced], value

    return read


_items = _messages(joined_without_images, "instructions")


def _input(edits: CallerEdits, fields: Mapping[str, msgspec.Raw], name: str) -> _Found:
    """Replace texts of a text or of items; not where they continue a conversation that the endpoint stores."""
    if any(bytes(fields.get(one, b"null")) != b"null" for one in ("previous_response_id", "conversation")):
        return [], None
    if not bytes(fields[name]).startswith(b'"'):
        return _items(edits, fields, name)
    message: Any = {"role": "user", "content": msgspec.json.decode(fields[name])}
    return _replaced(edits, message_texts([message])), message["content"]


def _system(joined_by: JoinedBy) -> _Field:
    def read(edits: CallerEdits, fields: Mapping[str, msgspec.Raw], name: str) -> _Found:
        holder: Any = {name: msgspec.json.decode(fields[name])}
        return _replaced(edits, system_texts(holder, name, joined_by)), holder[name]

    return read


def _tools(edits: CallerEdits, fields: Mapping[str, msgspec.Raw], name: str) -> _Found:
    if "tool" not in edits.roles:
        return [], None
    tools = msgspec.json.decode(fields[name], type=list[Any])
    return _replaced(edits, tool_texts(tools)), tools


def _format(edits: CallerEdits, fields: Mapping[str, msgspec.Raw], name: str) -> _Found:
    if "output" not in edits.roles:
        return [], None
    holder: Any = {name: msgspec.json.decode(fields[name])}
    return _replaced(edits, format_texts(holder)), holder[name]


def _prompts(edits: CallerEdits, fields: Mapping[str, msgspec.Raw], name: str) -> _Found:
    if bytes(fields.get("echo", b"null")) == b"true":
        return [], None
    given = msgspec.json.decode(fields[name], type=str | list[Any])
    prompts = [given] if isinstance(given, str) else given
    replaced = _replaced(edits, prompt_texts(prompts))
    return replaced, prompts[0] if isinstance(given, str) else prompts


_FIELDS: Mapping[str, Mapping[str, _Field]] = {
    "chat": {"messages": _messages(never_joined), "tools": _tools, "response_format": _format},
    "completions": {"prompt": _prompts},
    "responses": {"instructions": _system(never_joined), "input": _input, "tools": _tools, "text": _format},
    "messages": {"system": _system(joined_lines), "messages": _messages(joined_lines, "system"), "tools": _tools},
}
"""Functions for the fields of a request that have places for components, by the API's name."""

"""Content blocks of the Messages API: checks the blocks of a conversation, and converts it to chat messages."""

import re
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec

from leyden.core.gateway.anthropic.errors import not_available, wrong
from leyden.core.gateway.codec import Message
from leyden.core.gateway.codecs.messages import plain_text
from leyden.core.gateway.message_images import image_part
from leyden.core.gateway.model_request import UNREADABLE
from leyden.core.gateway.reasoning import unsealed
from leyden.core.gateway.refusal import Refusal

T = TypeVar("T")

REDACTED = "redacted_thinking: encrypted, so the policy cannot read it"
"""Reason for leaving a block of the agent out of the prompt."""
INVALID_JSON = "INVALID_JSON"
"""Only key of the `input` that stands for arguments which are not a JSON object; its value is their text."""

_TEXT_ONLY = {
    "document": "The policy reads only text. Send the document's content in a text block instead.",
    "search_result": "The policy reads only text. Send the result's content in a text block instead.",
    "browser_state": "The policy reads only text. Describe the page in a text block instead.",
    "container_upload": "The policy has no container. Send the file's content in a text block instead.",
    "tool_reference": "All tools of a request are in the prompt. List the tool in 'tools' instead.",
}
"""Blocks that hold more than text, with what to do instead."""
_SERVER_TOOL = re.compile(r"server_tool_use|mcp_tool_use|\w+_tool_result")
_IDS = re.compile(r"[^\s\x00-\x1f]{1,256}")
"""Ids of tool calls; the provider allows fewer, but a history may have those of another model, such as `Bash:0`."""
_ALLOWED = {
    "user": ("text", "image", "tool_result"),
    "result": ("text", "image"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
"""Types of blocks that the policy can read, by the role of their message, or in the result of a tool."""
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")


class _ImageSource(msgspec.Struct, frozen=True):
    """Fields of the source of an image that are read."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class Block(msgspec.Struct, frozen=True):
    """Fields of a content block that are read."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """JSON of the arguments, as it was sent; empty if it was not sent."""
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    source: dict[str, Any] | None = None
    is_error: bool | None = None


class TextBlock(msgspec.Struct, frozen=True):
    """Fields of a block of `system` that are read."""

    type: str
    text: str | None = None


class MessagesMessage(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


def chat_messages(system: str | Sequence[TextBlock] | None, messages: Sequence[MessagesMessage]) -> list[Message]:
    """Return a conversation in the format of Chat Completions.

    The text blocks of one message are joined with line breaks, except in answers of the assistant, where they are
    joined directly. The thinking of an answer becomes its `reasoning_content`. Raises Refusal for a block that the
    policy cannot read, for a tool call without a result in the next message, and for a result without its call.
    """
    found: list[Message] = []
    if system:
        found.append({"role": "system", "content": _system_text(system)})
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        location = f"messages.{index}"
        blocks = [Block("text", message.content)] if isinstance(message.content, str) else message.content
        for position, block in enumerate(blocks):
            _check_type(block, message.role, f"{location}.content.{position}")
        results = [n for n, block in enumerate(blocks) if block.type == "tool_result"]
        if open_calls and results != list(range(len(results))):
            raise _without_result(location, open_calls)
        for n in results:
            found.append(_result(blocks[n], open_calls, f"{location}.content.{n}"))
        if len(results) == len(blocks) and results:
            continue
        if open_calls:
            raise _without_result(location, open_calls)
        if message.role == "assistant":
            answer, open_calls = _answer(blocks, location)
            found.append(answer)
        else:
            found.append({"role": message.role, "content": _content(blocks, f"{location}.content", len(results))})
    if open_calls:
        raise _without_result(f"messages.{len(messages) - 1}", open_calls)
    return found


def clear_thinking(messages: Sequence[Message], turns: int) -> None:
    """Remove the `reasoning_content` of all but the last `turns` turns of the assistant that have any.

    A turn lasts from one message of the user to the next; results of tools do not end it.
    """
    kept, found = 0, False
    for message in reversed(messages):
        if message["role"] == "user":
            kept, found = kept + found, False
        elif "reasoning_content" in message:
            found = True
            if kept >= turns:
                del message["reasoning_content"]


def left_out(messages: Sequence[MessagesMessage]) -> list[str]:
    """Return the reasons why blocks are left out of the prompt; empty if the prompt has all blocks."""
    blocks = (block for message in messages if isinstance(message.content, list) for block in message.content)
    return [REDACTED] if any(block.type == "redacted_thinking" for block in blocks) else []


def _system_text(system: str | Sequence[TextBlock]) -> str:
    if isinstance(system, str):
        return system
    for index, block in enumerate(system):
        _check_type(block, "system", f"system.{index}")
        if block.text is None:
            raise wrong(f"system.{index}.text", "Field required")
    return "\n".join(block.text or "" for block in system)


def _check_type(block: Block | TextBlock, role: str, location: str) -> None:
    """Raise Refusal for a block that a message of this role cannot have, or that the policy cannot read."""
    if block.type in _ALLOWED[role]:
        return
    if block.type in _TEXT_ONLY:
        raise not_available(location, f"blocks of type '{block.type}' are not available. {_TEXT_ONLY[block.type]}")
    if _SERVER_TOOL.fullmatch(block.type) and block.type != "tool_result":
        raise not_available(
            location,
            f"blocks of type '{block.type}' are not available, because they belong to tools that run on the provider's "
            "servers. Leave the block out, or give its content as the result of a tool that the agent runs.",
        )
    expected = ", ".join(f"'{name}'" for name in _ALLOWED[role])
    raise wrong(
        location,
        f"Input tag '{block.type}' found using 'type' does not match any of the expected tags of a message with the "
        f"role '{role}': {expected}",
    )


def _answer(blocks: Sequence[Block], location: str) -> tuple[Message, list[str]]:
    """Return an answer of the assistant, and the ids of its tool calls."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for position, block in enumerate(blocks):
        where = f"{location}.content.{position}"
        match block.type:
            case "text":
                texts.append(_required(block.text, f"{where}.text"))
            case "thinking":
                thoughts.append(_required(block.thinking, f"{where}.thinking") or unsealed(block.signature or "") or "")
            case "tool_use":
                calls.append(_call(block, where))
            case _:
                continue
    answer: Message = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    if any(thoughts):
        answer["reasoning_content"] = "\n".join(filter(None, thoughts))
    if calls:
        answer["tool_calls"] = calls
    return answer, [call["id"] for call in calls]


def _call(block: Block, location: str) -> dict[str, Any]:
    if not bytes(block.input):
        raise wrong(f"{location}.input", "Field required")
    arguments = arguments_of(block.input)
    if arguments is None:
        raise wrong(f"{location}.input", "Input should be a valid dictionary")
    function = {"name": _required(block.name, f"{location}.name"), "arguments": arguments}
    return {"id": _id(block.id, f"{location}.id"), "type": "function", "function": function}


def arguments_of(given: msgspec.Raw) -> str | None:
    """Return the arguments of a tool call as text; None if `given` is not the JSON of an object.

    An object with the only key `INVALID_JSON` becomes the text in it, which the policy wrote as its arguments.
    """
    try:
        value: object = msgspec.json.decode(given)
    except UNREADABLE:
        return None
    if not isinstance(value, dict):
        return None
    text: object = value.get(INVALID_JSON) if len(value) == 1 else None  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType, reportUnknownMemberType]  # any JSON
    return text if isinstance(text, str) else bytes(given).decode()


def _result(block: Block, open_calls: list[str], location: str) -> Message:
    """Return the result of a tool call, and remove the call from `open_calls`.

    The text of a failed call begins with `Error: ` unless the text itself contains the word.
    """
    call_id = _id(block.tool_use_id, f"{location}.tool_use_id")
    if call_id not in open_calls:
        raise wrong(
            location,
            f"unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each `tool_result` block must have a "
            "corresponding `tool_use` block in the previous message.",
        )
    open_calls.remove(call_id)
    content = block.content or ""
    if not isinstance(content, str):
        for position, part in enumerate(content):
            _check_type(part, "result", f"{location}.content.{position}")
        content = _content(content, f"{location}.content")
    if block.is_error and "error" not in plain_text(content).lower():
        content = f"Error: {content}".rstrip() if isinstance(content, str) else [_text_part("Error: "), *content]
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _content(blocks: Sequence[Block], location: str, start: int = 0) -> str | list[dict[str, Any]]:
    """Return the content of a chat message: its texts joined with line breaks, or with images a list of parts."""
    parts: list[str | dict[str, Any]] = []
    for n in range(start, len(blocks)):
        if blocks[n].type == "image":
            parts.append(_image(blocks[n], f"{location}.{n}"))
            continue
        text = _required(blocks[n].text, f"{location}.{n}.text")
        if parts and isinstance(parts[-1], str):
            parts[-1] += f"\n{text}"
        else:
            parts.append(text)
    if not any(isinstance(part, dict) for part in parts):
        return "".join(part for part in parts if isinstance(part, str))
    return [_text_part(part) if isinstance(part, str) else part for part in parts]


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(block: Block, location: str) -> dict[str, Any]:
    try:
        source = msgspec.convert(_required(block.source, f"{location}.source"), _ImageSource)
    except msgspec.ValidationError as error:
        raise wrong(f"{location}.source", str(error)) from None
    if source.type == "url":
        return image_part(_required(source.url, f"{location}.source.url"))
    if source.type != "base64":
        raise not_available(
            f"{location}.source",
            f"images of the type '{source.type}' are not available. Send the file itself, with the type 'base64'.",
        )
    if source.media_type not in _IMAGES:
        expected = " or ".join(f"'{kind}'" for kind in _IMAGES)
        raise wrong(f"{location}.source.base64.media_type", f"Input should be {expected}")
    data = _required(source.data, f"{location}.source.base64.data")
    return image_part(f"data:{source.media_type};base64,{data}")


def _id(value: str | None, location: str) -> str:
    if not _IDS.fullmatch(given := _required(value, location)):
        raise wrong(location, "String should match pattern '^[a-zA-Z0-9_-]+$'")
    return given


def _required(value: T | None, location: str) -> T:
    if value is None:
        raise wrong(location, "Field required")
    return value


def _without_result(location: str, open_calls: Sequence[str]) -> Refusal:
    return wrong(
        location,
        f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(open_calls)}. Each "
        "`tool_use` block must have a corresponding `tool_result` block in the next message.",
    )

"""Items of the Responses API: parses and checks the items of a conversation, and converts them to chat messages.

Every item has the format in which the provider returns it. So the same code reads stored items, listed items, and items
that an agent sends back.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, TypeAlias, TypeVar

import msgspec

from leyden.core.gateway.codec import Message
from leyden.core.gateway.message_images import image_part
from leyden.core.gateway.reasoning import sealed, unsealed
from leyden.core.gateway.refusal import Refusal, invalid, unsupported

T = TypeVar("T")

Item: TypeAlias = dict[str, Any]
"""One item in the provider's format."""

REASONING = "reasoning: another model's, which the policy cannot read"
"""Reason for leaving an item of the agent out of the prompt."""
ROLES = ("user", "assistant", "system", "developer")
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class ItemFields(msgspec.Struct, frozen=True):
    """Fields of an item that are read."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[_Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[_Part] | None = None


def item_id(kind: str, response_id: str, position: str) -> str:
    """Return the id of an item; a hash of the response's id and the item's place, so it is always the same."""
    return f"{_PREFIXES[kind]}_{blake2b(f'{response_id}/{position}'.encode(), digest_size=25).hexdigest()}"


def text_part(text: str, logprobs: Sequence[object] = ()) -> Item:
    """Return a text part of an assistant's message."""
    return {"type": "output_text", "annotations": [], "logprobs": list(logprobs), "text": text}


def message_item(role: str, content: list[Item], status: str = "completed") -> Item:
    """Return a message item with these parts."""
    return {"type": "message", "status": status, "content": content, "role": role}


def call_item(call_id: str, name: str, arguments: str, status: str = "completed") -> Item:
    """Return an item of a tool call."""
    return {"type": "function_call", "status": status, "arguments": arguments, "call_id": call_id, "name": name}


def reasoning_item(text: str, status: str = "completed", *, with_copy: bool = False) -> Item:
    """Return an item of the policy's reasoning; `with_copy`, with an opaque copy of it as `encrypted_content`."""
    content = [reasoning_part(text)] if text else []
    item = {"type": "reasoning", "summary": [], "content": content, "status": status}
    return item | ({"encrypted_content": sealed(text) if text else None} if with_copy else {})


def reasoning_part(text: str) -> Item:
    """Return the only part of an item of reasoning."""
    return {"type": "reasoning_text", "text": text}


def reasoning_of(item: Item) -> str:
    """Return the text of an item of the policy's reasoning; empty for another model's.

    Agents that do not store answers often keep `encrypted_content` alone.
    """
    content: object = item.get("content")
    try:
        parts = msgspec.convert(content or [], list[_Part])
        copy = msgspec.convert(item.get("encrypted_content"), str | None)
    except msgspec.ValidationError:
        return ""
    text = "".join(part.text or "" for part in parts if part.type == "reasoning_text")
    return text or (unsealed(copy) if copy else None) or ""


def read_items(given: str | list[Item]) -> list[Item]:
    """Return an agent's input as items; raises Refusal for invalid or unsupported items.

    References to earlier items stay references; the dialect replaces them with the items from `state.Conversations`.
    """
    if isinstance(given, str):
        return [message_item("user", [{"type": "input_text", "text": given}])]
    return [_read(item, f"input[{index}]") for index, item in enumerate(given)]


def _read(given: Item, where: str) -> Item:
    """Parse one item; its id stays the same."""
    item = msgspec.convert(given, ItemFields)
    kind = item.type or ("message" if item.role else "item_reference")
    known = {} if item.id is None else {"id": item.id}
    match kind:
        case "message":
            return known | _message(item, where)
        case "function_call":
            name, arguments = _required(item.name, f"{where}.name"), _required(item.arguments, f"{where}.arguments")
            return known | call_item(_required(item.call_id, f"{where}.call_id"), name, arguments)
        case "function_call_output":
            call_id, output = _required(item.call_id, f"{where}.call_id"), _required(item.output, f"{where}.output")
            read = output if isinstance(output, str) else _parts(output, "user", f"{where}.output")
            return known | {"type": kind, "status": "completed", "call_id": call_id, "output": read}
        case "reasoning":
            return given
        case "item_reference":
            return {"type": kind, "id": _required(item.id, f"{where}.id")}
        case _:
            raise unsupported(where, f"is an item of type '{kind}', which is not available.")


def _message(item: ItemFields, where: str) -> Item:
    role, content = _required(item.role, f"{where}.role"), _required(item.content, f"{where}.content")
    if role not in ROLES:
        supported = ", ".join(f"'{name}'" for name in ROLES)
        raise invalid(f"Invalid value: '{role}'. Supported values are: {supported}.", f"{where}.role")
    if isinstance(content, str):
        content = [_Part("output_text" if role == "assistant" else "input_text", content)]
    return message_item(role, _parts(content, role, f"{where}.content"))


def _parts(parts: list[_Part], role: str, where: str) -> list[Item]:
    """Return the parts of a message or of a tool's output; raises Refusal for parts that are no text or image."""
    read: list[Item] = []
    for index, part in enumerate(parts):
        if part.type == "refusal":
            text = _required(part.refusal, f"{where}[{index}].refusal")
            read.append({"type": "refusal", "refusal": text})
        elif part.type in ("input_text", "output_text"):
            text = _required(part.text, f"{where}[{index}].text")
            read.append(text_part(text) if role == "assistant" else {"type": "input_text", "text": text})
        elif part.type == "input_image" and role == "user":
            read.append(_image(part, f"{where}[{index}]"))
        elif part.type.startswith(("input_", "computer_")):
            readable = "only text and images can be read" if role == "user" else "only text can be read"
            raise unsupported(f"{where}[{index}]", f"is a part of type '{part.type}'; {readable}.")
        else:
            supported = "'input_text', 'output_text' and 'refusal'"
            message = f"Invalid value: '{part.type}'. Supported values are: {supported}."
            raise invalid(message, f"{where}[{index}]")
    return read


def _image(part: _Part, where: str) -> Item:
    if part.file_id is not None:
        raise unsupported(f"{where}.file_id", "names a file of the provider; send the image as a data URL instead.")
    url = _required(part.image_url, f"{where}.image_url")
    return {"type": "input_image", "detail": part.detail or "auto", "file_id": None, "image_url": url}


def _required(value: T | None, where: str) -> T:
    if value is None:
        message = f"Missing required parameter: '{where}'."
        raise Refusal(400, message, param=where, code="missing_required_parameter")
    return value


def check_calls(items: Sequence[Item]) -> None:
    """Raise Refusal for a conversation with a tool output without an earlier call, or a call without an output."""
    calls: set[str] = set()
    answered: set[str] = set()
    for item in items:
        if item["type"] == "function_call":
            calls.add(item["call_id"])
        elif item["type"] == "function_call_output":
            if item["call_id"] not in calls:
                message = f"No tool call found for function call output with call_id {item['call_id']}."
                raise Refusal(400, message, param="input")
            answered.add(item["call_id"])
    for call_id in sorted(calls - answered):
        raise Refusal(400, f"No tool output found for function call {call_id}.", param="input")


def left_out(items: Sequence[Item]) -> list[str]:
    """Return the reasons why items are left out of the prompt; empty if the prompt has all items."""
    foreign = any(item["type"] == "reasoning" and not reasoning_of(item) for item in items)
    return [REASONING] if foreign else []


def chat_messages(items: Sequence[Item]) -> list[Message]:
    """Return a conversation as messages of Chat Completions.

    Consecutive texts and tool calls of the assistant become one message, with the reasoning before them. A text
    directly after a text without tool calls starts a new message.
    """
    messages: list[Message] = []
    answer: Message | None = None
    for item in items:
        match item["type"]:
            case "reasoning" if text := reasoning_of(item):
                answer = {"role": "assistant", "content": None, "reasoning_content": text}
                messages.append(answer)
            case "message" if item["role"] == "assistant":
                if answer is not None and ("tool_calls" in answer or answer["content"] is None):
                    answer["content"] = (answer["content"] or "") + _text(item["content"])
                else:
                    answer = {"role": "assistant", "content": _text(item["content"])}
                    messages.append(answer)
            case "message":
                answer = None
                messages.append({"role": item["role"], "content": _content(item["content"])})
            case "function_call":
                if answer is None:
                    answer = {"role": "assistant", "content": None}
                    messages.append(answer)
                function = {"name": item["name"], "arguments": item["arguments"]}
                calls = answer.setdefault("tool_calls", [])
                calls.append({"id": item["call_id"], "type": "function", "function": function})
            case "function_call_output":
                answer = None
                output = item["output"] if isinstance(item["output"], str) else _content(item["output"])
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
            case _:
                continue
    return [_whole(message) for message in messages]


def _whole(message: Message) -> Message:
    """Return a message with empty content where an answer was cut off in its reasoning."""
    is_empty = message["content"] is None and "tool_calls" not in message
    return {**message, "content": ""} if is_empty else message


def _content(parts: list[Item]) -> str | list[Item]:
    """Return the content of a chat message: a text, or with images its parts."""
    if not any(part["type"] == "input_image" for part in parts):
        return _text(parts)
    return [
        image_part(part["image_url"], detail=part["detail"])
        if part["type"] == "input_image"
        else {"type": "text", "text": _text([part])}
        for part in parts
    ]


def _text(parts: list[Item]) -> str:
    return "".join(part.get("text") or part.get("refusal") or "" for part in parts)

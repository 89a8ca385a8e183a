"""Chat messages: converts OpenAI's chat messages to the plain format that chat templates expect.

The content of a message is one text. If it has images, or if the template accepts nothing else, it is a list of parts:
`{"type": "text", "text": ...}` and `{"type": "image"}`, as templates of vision-language models expect it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from leyden.core.gateway.codec import Message
from leyden.core.gateway.message_images import IMAGE
from leyden.core.gateway.reasoning import FIELDS

_ROLES = {"developer": "system"}


def plain_messages(
    messages: Sequence[Message], *, arguments_as_text: bool = False, always_parts: bool = False
) -> list[Message]:
    """Return the messages with content as one string and tool arguments as objects, as templates expect them.

    Text parts are joined, and missing content becomes the empty string. JSON text in `tool_calls[].function.arguments`
    is decoded if it is an object. The role `developer` becomes `system`. The reasoning of an answer is in the field
    `reasoning_content`, whichever field the agent sent it in. With `arguments_as_text`, the arguments stay JSON text,
    for the few templates that need it. With `always_parts`, every content is a list of parts.
    """
    return [_plain(message, as_text=arguments_as_text, always_parts=always_parts) for message in messages]


def plain_text(content: Any) -> str:
    """Return the text of a message's content, which is a string, a list of text parts, or None."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts: list[Mapping[str, Any]] = content
    return "".join(part.get("text") or part.get("refusal") or "" for part in parts)


def _plain(message: Message, *, as_text: bool, always_parts: bool) -> Message:
    plain = {key: value for key, value in message.items() if value is not None}
    plain["role"] = _ROLES.get(message["role"], message["role"])
    plain["content"] = _content(message.get("content"), always_parts=always_parts)
    if reasoning := reasoning_of(message):
        plain[FIELDS[0]] = reasoning
    else:
        plain.pop(FIELDS[0], None)
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call, as_text=as_text) for call in plain["tool_calls"]]
    else:
        plain.pop("tool_calls", None)
    return plain


def _content(content: Any, *, always_parts: bool) -> str | list[dict[str, str]]:
    text: list[Mapping[str, Any]] = [{"type": "text", "text": content or ""}]
    parts = cast("list[Mapping[str, Any]]", content) if isinstance(content, list) else text
    if not always_parts and not any(part.get("type") == IMAGE for part in parts):
        return plain_text(content)
    return [
        {"type": "image"} if part.get("type") == IMAGE else {"type": "text", "text": plain_text([part])}
        for part in parts
    ]


def reasoning_of(message: Message) -> str:
    """Return the reasoning of an assistant's message; empty if it has none."""
    if message.get("role") != "assistant":
        return ""
    found = (message.get(field) for field in FIELDS)
    return next((text for text in found if isinstance(text, str) and text), "")


def _plain_call(call: Mapping[str, Any], *, as_text: bool) -> dict[str, Any]:
    function: Mapping[str, Any] = call["function"]
    arguments: object = function.get("arguments")
    arguments = arguments if as_text else _arguments(arguments)
    # The name comes first, as models write it: clients send any order, and some templates render the whole object.
    return {**call, "function": {"name": function["name"], **function, "arguments": arguments}}


def _arguments(arguments: Any) -> Any:
    """Decode JSON text of an object; empty text becomes an empty object, and any other value stays unchanged."""
    if not isinstance(arguments, str):
        return arguments
    try:
        decoded = msgspec.json.decode(arguments if arguments.strip() else "{}")
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return decoded if isinstance(decoded, dict) else arguments  # pyright: ignore[reportUnknownVariableType]  # JSON object

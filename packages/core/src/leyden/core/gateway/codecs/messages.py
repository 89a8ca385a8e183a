"""OpenAI's chat messages → the plain form chat templates are written for. Knows nothing of any one template."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from leyden.core.gateway.codec import Message

_ROLES = {"developer": "system"}


def plain_messages(messages: Sequence[Message], *, arguments_as_text: bool = False) -> list[Message]:
    """Return messages whose content is one string and whose tool arguments are objects.

    Templates are written against that form: text parts are joined, absent content is empty, JSON text in
    `tool_calls[].function.arguments` is decoded where it holds an object, and a developer speaks as the system.
    The few templates that want the JSON text itself get it by `arguments_as_text`.
    """
    return [_plain(message, as_text=arguments_as_text) for message in messages]


def plain_text(content: Any) -> str:
    """Text of a message's content: a string, a list of text parts, or None."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts: list[Mapping[str, Any]] = content
    return "".join(part.get("text") or part.get("refusal") or "" for part in parts)


def _plain(message: Message, *, as_text: bool) -> Message:
    plain = {key: value for key, value in message.items() if value is not None}
    plain["role"] = _ROLES.get(message["role"], message["role"])
    plain["content"] = plain_text(message.get("content"))
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call, as_text=as_text) for call in plain["tool_calls"]]
    else:
        plain.pop("tool_calls", None)
    return plain


def _plain_call(call: Mapping[str, Any], *, as_text: bool) -> dict[str, Any]:
    function: Mapping[str, Any] = call["function"]
    arguments: object = function.get("arguments")
    arguments = arguments if as_text else _arguments(arguments)
    # Name first, as models write it: clients send the two in any order, and some templates render the whole object.
    return {**call, "function": {"name": function["name"], **function, "arguments": arguments}}


def _arguments(arguments: Any) -> Any:
    """Decode JSON text that holds an object, or nothing at all; anything else stays what the agent sent."""
    if not isinstance(arguments, str):
        return arguments
    try:
        decoded = msgspec.json.decode(arguments if arguments.strip() else "{}")
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return decoded if isinstance(decoded, dict) else arguments  # pyright: ignore[reportUnknownVariableType]  # JSON object

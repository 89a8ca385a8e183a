"""Recorded messages of both API dialects: reads them as far as possible."""

from typing import Any, NamedTuple, cast

import msgspec


class ToolRequest(NamedTuple):
    """A tool call, as a model wrote it."""

    call_id: str | None
    tool: str
    arguments: str | None


def read_messages(recorded: object) -> list[dict[str, Any]]:
    """Return the messages or response items that the agent sent or received; empty for anything else."""
    try:
        decoded = msgspec.json.decode(recorded) if isinstance(recorded, str | bytes) else None
    except (msgspec.DecodeError, RecursionError):
        return []
    return objects(decoded)


def objects(value: object) -> list[dict[str, Any]]:
    """Return the members of a list that are objects."""
    members = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", member) for member in members if isinstance(member, dict)]


def text_of(content: object) -> str:
    """Return a message's text: a string, or the joined strings of its parts."""
    if isinstance(content, str):
        return content
    texts = (part.get("text") or part.get("refusal") for part in objects(content))
    return "".join(text for text in texts if isinstance(text, str))


def tool_requests(messages: list[dict[str, Any]]) -> list[ToolRequest]:
    """Return the tool calls that a model wrote: in assistant messages, or items of type `function_call`."""
    found: list[ToolRequest] = []
    for message in messages:
        if message.get("type") == "function_call":
            found.append(_request(message.get("call_id"), message))
        for call in objects(message.get("tool_calls")):
            function = call.get("function")
            if isinstance(function, dict):
                found.append(_request(call.get("id"), cast("dict[str, Any]", function)))
    return found


def tool_results(messages: list[dict[str, Any]]) -> dict[str, str]:
    """Return call id to the last result in a conversation: from tool messages, or items of a call's output."""
    found: dict[str, str] = {}
    for message in messages:
        if message.get("role") == "tool":
            call_id, content = message.get("tool_call_id"), message.get("content")
        elif message.get("type") == "function_call_output":
            call_id, content = message.get("call_id"), message.get("output")
        else:
            continue
        if isinstance(call_id, str):
            found[call_id] = text_of(content)
    return found


def _request(call_id: object, function: dict[str, Any]) -> ToolRequest:
    name, arguments = function.get("name"), function.get("arguments")
    return ToolRequest(
        call_id if isinstance(call_id, str) else None,
        name if isinstance(name, str) else "",
        arguments if isinstance(arguments, str) else None,
    )

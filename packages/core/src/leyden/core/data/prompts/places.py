"""Prompt texts of a request: finds the texts at the places where prompt components can be, and replaces them.

These are the messages of the system and the developer, the user's messages before the first answer, the descriptions
of tools and of the format of an answer, and the prompts of Completions. Answers and results of tools are none of them.
A request has the form of Chat Completions here, in which the gateway also records calls, or that of its own API.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from leyden.core.data.prompts.edits import PromptPlace, Role

Put: TypeAlias = Callable[[str], None]
Json: TypeAlias = dict[str, Any]

JoinedBy: TypeAlias = Callable[[Sequence[Any]], str | None]

SYSTEM_ROLES = ("system", "developer")
"""Roles of which every message is a place for a component."""
_TEXT_TYPES = ("text", "input_text")


class PromptText(msgspec.Struct, frozen=True):
    """One text of a request."""

    place: PromptPlace
    text: str
    put: Put
    """Function that replaces the text; it changes the object in which the text was found."""
    index: int = 0
    """Index of its message among the messages of the request."""


def never_joined(parts: Sequence[Any]) -> str | None:
    """Return None: each part of a message of Chat Completions is a text of its own."""
    return None


def joined_without_images(parts: Sequence[Any]) -> str | None:
    """Return how the gateway joins the parts of an item of the Responses API: as one text, unless it has images."""
    kinds = [cast("Json", part).get("type") for part in parts if isinstance(part, dict)]
    return None if "input_image" in kinds else ""


def joined_lines(parts: Sequence[Any]) -> str | None:
    """Return how the gateway joins adjacent text blocks of the Messages API: with line breaks."""
    return "\n"


def message_texts(
    messages: Sequence[Any], joined_by: JoinedBy = never_joined, *, first_system: int = 0
) -> Iterator[PromptText]:
    """Yield the texts of messages or of items, each `{"role": ..., "content": ...}`.

    `joined_by` returns, for the parts of a message, the text that joins adjacent text parts into one text; with None,
    each is a text of its own. `first_system` is the number of the first system message.
    """
    counts: dict[str, int] = {"system": first_system}
    is_opening = True
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            continue
        fields = cast("Json", message)
        role: object = fields.get("role")
        if role not in ("user", *SYSTEM_ROLES):
            is_opening = False
        elif role != "user" or is_opening:
            place = PromptPlace(role=cast("Role", role), position=counts.get(str(role), 0))
            yield from _content_texts(fields, "content", place, joined_by, index)
            counts[str(role)] = place.position + 1


def system_texts(fields: Json, name: str, joined_by: JoinedBy) -> Iterator[PromptText]:
    """Yield the texts of the field that is the first system message: `system`, or `instructions`."""
    return _content_texts(fields, name, PromptPlace(role="system"), joined_by, 0)


def tool_texts(tools: Sequence[Any]) -> Iterator[PromptText]:
    """Yield the descriptions of tools in the format of any API."""
    for tool in tools:
        if not isinstance(tool, dict):
            continue
        fields = cast("Json", tool)
        function = fields.get("function")
        holder: Json = cast("Json", function) if isinstance(function, dict) else fields
        name, text = holder.get("name"), holder.get("description")
        if isinstance(name, str) and isinstance(text, str) and text:
            yield PromptText(PromptPlace(role="tool", tool=name), text, _setter(holder, "description"))


def format_texts(fields: Json) -> Iterator[PromptText]:
    """Yield the description of the format that an answer must have: `response_format`, or `text.format`."""
    given, text = fields.get("response_format"), fields.get("text")
    if isinstance(given, dict):
        holder: object = cast("Json", given).get("json_schema")
    else:
        holder = cast("Json", text).get("format") if isinstance(text, dict) else None
    if isinstance(holder, dict):
        schema = cast("Json", holder)
        name, described = schema.get("name"), schema.get("description")
        if isinstance(described, str) and described:
            place = PromptPlace(role="output", tool=name if isinstance(name, str) else "")
            yield PromptText(place, described, _setter(schema, "description"))


def prompt_texts(prompts: list[Any]) -> Iterator[PromptText]:
    """Yield the prompts of a request of Completions that are texts."""
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            yield PromptText(PromptPlace(role="prompt", position=index), prompt, _setter(prompts, index))


def _content_texts(
    holder: Json, name: str, place: PromptPlace, joined_by: JoinedBy, index: int
) -> Iterator[PromptText]:
    content = holder.get(name)
    if isinstance(content, str):
        yield PromptText(place, content, _setter(holder, name), index)
        return
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    joint = joined_by(parts)
    for number, run in enumerate(_runs(parts, joined=joint is not None)):
        at = PromptPlace(role=place.role, position=place.position, part=number)
        yield PromptText(at, (joint or "").join(part["text"] for part in run), _run_setter(parts, run), index)


def _runs(parts: Sequence[Any], *, joined: bool) -> list[list[Json]]:
    """Return the text parts, each with the adjacent ones if these are joined."""
    runs: list[list[Json]] = []
    is_open = False
    for part in parts:
        fields = cast("Json", part) if isinstance(part, dict) else {}
        if fields.get("type") in _TEXT_TYPES and isinstance(fields.get("text"), str):
            if is_open and joined:
                runs[-1].append(fields)
            else:
                runs.append([fields])
            is_open = True
        else:
            is_open = False
    return runs


def _setter(holder: Any, key: Any) -> Put:
    def put(text: str) -> None:
        holder[key] = text

    return put


def _run_setter(parts: list[Any], run: list[Json]) -> Put:
    """Return the function that puts a text in the place of adjacent parts: in the last, which may end a cached text."""

    def put(text: str) -> None:
        run[-1]["text"] = text
        dropped = {id(part) for part in run[:-1]}
        parts[:] = [part for part in parts if id(part) not in dropped]

    return put

"""Places of prompt texts: a policy's request and the body that an endpoint gets have the same, whatever was sent."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.prompts.edits import PromptPlace
from leyden.core.data.prompts.matching import CallerEdits
from leyden.core.data.prompts.places import PromptText, message_texts, tool_texts
from leyden.core.gateway.anthropic.request import parse_messages
from leyden.core.gateway.chat.request import parse_chat
from leyden.core.gateway.model_request import ModelRequest
from leyden.core.gateway.prompts.request import edited_body
from leyden.core.gateway.responses.request import checked_request, read_draft

Texts = list[tuple[PromptPlace, str]]
WORDS = st.sampled_from(["a", "b c", "d\n", "é"])
IMAGE = "data:image/png;base64,AAAA"
TURNS = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system", "developer"]), st.lists(WORDS | st.none())))
TOOLS = st.lists(st.sampled_from(["add", "sub"]), unique=True)


class Recording(CallerEdits):
    """Edits that replace nothing, and keep the texts that could be replaced."""

    def __init__(self) -> None:
        super().__init__(())
        self.roles = frozenset({"tool"})
        self.texts: Texts = []

    def replace(self, texts: Iterable[PromptText]) -> list[Any]:
        self.texts += [(found.place, found.text) for found in texts]
        return []


def of_body(dialect: str, body: dict[str, Any]) -> set[tuple[PromptPlace, str]]:
    recording = Recording()
    assert edited_body(recording, dialect, json.dumps(body).encode())[1] == []
    return set(recording.texts)


def of_policy(request: ModelRequest) -> set[tuple[PromptPlace, str]]:
    found = [*message_texts(request.messages), *tool_texts(request.tools)]
    return {(one.place, one.text) for one in found}


def described(tools: list[str]) -> list[dict[str, Any]]:
    return [{"name": name, "description": f"{name}s", "parameters": {}} for name in tools]


@given(TURNS, TOOLS)
def test_of_chat_completions(turns: list[tuple[str, list[str | None]]], tools: list[str]) -> None:
    def content(role: str, parts: Sequence[str | None]) -> Any:
        if len(parts) == 1 and parts[0] is not None:
            return parts[0]
        image = {"type": "image_url", "image_url": {"url": IMAGE}}
        texts = [{"type": "text", "text": part or "-"} for part in parts]
        return [image if part is None and role == "user" else text for part, text in zip(parts, texts, strict=True)]

    messages = [{"role": role, "content": content(role, parts)} for role, parts in [*turns, ("user", ["end"])]]
    functions = [{"type": "function", "function": one} for one in described(tools)]
    body = {"model": "m", "messages": messages, "tools": functions or None}
    assert of_body("chat", body) == of_policy(parse_chat(json.dumps(body).encode()))


@given(TURNS, TOOLS, WORDS | st.none())
def test_of_responses(turns: list[tuple[str, list[str | None]]], tools: list[str], instructions: str | None) -> None:
    def content(role: str, parts: Sequence[str | None]) -> Any:
        if len(parts) == 1 and parts[0] is not None:
            return parts[0]
        kind = "output_text" if role == "assistant" else "input_text"
        image = {"type": "input_image", "image_url": IMAGE}
        texts = [{"type": kind, "text": part or "-"} for part in parts]
        return [image if part is None and role == "user" else text for part, text in zip(parts, texts, strict=True)]

    items = [{"role": role, "content": content(role, parts)} for role, parts in [*turns, ("user", ["end"])]]
    functions = [{"type": "function", **one} for one in described(tools)]
    body = {"model": "m", "input": items, "instructions": instructions, "tools": functions}
    draft = read_draft(json.dumps(body).encode())
    expected = {(place, text) for place, text in of_policy(checked_request(draft, draft.items, [])) if text}
    assert {(place, text) for place, text in of_body("responses", body) if text} == expected


@given(TURNS, TOOLS, st.lists(WORDS, max_size=3) | WORDS | st.none())
def test_of_messages(
    turns: list[tuple[str, list[str | None]]], tools: list[str], system: list[str] | str | None
) -> None:
    def content(role: str, parts: Sequence[str | None]) -> Any:
        if len(parts) == 1 and parts[0] is not None:
            return parts[0]
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        texts = [{"type": "text", "text": part or "-"} for part in parts]
        return [image if part is None and role == "user" else text for part, text in zip(parts, texts, strict=True)]

    known = [("system" if role == "developer" else role, parts) for role, parts in [*turns, ("user", ["end"])]]
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": 1,
        "messages": [{"role": role, "content": content(role, parts)} for role, parts in known],
        "system": [{"type": "text", "text": text} for text in system] if isinstance(system, list) else system,
        "tools": [
            {"name": one["name"], "description": one["description"], "input_schema": {}} for one in described(tools)
        ],
    }
    expected = {(place, text) for place, text in of_policy(parse_messages(json.dumps(body).encode())) if text}
    assert {(place, text) for place, text in of_body("messages", body) if text} == expected

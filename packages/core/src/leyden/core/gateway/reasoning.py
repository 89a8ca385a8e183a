"""Reasoning: separates a model's reasoning from its answer, and writes it as the chat template does.

A template that thinks writes `<think>`, the reasoning, `</think>` and then the answer. The text between these parts is
the template's own, so it belongs neither to the reasoning nor to the answer. What is separated here and rendered by the
same template again gives the same text, if the template keeps the reasoning and the model wrote the parts in its form.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

THINK, END_THINK = "<think>", "</think>"
FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message in which templates read its reasoning, the most frequent first."""
_REASONING, _CONTENT = "qReasoningProbe", "qContentProbe"
_RENDERED = re.compile(rf"{THINK}(\s*){_REASONING}(\s*){END_THINK}(\s*){_CONTENT}")
_OPEN = re.compile(rf"{THINK}(\s*)\Z")
_SEALED = b"1:"
BLOCK = 64
"""Number of tokens that are decoded together to find the end of the reasoning."""

Message: TypeAlias = dict[str, Any]
Render: TypeAlias = Callable[[list[Message]], str]
"""Renders plain messages with the chat template; it may raise any exception."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningForm:
    """The texts that a chat template writes around the reasoning of an answer, and where it reads the reasoning."""

    before: str = "\n"
    """Text between `<think>` and the reasoning."""
    after: str = "\n"
    """Text between the reasoning and `</think>`."""
    gap: str = "\n\n"
    """Text between `</think>` and the content."""
    field: str = FIELDS[0]
    """Field of a message for the reasoning; empty for templates that render it only as a part of the content."""

    def message(self, message: Message) -> Message:
        """Return a plain message with its reasoning, if any, where the template reads it."""
        if FIELDS[0] not in message:
            return message
        rest = {key: value for key, value in message.items() if key not in FIELDS}
        if self.field:
            return {**rest, self.field: message[FIELDS[0]]}
        return {**rest, "content": self.text(message[FIELDS[0]]) + message["content"]}

    def text(self, reasoning: str) -> str:
        """Return the text of a reasoning as the template writes it before the content."""
        return f"{THINK}{self.before}{reasoning}{self.after}{END_THINK}{self.gap}"


def reasoning_form(render: Render) -> ReasoningForm:
    """Return the form in which a template writes reasoning, read from a conversation that it renders.

    A template that drops the reasoning of every answer gets the usual form.
    """
    for field in FIELDS:
        for text in _rendered(render, {"content": _CONTENT, field: _REASONING}):
            if found := _RENDERED.search(text):
                return ReasoningForm(before=found[1], after=found[2], gap=found[3], field=field)
    usual = ReasoningForm()
    if any(_REASONING in text for text in _rendered(render, {"content": usual.text(_REASONING) + _CONTENT})):
        return replace(usual, field="")
    return usual


def _rendered(render: Render, answer: Message) -> Iterator[str]:
    """Yield conversations with an answer where templates keep its reasoning: at the end, and before a result."""
    begun: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", **answer}]
    call: Message = {"id": "call", "type": "function", "function": {"name": "f", "arguments": {}}}
    called = [begun[0], {**begun[1], "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call", "content": "!"}]
    for messages in (begun, called):
        try:
            yield render(messages)
        except Exception:  # a template may refuse such a conversation, with any exception
            continue


def opened_reasoning(prompt: str) -> str | None:
    """Return the text after `<think>` at the end of a prompt; None if the prompt does not open the reasoning."""
    found = _OPEN.search(prompt)
    return found[1] if found else None


class ReasoningSplitter:
    """Streaming separation of an answer into reasoning and content.

    Its output does not depend on how the text is cut into pieces. `opened` is the text after `<think>` at the end of
    the prompt; None if the answer itself begins with `<think>`, or has no reasoning. An answer that is cut off before
    `</think>` has reasoning only.
    """

    def __init__(self, form: ReasoningForm, opened: str | None = None) -> None:
        self._form = form
        self._state: Literal["start", "reasoning", "gap", "content"] = "start"
        self._held = ""
        self._frame = ""
        """Text of the template that may follow and belongs to no part."""
        self.consumed = 0
        """Characters of the answer before its content, as far as they are known."""
        if opened is not None:
            self._state = "reasoning"
            self._frame = form.before[len(opened) :] if form.before.startswith(opened) else ""

    @property
    def reached_content(self) -> bool:
        """Whether all further text is content, so that it needs no separation."""
        return self._state == "content"

    def push(self, text: str) -> list[Reasoning | str]:
        """Add text; return the new reasoning and content that can no longer change."""
        self._held += text
        parts: list[Reasoning | str] = []
        if self._state == "start":
            self._begin()
        if self._state == "reasoning":
            self._reason(parts)
        if self._state == "gap":
            self._drop_frame()
            if self._held:
                self._state = "content"
        if self._state == "content" and self._held:
            parts.append(self._take(len(self._held), counted=False))
        return parts

    def finish(self) -> list[Reasoning | str]:
        """End the text; return the text held back."""
        rest = self._take(len(self._held), counted=self._state == "reasoning")
        if not rest:
            return []
        return [Reasoning(rest) if self._state == "reasoning" else rest]

    def _begin(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(THINK):
            self._take(len(self._held) - len(begun) + len(THINK))
            self._state, self._frame = "reasoning", self._form.before
        elif not THINK.startswith(begun):
            self._state = "content"

    def _reason(self, parts: list[Reasoning | str]) -> None:
        self._drop_frame()
        end = self._held.find(END_THINK)
        after = self._form.after
        if end < 0:
            text = self._take(
                len(self._held) - max(_open_length(self._held, mark) for mark in (after + END_THINK, END_THINK))
            )
        else:
            text = self._take(end).removesuffix(after)
            self._take(len(END_THINK))
            self._state, self._frame = "gap", self._form.gap
        if text:
            parts.append(Reasoning(text))

    def _drop_frame(self) -> None:
        """Drop text for as long as it is the template's; the frame ends with the first other character."""
        same = 0
        while same < min(len(self._frame), len(self._held)) and self._frame[same] == self._held[same]:
            same += 1
        self._frame = self._frame[same:] if same == len(self._held) else ""
        self._take(same)

    def _take(self, length: int, *, counted: bool = True) -> str:
        text, self._held = self._held[:length], self._held[length:]
        self.consumed += length if counted else 0
        return text


def _open_length(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that is a beginning of `mark`."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)


def reasoning_tokens(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> int:
    """Return the number of tokens up to the end of the reasoning; all tokens if it does not end."""
    for start in range(0, len(ids), BLOCK):
        context, end = max(0, start - len(END_THINK)), min(start + BLOCK, len(ids))
        if END_THINK in decode(ids[context:end]):
            return next(n for n in range(start + 1, end + 1) if END_THINK in decode(ids[context:n]))
    return len(ids)


def sealed(reasoning: str) -> str:
    """Return a reasoning as opaque text, for agents that keep it without reading it."""
    return urlsafe_b64encode(_SEALED + reasoning.encode()).decode()


def unsealed(given: str) -> str | None:
    """Return the reasoning in a text of `sealed`; None for any other text, such as another provider's."""
    try:
        found = urlsafe_b64decode(given.encode())
        return found.removeprefix(_SEALED).decode() if found.startswith(_SEALED) else None
    except ValueError:
        return None

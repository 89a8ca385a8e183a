"""Tool families: describes the formats in which models write tool calls, and has the parser that all families share.

A `ToolFamily` has the marks that identify its chat templates, a parser of its calls, and the opening of a forced call.
The parser works on text as it arrives. It parses a plain answer in one push, so plain and streamed answers give the
same result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from leyden.core.gateway.codec import (
    AnswerParser,
    AnswerPart,
    Forced,
    Message,
    ParsedAnswer,
    PassThrough,
    ToolCall,
    ToolDefinition,
)
from leyden.core.gateway.tools.call_grammar import CallSyntax
from leyden.core.gateway.tools.cursor import Cursor, NotAToolCall, Reading

CallReader: TypeAlias = Callable[[Cursor, Sequence[ToolDefinition]], Reading[None]]


def _unchanged(messages: list[Message], template: str) -> list[Message]:
    return messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFamily:
    """Format of tool calls in one family of chat templates."""

    marks: tuple[str, ...]
    """Texts that a template of this family contains, all of them."""
    read: CallReader
    """Parser of one call, or of a group of calls, from their beginning; it also gets the tools of the request."""
    mark: str
    """Text at the beginning of a call, anywhere in an answer."""
    bare: str = ""
    """First character of a call without the mark, at the beginning of an answer or after another call."""
    tokens: tuple[str, ...] = ()
    """Tokens that mark calls; decoding keeps them although they may be control tokens."""
    opening: Callable[[Forced], str]
    """Function that returns the beginning of a forced call, which the model continues.

    The beginning ends at a token boundary of text that models write themselves: before the space of `: {`, not after.
    """
    salvage: Callable[[str, Forced], tuple[ToolCall, str]]
    """Function that extracts the call of a malformed forced answer from the text after the opening.

    It returns the call and the text that follows the call.
    """
    syntax: CallSyntax | None = None
    """Texts around calls, for the grammar of calls; None if arguments are not written as JSON."""
    messages: Callable[[list[Message], str], list[Message]] = _unchanged
    """Function of plain messages and the template's text; it returns messages that the template accepts."""


class CallParser:
    """Streaming parser of one answer; it returns a call when the call is complete.

    White space before and after a call is dropped. Text that is not exactly a call stays content, including its marks.
    The output does not depend on how the text is cut into pieces.
    """

    def __init__(self, family: ToolFamily, tools: Sequence[ToolDefinition]) -> None:
        self._family, self._tools = family, tools
        self._buffer = ""
        self._space: list[str] = []
        """White space that is held back alone; it is not scanned again until other text follows it."""
        self._reading: tuple[Cursor, Reading[None]] | None = None
        self._bare_may_come = bool(family.bare)
        self._after_call = False
        self._called = False
        """Whether the running parser has yielded a call."""

    def push(self, text: str) -> list[AnswerPart]:
        """Add text; return the new parts that can no longer change."""
        if self._reading is None and not self._buffer and text.isspace():
            self._space.append(text)
            return []
        self._hold(text)
        parts = self._drain(last=False)
        if self._reading is None and self._buffer.isspace():
            self._space, self._buffer = [self._buffer], ""
        return parts

    def finish(self) -> list[AnswerPart]:
        """End the text; return the remaining parts. An incomplete call becomes content."""
        self._hold("")
        return self._drain(last=True)

    def _hold(self, text: str) -> None:
        self._buffer = "".join([*self._space, self._buffer, text])
        self._space.clear()

    def _drain(self, *, last: bool) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        while self._reading is not None or self._begin(parts, last=last):
            if not self._go_on(parts, last=last):
                break
        return parts

    def _begin(self, parts: list[AnswerPart], *, last: bool) -> bool:
        """Move content to `parts` and start to parse a call; return False if no call begins in the held text."""
        if self._after_call:
            self._buffer = self._buffer.lstrip()
        space = len(self._buffer) - len(self._buffer.lstrip())
        if self._bare_may_come and self._buffer.startswith(self._family.bare, space):
            start = space
        else:
            start = self._buffer.find(self._family.mark)
        if start < 0:
            self._add_content(parts, len(self._buffer) if last else _settled_length(self._buffer, self._family.mark))
            return False
        self._add_content(parts, len(self._buffer[:start].rstrip()))
        cursor = Cursor(self._buffer, len(self._buffer) - len(self._buffer.lstrip()))
        self._reading, self._called = (cursor, self._family.read(cursor, self._tools)), False
        return True

    def _go_on(self, parts: list[AnswerPart], *, last: bool) -> bool:
        """Continue the running parser; return False if it needs more text."""
        assert self._reading is not None
        cursor, reading = self._reading
        cursor.text, cursor.complete = self._buffer, last
        try:
            for call in reading:
                if call is None:
                    return False
                parts.append(call)
                self._remove_call(cursor)
        except NotAToolCall:
            if not self._called:
                self._keep_as_content(parts)
        else:
            self._remove_call(cursor)
        self._reading = None
        return True

    def _remove_call(self, cursor: Cursor) -> None:
        """Remove the parsed text of a call, or of the end of a group of calls, from the held text."""
        self._buffer = cursor.text = cursor.text[cursor.position :]
        cursor.position = 0
        self._called = self._after_call = True
        self._bare_may_come = bool(self._family.bare)

    def _keep_as_content(self, parts: list[AnswerPart]) -> None:
        """Treat a mark or first character without a valid call after it as content."""
        space = len(self._buffer) - len(self._buffer.lstrip())
        if self._buffer.startswith(self._family.mark, space):
            self._add_content(parts, space + len(self._family.mark))
        else:
            self._bare_may_come = False

    def _add_content(self, parts: list[AnswerPart], length: int) -> None:
        """Move the first `length` characters of the held text to `parts`."""
        if length:
            parts.append(self._buffer[:length])
            self._buffer = self._buffer[length:]
            self._after_call = self._bare_may_come = False


class ForcedParser:
    """Streaming parser of an answer that continues the opening of a forced call; it always returns at least that call.

    If the model does not complete the call in its format, the whole text is parsed once more at its end, with the
    family's `salvage`. The arguments are then returned as the model wrote them, as providers do. An answer that was cut
    off inside the tool's name becomes a call of the partial name.
    """

    def __init__(self, family: ToolFamily, tools: Sequence[ToolDefinition], forced: Forced) -> None:
        self._family, self._tools, self._forced = family, tools, forced
        self._parser = CallParser(family, tools)
        self._parser.push(family.opening(forced))  # returns no parts, because an opening is never a complete call
        self._text = ""
        self._state: Literal["open", "called", "malformed"] = "open"

    def push(self, text: str) -> list[AnswerPart]:
        """Add text; return the new parts that can no longer change."""
        if self._state == "called":
            return self._parser.push(text)
        self._text += text
        return self._take(self._parser.push(text)) if self._state == "open" else []

    def finish(self) -> list[AnswerPart]:
        """End the text; return the remaining parts."""
        if self._state == "called":
            return self._parser.finish()
        parts = self._take(self._parser.finish()) if self._state == "open" else []
        if parts:
            return parts
        call, rest = self._family.salvage(self._text, self._forced)
        rest_parser = CallParser(self._family, self._tools)
        return [call, *rest_parser.push(rest.lstrip()), *rest_parser.finish()]

    def _take(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        """Return `parts` if they begin with the call; content in its place means that the call is malformed."""
        if parts:
            self._state = "called" if isinstance(parts[0], ToolCall) else "malformed"
        return parts if self._state == "called" else []


def answer_parser(
    family: ToolFamily | None, tools: Sequence[ToolDefinition], forced: Forced | None = None
) -> AnswerParser:
    """Return a parser for one answer; without tools and without a forced call, all text is content."""
    if family is None:
        return PassThrough()
    if forced is not None:
        return ForcedParser(family, tools, forced)
    return CallParser(family, tools) if tools else PassThrough()


def parse_answer(parser: AnswerParser, text: str) -> ParsedAnswer:
    """Parse a complete answer with `parser`."""
    return collect([*parser.push(text), *parser.finish()])


def collect(parts: Sequence[AnswerPart]) -> ParsedAnswer:
    """Return the joined parts of an answer; content is None if there are only tool calls."""
    calls = tuple(part for part in parts if isinstance(part, ToolCall))
    content = "".join(part for part in parts if isinstance(part, str))
    return ParsedAnswer(content=content or (None if calls else ""), tool_calls=calls)


def _settled_length(text: str, mark: str) -> int:
    """Return the number of leading characters of `text` that cannot be part of the mark or white space of a call."""
    size = next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)
    return len(text[: len(text) - size].rstrip())

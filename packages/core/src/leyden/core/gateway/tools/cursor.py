"""Incremental parsing: a cursor over text that is still arriving, for the parsers of tool calls.

A parser is a generator over a `Cursor`. It yields None when it needs more text, and later continues at the same place,
so it reads every character once. It yields each complete tool call, and raises `NotAToolCall` if the text is not a
call.
"""

from collections.abc import Generator
from re import Pattern
from typing import TypeAlias, TypeVar

from leyden.core.gateway.codec import ToolCall

T = TypeVar("T")
Reading: TypeAlias = Generator[ToolCall | None, None, T]
"""A running parser: yields None to request more text, yields each complete tool call, and returns a `T`."""


class NotAToolCall(Exception):
    """The text is not a tool call; a normal outcome of parsing, not an error."""


class Cursor:
    """Position in a text that grows at its end."""

    __slots__ = ("complete", "position", "text")

    def __init__(self, text: str, position: int = 0, *, complete: bool = False) -> None:
        self.text, self.position = text, position
        self.complete = complete
        """Whether the text is complete, so that no more text arrives."""

    def more(self) -> Reading[None]:
        """Wait for more text; raises NotAToolCall if the text is complete."""
        if self.complete:
            raise NotAToolCall
        yield None

    def peek(self) -> Reading[str]:
        """Return the next character without passing it."""
        while self.position == len(self.text):
            yield from self.more()
        return self.text[self.position]

    def space(self) -> Reading[None]:
        """Pass white space up to the next character; raises NotAToolCall if the text ends before one."""
        while (yield from self.peek()).isspace():
            self.position += 1

    def one_of(self, *options: str) -> Reading[str]:
        """Pass and return the option that comes next; raises NotAToolCall if none does.

        No option may be a prefix of another.
        """
        while True:
            found = next((option for option in options if self.text.startswith(option, self.position)), None)
            if found is not None:
                self.position += len(found)
                return found
            rest = self.text[self.position : self.position + max(map(len, options))]
            if not any(option.startswith(rest) for option in options):
                raise NotAToolCall
            yield from self.more()

    def run(self, characters: Pattern[str]) -> Reading[str]:
        """Pass and return the text that `characters` matches, which may be empty.

        The pattern must match any number of single characters.
        """
        begin = self.position
        while True:
            match = characters.match(self.text, self.position)
            self.position = match.end() if match else self.position
            if self.position < len(self.text):
                return self.text[begin : self.position]
            yield from self.more()

    def until(self, mark: str) -> Reading[str]:
        """Pass all text up to and including `mark`; return the text before the mark."""
        begin = seen = self.position
        while (end := self.text.find(mark, seen)) < 0:
            seen = max(begin, len(self.text) - len(mark) + 1)
            yield from self.more()
        self.position = end + len(mark)
        return self.text[begin:end]

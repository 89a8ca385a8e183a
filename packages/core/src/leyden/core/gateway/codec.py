"""`Codec`: between messages and token ids, for one policy.

Templates and tool parsing live behind it, once, for every engine.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec

Message = dict[str, Any]
"""A chat message in OpenAI's shape."""
ToolDefinition = dict[str, Any]
"""A tool in OpenAI's shape: `{"type": "function", "function": {...}}`."""


@dataclass(frozen=True, slots=True)
class Forced:
    """An answer that must call a tool: its beginning, up to the arguments or to the name, is part of the prompt."""

    name: str | None = None
    """The tool to call; None for any."""
    only_one: bool = False
    """Whether it has its name because no other tool is offered, and not because the agent named it."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call the model asks for."""

    name: str
    arguments: str
    """JSON text, as the model wrote it; of a forced call that it did not end well, whatever it wrote there."""


class ParsedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the text of an answer means."""

    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()


AnswerPart: TypeAlias = str | ToolCall
"""A piece of content, or a whole tool call."""


class AnswerParser(Protocol):
    """Reads one answer while its text arrives; what it gives out does not depend on how the text is cut."""

    def push(self, text: str) -> list[AnswerPart]:
        """Take more text; return what can no longer change."""
        ...

    def finish(self) -> list[AnswerPart]:
        """Return what is left when no more text comes."""
        ...


class PassThrough:
    """The parser of an answer that can hold no calls."""

    def push(self, text: str) -> list[AnswerPart]:
        """All of it is content."""
        return [text] if text else []

    def finish(self) -> list[AnswerPart]:
        """Nothing is ever held back."""
        return []


class WholeAnswer:
    """Reads an answer with `Codec.parse` once all of it is there: for codecs that cannot parse as they go."""

    def __init__(self, codec: "Codec", tools: Sequence[ToolDefinition], forced: Forced | None = None) -> None:
        self._codec, self._tools, self._forced = codec, tools, forced
        self._text = ""

    def push(self, text: str) -> list[AnswerPart]:
        """Keep it."""
        self._text += text
        return []

    def finish(self) -> list[AnswerPart]:
        """All parts at once."""
        answer = self._codec.parse(self._text, self._tools, self._forced)
        return [*([answer.content] if answer.content else []), *answer.tool_calls]


class Codec(ABC):
    """Encodes a conversation for one policy and reads its answers."""

    @property
    @abstractmethod
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""

    @property
    def longest_token(self) -> int | None:
        """Most bytes of text that one token stands for; None where there is no such limit, or it is not known."""
        return None

    @abstractmethod
    def encode(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = (), forced: Forced | None = None
    ) -> list[int]:
        """Render with the chat template, up to where the model's answer begins. Long prompts are encoded on threads.

        A forced call begins the answer itself: its first ids follow those of the same prompt without it. Raises
        GatewayError when the template refuses the messages, or when how it writes calls is not known and one is forced.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Text of an answer, without the tokens that end it; incomplete UTF-8 becomes U+FFFD."""

    @abstractmethod
    def parse(self, text: str, tools: Sequence[ToolDefinition], forced: Forced | None = None) -> ParsedAnswer:
        """Split an answer into content and tool calls; text that only looks like a call stays content.

        A forced answer goes on from the beginning that `encode` gave it, and always holds a call.
        """

    def parser(self, tools: Sequence[ToolDefinition], forced: Forced | None = None) -> AnswerParser:
        """Return a parser for one streamed answer; all it gives out together equals `parse` of the whole text."""
        return WholeAnswer(self, tools, forced) if tools or forced else PassThrough()

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes a token stands for, which need not be whole characters."""
        return self.decode([token_id]).encode()

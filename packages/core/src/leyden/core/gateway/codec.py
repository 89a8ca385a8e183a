"""`Codec`: converts messages to token ids and sampled tokens to messages, for one policy.

It contains the chat template and the parsing of tool calls, so that every engine shares them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec

from leyden.core.data.encoding.images import PromptImage
from leyden.core.errors import GatewayError, ImageError
from leyden.core.gateway.reasoning import ReasoningSplitter
from leyden.core.grammar.rules import AnswerFormat

Message = dict[str, Any]
"""A chat message in OpenAI's format."""
ToolDefinition = dict[str, Any]
"""A tool in OpenAI's format: `{"type": "function", "function": {...}}`."""


OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables of a chat template that a request cannot set, because its other fields determine them."""


@dataclass(frozen=True, slots=True)
class Forced:
    """Forced tool call: the prompt contains the beginning of the answer, up to the arguments or to the tool's name."""

    name: str | None = None
    """Name of the tool to call; None for any tool."""
    only_one: bool = False
    """Whether `name` is set because the request offers only one tool, and not because the agent named it."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call in an answer of the model."""

    name: str
    arguments: str
    """JSON text as the model wrote it; for a forced call without a valid end, whatever text the model wrote."""


class ParsedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Content and tool calls of a parsed answer."""

    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()


class ImageFile(msgspec.Struct, frozen=True, kw_only=True):
    """An image file of a request."""

    digest: str
    """SHA-256 of the file, in hexadecimal."""
    data: bytes
    tokens: int
    """Number of placeholder tokens that it has in a prompt."""


AnswerPart: TypeAlias = str | ToolCall
"""A piece of content, or a whole tool call."""


class AnswerParser(Protocol):
    """Streaming parser of one answer; its output does not depend on how the text is cut into pieces."""

    def push(self, text: str) -> list[AnswerPart]:
        """Add text; return the new parts that can no longer change."""
        ...

    def finish(self) -> list[AnswerPart]:
        """End the text; return the remaining parts."""
        ...


class PassThrough:
    """Parser of an answer that cannot contain tool calls."""

    def push(self, text: str) -> list[AnswerPart]:
        """Return the text as content."""
        return [text] if text else []

    def finish(self) -> list[AnswerPart]:
        """Return no parts, because `push` holds nothing back."""
        return []


class WholeAnswer:
    """Parser that calls `Codec.parse` on the complete answer, for codecs without a streaming parser."""

    def __init__(self, codec: "Codec", tools: Sequence[ToolDefinition], forced: Forced | None = None) -> None:
        self._codec, self._tools, self._forced = codec, tools, forced
        self._text = ""

    def push(self, text: str) -> list[AnswerPart]:
        """Buffer the text; return no parts."""
        self._text += text
        return []

    def finish(self) -> list[AnswerPart]:
        """Parse the buffered text; return its content, then its tool calls."""
        answer = self._codec.parse(self._text, self._tools, self._forced)
        return [*([answer.content] if answer.content else []), *answer.tool_calls]


class Codec(ABC):
    """Codec of one policy: encodes conversations to token ids and parses the policy's answers."""

    @property
    @abstractmethod
    def stop_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that end an answer."""

    @property
    def longest_token(self) -> int | None:
        """Most bytes of text that one token represents; None if there is no such limit or it is unknown."""
        return None

    @property
    def takes_images(self) -> bool:
        """Whether the policy's prompts may have images."""
        return False

    def image_tokens(self, digest: str, data: bytes) -> int:
        """Return how many placeholder tokens an image file has in a prompt; `digest` identifies the file.

        Threads may call this method. Raises ImageError for a file that cannot be read.
        """
        raise ImageError(f"{type(self).__name__} reads no images")

    def place_images(
        self, ids: Sequence[int], images: Sequence[ImageFile]
    ) -> tuple[list[int], tuple[PromptImage, ...]]:
        """Return the ids of an encoded prompt with the placeholder tokens of its images, and where these are.

        Raises GatewayError if the encoded prompt does not have one mark for each image.
        """
        raise GatewayError(f"{type(self).__name__} reads no images")

    @abstractmethod
    def encode(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        forced: Forced | None = None,
        *,
        formatted: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Render the messages with the chat template, up to the start of the answer; return the token ids.

        With `forced`, the ids of the prompt are followed by the ids of the beginning of the tool call. With
        `formatted`, the answer must have a format, so reasoning that the prompt opens is closed. `variables` are given
        to the template as well.

        Threads may call this method, because long prompts are encoded on threads. Raises GatewayError if the template
        rejects the messages. Also raises GatewayError for a forced call if the template's format of tool calls is
        unknown.
        """

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        forced: Forced | None,
        answer_format: AnswerFormat | None,
        *,
        only_one_call: bool = False,
    ) -> str:
        """Return the grammar of an answer with a forced call or a required format; empty if all text is possible.

        A forced call continues the beginning that `encode` appended. Where tools may be called, an answer is in the
        format, or it is calls. Raises GrammarError for a format that cannot be combined with the tools.
        """
        return "" if forced is not None or answer_format is None else answer_format.grammar()

    def encode_text(self, text: str) -> list[int]:
        """Return the token ids of a text without the chat template, with the tokenizer's own special tokens.

        An empty text gives the token that begins a document. Threads may call this method. Raises GatewayError if the
        codec can encode only conversations.
        """
        raise GatewayError(f"{type(self).__name__} encodes conversations only, and no text without a chat template")

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of an answer, without the tokens that end it; incomplete UTF-8 becomes U+FFFD."""

    @abstractmethod
    def parse(self, text: str, tools: Sequence[ToolDefinition], forced: Forced | None = None) -> ParsedAnswer:
        """Split an answer into content and tool calls; text that only looks like a call stays content.

        The text of a forced answer continues the beginning that `encode` appended, and always yields a tool call.
        """

    def parser(self, tools: Sequence[ToolDefinition], forced: Forced | None = None) -> AnswerParser:
        """Return a parser for one streamed answer; its parts together equal `parse` of the whole text."""
        return WholeAnswer(self, tools, forced) if tools or forced else PassThrough()

    def reasoning(self, prompt_ids: Sequence[int]) -> ReasoningSplitter | None:
        """Return a splitter that separates the reasoning of an answer to this prompt from its content.

        Returns None for a policy without reasoning; its answers are content as a whole.
        """
        return None

    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes that a token represents; they need not form whole characters."""
        return self.decode([token_id]).encode()

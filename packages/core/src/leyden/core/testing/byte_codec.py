"""`ByteCodec`: a codec with bytes as token ids and a short chat template, for tests without a tokenizer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from leyden.core.gateway.codec import AnswerParser, Codec, Forced, Message, ParsedAnswer, ToolDefinition
from leyden.core.gateway.codecs.messages import plain_messages
from leyden.core.gateway.reasoning import ReasoningForm, ReasoningSplitter
from leyden.core.gateway.tools.family import answer_parser, parse_answer
from leyden.core.gateway.tools.registry import FAMILIES

BEGIN, END, STOP = 256, 257, 258
"""Ids of `<|im_start|>`, `<|im_end|>` and the end of a text; all lower ids are bytes."""
VOCABULARY = 259
_FAMILY = FAMILIES["hermes"]
_REASONING = ReasoningForm()


class ByteCodec(Codec):
    """Every byte is a token. Turns are written as in ChatML, reasoning and tool calls in Qwen's format."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids of `<|im_end|>` and of the end of a text."""
        return END, STOP

    @property
    def longest_token(self) -> int:
        """Length of the longest token in bytes."""
        return 1

    def encode(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        forced: Forced | None = None,
        *,
        formatted: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Render turn by turn; tools form a system turn before all others, and a forced call begins at the end."""
        ids = self.turn("system", json.dumps(list(tools))) if tools else []
        for message in plain_messages(messages):
            calls = "".join(_call(call["function"]) for call in message.get("tool_calls", ()))
            thoughts = _REASONING.text(message["reasoning_content"]) if "reasoning_content" in message else ""
            ids += self.turn(message["role"], thoughts + message["content"] + calls)
        opening = _FAMILY.opening(forced) if forced else ""
        return [*ids, BEGIN, *f"assistant\n{opening}".encode()]

    def encode_text(self, text: str) -> list[int]:
        """Return the bytes of a text; an empty text gives the end of a text, which comes before a new one."""
        return list(text.encode()) or [STOP]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the bytes; control tokens are left out."""
        return bytes(token for token in ids if token < BEGIN).decode(errors="replace")

    def parse(self, text: str, tools: Sequence[ToolDefinition], forced: Forced | None = None) -> ParsedAnswer:
        """Return the content and the tool calls of an answer."""
        return parse_answer(self.parser(tools, forced), text)

    def parser(self, tools: Sequence[ToolDefinition], forced: Forced | None = None) -> AnswerParser:
        """Return a parser for one streamed answer."""
        return answer_parser(_FAMILY, tools, forced)

    def reasoning(self, prompt_ids: Sequence[int]) -> ReasoningSplitter:
        """Return a splitter for an answer that may begin with `<think>`."""
        return ReasoningSplitter(_REASONING)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the byte itself; control tokens have no bytes."""
        return bytes([token_id]) if token_id < BEGIN else b""

    def turn(self, role: str, text: str) -> list[int]:
        """Return the ids of one complete turn."""
        return [BEGIN, *f"{role}\n{text}".encode(), END, *b"\n"]

    def answer(self, text: str) -> list[int]:
        """Return the ids of an answer with this `text` and its end, for a script."""
        return [*text.encode(), END]


def _call(function: dict[str, object]) -> str:
    return f"<tool_call>\n{json.dumps({'name': function['name'], 'arguments': function['arguments']})}\n</tool_call>"

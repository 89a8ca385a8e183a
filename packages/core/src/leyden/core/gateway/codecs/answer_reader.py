"""Answer reader: converts the sampled tokens of one answer to its parts, and finds the end of its text.

The parts are reasoning, content and tool calls.

Plain and streamed responses use the same code: a plain one needs one `push`, a streamed one needs many.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

from leyden.core.gateway.codec import AnswerPart, Codec, ToolCall
from leyden.core.gateway.codecs.text import StopFilter, TextStream
from leyden.core.gateway.model_request import ModelRequest
from leyden.core.gateway.reasoning import Reasoning, reasoning_tokens

Top: TypeAlias = Sequence[Sequence[tuple[int, float]]]
"""For each position, the most likely tokens as (token id, raw log-probability), most likely first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCall:
    """Tool call with its id; the agent sends the id back with the tool's result."""

    id: str
    name: str
    arguments: str


ReadPart: TypeAlias = str | AnswerCall | Reasoning
"""A piece of content or of reasoning, or a whole tool call with its id."""


@dataclass(frozen=True, slots=True)
class ReadToken:
    """One token of an answer's content, with its raw log-probability."""

    text: str
    bytes: list[int]
    logprob: float
    top: "list[ReadToken]"
    """The most likely tokens at its position, if they were requested."""
    start: int = 0
    """Number of characters of the content before it."""


class AnswerReader:
    """Reader of one answer to `request`, token by token.

    `prompt_ids` are those of the answer's prompt, which may open its reasoning. A forced call, an answer in a required
    format and a completion of a plain text have no reasoning. The ids of the answer's tool calls are hashes of
    `call_id` and the call's index, so a replayed answer has the same ids.
    """

    def __init__(self, codec: Codec, request: ModelRequest, call_id: str, prompt_ids: Sequence[int] = ()) -> None:
        self._call_id = call_id
        self._text = TextStream(codec.decode)
        self._stop = StopFilter(request.sampling.stop)
        self._parser = codec.parser(request.tools, request.forced)
        reasons = not (request.prompts or request.forced or request.answer_format)
        self._splitter = codec.reasoning(prompt_ids) if reasons else None
        self._content_start = 0
        """Number of characters before the content, once the splitter has reached it and is not needed any more."""
        self._decode = codec.decode
        self._one_call = not request.parallel_tool_calls
        self._id_prefix = request.call_id_prefix
        self._logprobs = LogprobReader(codec) if request.logprobs else None
        self.may_stop_early = bool(request.sampling.stop) or (self._one_call and bool(request.tools))
        """Whether the reader may end the answer before the engine does; its tokens must then be read as they arrive."""
        self.stopped = False
        """Whether the reader has ended the answer; tokens sampled after this do not belong to it."""
        self.calls: list[AnswerCall] = []
        self.parts: list[ReadPart] = []
        """All final parts so far, in order."""
        self._content: list[str] = []
        self._thoughts: list[str] = []
        self._leading_characters = 0
        """Characters of content before the first tool call; up to there, it is a connected part of the decoded text."""

    @property
    def content(self) -> str | None:
        """Content so far; None if there are only tool calls."""
        return "".join(self._content) or (None if self.calls else "")

    @property
    def reasoning(self) -> str | None:
        """Reasoning so far; None if there is none."""
        return "".join(self._thoughts) or None

    def reasoning_tokens(self, ids: Sequence[int]) -> int:
        """Return how many of the answer's tokens belong to its reasoning, with the marks around it."""
        return reasoning_tokens(self._decode, ids) if self._thoughts else 0

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer; None if none did."""
        return self._stop.found

    def push(self, ids: Sequence[int], logprobs: Sequence[float], top: Top | None = None) -> list[ReadPart]:
        """Add sampled tokens with their log-probabilities; return the new parts that can no longer change."""
        if self._logprobs is None:
            return self._take(self._text.push(ids))
        parts: list[ReadPart] = []
        for n, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
            text = self._text.push([token])
            self._logprobs.push(token, logprob, text, top[n] if top else ())
            parts += self._take(text)
        return parts

    def finish(self) -> list[ReadPart]:
        """End the answer; return its remaining parts.

        A call that is found only here may be one that was cut off, so it does not count as the reader's own end.
        """
        ended_early = self.stopped
        parts = self._take(self._text.finish())
        if not self.stopped:
            parts += self._add_parts(self._split(self._stop.finish()))
        if self._splitter is not None:
            parts += self._add_parts(self._parsed(self._splitter.finish()))
        if not (self._one_call and self.calls):
            parts += self._add_parts(self._parser.finish())
        self.stopped = ended_early
        return parts

    def tokens(self) -> list[ReadToken] | None:
        """Return the content's tokens since the last call of this method; content after a tool call has no tokens.

        Returns None if the agent did not request log-probabilities.
        """
        if self._logprobs is None:
            return None
        begin = self._splitter.consumed if self._splitter else self._content_start
        return self._logprobs.take(begin, begin + self._leading_characters)

    def _take(self, text: str) -> list[ReadPart]:
        if self.stopped:
            return []
        parts = self._add_parts(self._split(self._stop.push(text)))
        self.stopped = self.stopped or self._stop.stopped
        return parts

    def _split(self, text: str) -> Sequence[AnswerPart | Reasoning]:
        """Return the parts that a text of the answer completes."""
        splitter = self._splitter
        if splitter is None:
            return self._parser.push(text)
        pieces = splitter.push(text)
        if splitter.reached_content:
            self._content_start, self._splitter = splitter.consumed, None
        return self._parsed(pieces)

    def _parsed(self, pieces: Sequence[Reasoning | str]) -> list[AnswerPart | Reasoning]:
        parts: list[AnswerPart | Reasoning] = []
        for piece in pieces:
            parts += [piece] if isinstance(piece, Reasoning) else self._parser.push(piece)
        return parts

    def _add_parts(self, parts: Sequence[AnswerPart | Reasoning]) -> list[ReadPart]:
        kept: list[ReadPart] = []
        for part in parts:
            if isinstance(part, str):
                self._content.append(part)
                self._leading_characters += 0 if self.calls else len(part)
                kept.append(part)
                continue
            if isinstance(part, Reasoning):
                self._thoughts.append(part.text)
                kept.append(part)
                continue
            self.calls.append(self._with_id(part))
            kept.append(self.calls[-1])
            if self._one_call:
                self.stopped = True
                break
        self.parts += kept
        return kept

    def _with_id(self, call: ToolCall) -> AnswerCall:
        name = blake2b(f"{self._call_id}/{len(self.calls)}".encode(), digest_size=12).hexdigest()
        return AnswerCall(id=f"{self._id_prefix}{name}", name=call.name, arguments=call.arguments)


class LogprobReader:
    """Assigns tokens to the content; a token belongs to the content if its text begins inside the content."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._tokens: list[tuple[int, ReadToken]] = []
        self._length = 0
        self._returned = 0

    def push(self, token: int, logprob: float, text: str, top: Sequence[tuple[int, float]]) -> None:
        """Add one token with its log-probability, the text that it completed, and the most likely tokens there."""
        read = self._read(token, logprob, [self._read(*other, []) for other in top])
        self._tokens.append((self._length, read))
        self._length += len(text)

    def take(self, begin: int, end: int) -> list[ReadToken]:
        """Return the tokens of the characters from `begin` to `end` of the text that were not returned before."""
        new: list[ReadToken] = []
        while self._returned < len(self._tokens) and self._tokens[self._returned][0] < end:
            start, token = self._tokens[self._returned]
            new += [token] if start >= begin else []
            self._returned += 1
        return new

    def _read(self, token: int, logprob: float, top: list[ReadToken]) -> ReadToken:
        text, token_bytes = self._codec.decode([token]), list(self._codec.token_bytes(token))
        return ReadToken(text, token_bytes, logprob, top, self._length)

"""`Dialect`: the interface of a provider's API; it parses requests and writes responses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from starlette.types import Send

from leyden.core.data.encoding.images import PromptImage
from leyden.core.data.span import Attributes
from leyden.core.engine.base import FinishReason
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.codecs.answer_reader import AnswerReader, ReadPart, ReadToken
from leyden.core.gateway.limits.long_work import RequestWork
from leyden.core.gateway.model_request import ModelRequest
from leyden.core.gateway.refusal import ErrorAnswer, Refusal

Finish = Literal["stop", "length", "tool_calls"]


class PromptToken(NamedTuple):
    """One token of a prompt that the response repeats."""

    text: str
    bytes: bytes
    start: int
    """Number of characters of the prompt before it."""


@dataclass(slots=True, kw_only=True)
class EncodedPrompt:
    """One prompt of a request, as the policy reads it."""

    ids: Sequence[int]
    text: str = ""
    """Text of a prompt without a chat template; empty for a conversation."""
    tokens: list[PromptToken] | None = None
    """Its tokens, if the response repeats them with their log-probabilities."""
    images: tuple[PromptImage, ...] = ()
    """Images in the prompt, in order."""
    logprobs: list[float] | None = None
    """Raw log-probability of each of `ids[1:]`; set before the response begins, if `tokens` is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedChoice:
    """One choice of a response after its generation has ended."""

    reader: AnswerReader
    engine_finish: FinishReason
    prompt_ids: Sequence[int] = ()
    """Token ids of the prompt, as the engine read them."""
    response_ids: Sequence[int]
    """Token ids of the choice, as the engine sampled them."""

    @property
    def tokens(self) -> int:
        """Number of sampled tokens."""
        return len(self.response_ids)

    @property
    def reasoning_tokens(self) -> int:
        """Number of sampled tokens that belong to the reasoning."""
        return self.reader.reasoning_tokens(self.response_ids)

    @property
    def cut(self) -> bool:
        """Whether the choice was cut off at its token limit or at the end of the context."""
        return self.engine_finish == "length" and not self.reader.stopped

    def finish(self, request: ModelRequest) -> Finish:
        """Return the `finish_reason` of Chat Completions.

        As in that API, a choice that was forced to call one named tool has the reason `stop`, not `tool_calls`.
        """
        if self.reader.calls and not self.cut:
            forced = request.forced
            named = forced is not None and forced.name is not None and not forced.only_one
            return "stop" if named else "tool_calls"
        return "length" if self.cut else "stop"


class Reply(Protocol):
    """Writer of one response: sends it to the agent."""

    live: bool
    """Whether the response is streamed while it is generated."""

    async def show(self, choice: int, parts: Sequence[ReadPart], tokens: Sequence[ReadToken] | None) -> None:
        """Send the new parts of a choice."""
        ...

    async def end(self, choices: Sequence[FinishedChoice], prompt_tokens: int) -> None:
        """Send the rest of the response."""
        ...

    async def fail(self, refusal: Refusal) -> None:
        """Send an error to the client, or raise `refusal` if nothing has been sent yet."""
        ...


class Exchange(Protocol):
    """One checked request and the format of its response."""

    @property
    def request(self) -> ModelRequest:
        """The checked request."""
        ...

    def reply(self, send: Send, response_id: str, created: int, prompts: Sequence[EncodedPrompt]) -> Reply:
        """Return the writer of the response to `prompts`; `created` is in Unix seconds."""
        ...

    def attributes(self, response_id: str, created: int, choices: Sequence[FinishedChoice]) -> Attributes:
        """Return the span attributes that only this dialect records."""
        ...


class Dialect(Protocol):
    """One API of a model provider."""

    name: str
    """Name of the dialect in metrics and records."""
    path: str
    """Path of the endpoint below the version, such as `/chat/completions`."""
    id_prefix: str
    """Prefix of response ids."""
    prompt_field: str
    """Name of the request field that contains the prompt."""
    contexts: int
    """Number of full contexts that the prompts of one request may fill together."""

    async def parse(self, body: bytes, origin: Origin, work: RequestWork) -> Exchange:
        """Parse and check a request; a long request is parsed on a thread of `work`.

        Raises Refusal for a request that no response can satisfy.
        """
        ...

    def too_long(self, room: int, tokens: int) -> Refusal:
        """Return the refusal of a prompt of `tokens` tokens for a context of `room` tokens."""
        ...

    def error_answer(self, refusal: Refusal) -> ErrorAnswer:
        """Return the error response to a refusal, in the provider's format."""
        ...

    def error_event(self, refusal: Refusal) -> bytes:
        """Return the event with which a stream of an upstream server fails, in the provider's format."""
        ...

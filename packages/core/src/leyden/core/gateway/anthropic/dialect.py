"""`MessagesDialect`: the dialect of the Messages API; it combines parsing of requests and writing of responses."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import Send

from leyden.core.data import semconv
from leyden.core.data.span import Attributes
from leyden.core.gateway.anthropic.errors import error_answer, error_event
from leyden.core.gateway.anthropic.format import Head
from leyden.core.gateway.anthropic.reply import PlainReply, StreamReply
from leyden.core.gateway.anthropic.request import MessagesRequest, parse_count, parse_messages
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.dialect import EncodedPrompt, FinishedChoice, Reply
from leyden.core.gateway.limits.long_work import RequestWork
from leyden.core.gateway.refusal import ErrorAnswer, Refusal, invalid


@dataclass(frozen=True, slots=True)
class MessagesExchange:
    """One checked request of the Messages API and the format of its response."""

    request: MessagesRequest

    def reply(self, send: Send, response_id: str, created: int, prompts: Sequence[EncodedPrompt]) -> Reply:
        """Return the writer of the response: streamed or plain, as requested."""
        head = Head(
            id=response_id,
            model=self.request.model,
            input_tokens=sum(len(prompt.ids) for prompt in prompts),
            thinking=self.request.thinking,
        )
        return (StreamReply if self.request.stream else PlainReply)(send, head)

    def attributes(self, response_id: str, created: int, choices: Sequence[FinishedChoice]) -> Attributes:
        """Return the list of blocks that are left out of the prompt, if there are any."""
        left_out = self.request.left_out
        return {semconv.LEFT_OUT: left_out} if left_out else {}


class MessagesDialect:
    """Dialect of `POST /v1/messages`."""

    name = "messages"
    path = "/messages"
    id_prefix = "msg_"
    prompt_field = "messages"
    contexts = 1

    async def parse(self, body: bytes, origin: Origin, work: RequestWork) -> MessagesExchange:
        """Parse and check a request; raises Refusal for a request that no response can satisfy."""
        return MessagesExchange(await work.run(len(body), lambda: parse_messages(body)))

    def too_long(self, room: int, tokens: int) -> Refusal:
        """Return the refusal of a prompt that leaves no room for a response."""
        return invalid(f"prompt is too long: {tokens} tokens > {room} maximum")

    def error_answer(self, refusal: Refusal) -> ErrorAnswer:
        """Return the error response to a refusal."""
        return error_answer(refusal)

    def error_event(self, refusal: Refusal) -> bytes:
        """Return the event with which a stream of an upstream server fails."""
        return error_event(refusal)


class CountDialect(MessagesDialect):
    """Dialect of `POST /v1/messages/count_tokens`, whose requests have no fields about the response."""

    async def parse(self, body: bytes, origin: Origin, work: RequestWork) -> MessagesExchange:
        """Parse and check a request; raises Refusal for an invalid request."""
        return MessagesExchange(await work.run(len(body), lambda: parse_count(body)))

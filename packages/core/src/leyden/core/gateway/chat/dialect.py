"""`ChatDialect`: the dialect of the Chat Completions API; it combines parsing of requests and writing of responses."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import Send

from leyden.core.data.span import Attributes
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.chat.format import AnswerHead, server_event
from leyden.core.gateway.chat.reply import PlainReply, StreamReply
from leyden.core.gateway.chat.request import ChatRequest, parse_chat
from leyden.core.gateway.dialect import EncodedPrompt, FinishedChoice, Reply
from leyden.core.gateway.limits.long_work import RequestWork
from leyden.core.gateway.refusal import ErrorAnswer, Refusal, openai_error


@dataclass(frozen=True, slots=True)
class ChatExchange:
    """One checked request of Chat Completions and the format of its response."""

    request: ChatRequest

    def reply(self, send: Send, response_id: str, created: int, prompts: Sequence[EncodedPrompt]) -> Reply:
        """Return the writer of the response: streamed or plain, as requested."""
        request = self.request
        head = AnswerHead(
            id=response_id,
            created=created,
            model=request.model,
            include_usage=request.include_usage,
            padded=request.padded,
        )
        return (StreamReply if request.stream else PlainReply)(send, head, request)

    def attributes(self, response_id: str, created: int, choices: Sequence[FinishedChoice]) -> Attributes:
        """Return no attributes, because the API is stateless."""
        return {}


class ChatDialect:
    """Dialect of `POST /v1/chat/completions`."""

    name = "chat"
    path = "/chat/completions"
    id_prefix = "chatcmpl-"
    prompt_field = "messages"
    contexts = 1

    async def parse(self, body: bytes, origin: Origin, work: RequestWork) -> ChatExchange:
        """Parse and check a request; raises Refusal for a request that no response can satisfy."""
        return ChatExchange(await work.run(len(body), lambda: parse_chat(body)))

    def too_long(self, room: int, tokens: int) -> Refusal:
        """Return the refusal of messages of `tokens` tokens for a context of `room` tokens."""
        message = (
            f"This model's maximum context length is {room} tokens, but your messages resulted in {tokens} tokens."
        )
        return Refusal(400, message, param="messages", code="context_length_exceeded")

    def error_answer(self, refusal: Refusal) -> ErrorAnswer:
        """Return the error response to a refusal."""
        return openai_error(refusal)

    def error_event(self, refusal: Refusal) -> bytes:
        """Return the event with which a stream of an upstream server fails."""
        return server_event(refusal.encode())

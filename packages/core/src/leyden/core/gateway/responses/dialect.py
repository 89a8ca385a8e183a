"""`ResponsesDialect`: the dialect of the Responses API; it combines parsing, writing and stored conversations."""

from collections.abc import Sequence

import msgspec
from starlette.types import Send

from leyden.core.data import semconv
from leyden.core.data.span import Attributes
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.chat.format import server_event
from leyden.core.gateway.dialect import EncodedPrompt, FinishedChoice, Reply
from leyden.core.gateway.limits.long_work import RequestWork
from leyden.core.gateway.refusal import ErrorAnswer, Refusal, openai_error
from leyden.core.gateway.responses.format import Head, Response
from leyden.core.gateway.responses.items import Item
from leyden.core.gateway.responses.reply import AnswerWriter, PlainReply, StreamReply
from leyden.core.gateway.responses.request import ResponsesRequest, checked_request, read_draft
from leyden.core.gateway.responses.state import Conversations, Turn, named_items


class ResponsesExchange:
    """One checked request of the Responses API; its response is added to `conversations`."""

    def __init__(self, request: ResponsesRequest, origin: Origin, conversations: Conversations) -> None:
        self.request = request
        self._origin, self._conversations = origin, conversations
        self._writer: AnswerWriter | None = None

    def reply(self, send: Send, response_id: str, created: int, prompts: Sequence[EncodedPrompt]) -> Reply:
        """Return the writer of the response: streamed or plain, as requested."""
        return (StreamReply if self.request.stream else PlainReply)(
            send, self._answer_writer(response_id, created), self._remember
        )

    def attributes(self, response_id: str, created: int, choices: Sequence[FinishedChoice]) -> Attributes:
        """Return what a later request needs to continue the conversation, unless the request has `store: false`.

        Also returns the list of items that are left out of the prompt, if there are any.
        """
        left_out = self.request.left_out
        kept: Attributes = {semconv.LEFT_OUT: left_out} if left_out else {}
        if self.request.settings.store:
            kept |= self._turn(self._answer_writer(response_id, created).whole(choices[0])).attributes()
        return kept

    def _answer_writer(self, response_id: str, created: int) -> AnswerWriter:
        """Return the writer of the response; it is created once, as it keeps the log-probabilities already sent."""
        if self._writer is None:
            request = self.request
            self._writer = AnswerWriter(
                Head(
                    id=response_id,
                    created=created,
                    model=request.model,
                    settings=request.settings,
                    padded=request.padded,
                    copies_reasoning=request.copies_reasoning,
                )
            )
        return self._writer

    def _remember(self, answer: Response) -> None:
        if self.request.settings.store:
            self._conversations.remember(self._origin, self._turn(answer))

    def _turn(self, answer: Response) -> Turn:
        return Turn(answer=answer, items=named_items(self.request.items, answer["id"]))


class ResponsesDialect:
    """Dialect of `POST /v1/responses`; a request can continue from a response in `conversations`."""

    name = "responses"
    path = "/responses"
    id_prefix = "resp_"
    prompt_field = "input"
    contexts = 1

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

    async def parse(self, body: bytes, origin: Origin, work: RequestWork) -> ResponsesExchange:
        """Parse and check a request, and load the conversation that it continues.

        Raises Refusal for a request that no response can satisfy.
        """
        draft = await work.run(len(body), lambda: read_draft(body))
        earlier = await self._conversations.items_until(origin, draft.previous) if draft.previous else []
        items = [await self._resolved(item, origin) for item in draft.items]
        size = len(body) + (len(msgspec.json.encode(earlier)) if earlier else 0)
        request = await work.run(size, lambda: checked_request(draft, items, earlier))
        return ResponsesExchange(request, origin, self._conversations)

    def too_long(self, room: int, tokens: int) -> Refusal:
        """Return the refusal of a conversation that leaves no room for a response."""
        message = "Your input exceeds the context window of this model. Please adjust your input and try again."
        return Refusal(400, message, param="input", code="context_length_exceeded")

    def error_answer(self, refusal: Refusal) -> ErrorAnswer:
        """Return the error response to a refusal."""
        return openai_error(refusal)

    def error_event(self, refusal: Refusal) -> bytes:
        """Return the event with which a stream of an upstream server fails."""
        return server_event(refusal.encode())

    async def _resolved(self, item: Item, origin: Origin) -> Item:
        return await self._conversations.item(origin, item["id"]) if item["type"] == "item_reference" else item

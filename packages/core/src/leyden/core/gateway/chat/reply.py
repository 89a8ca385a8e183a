"""Chat Completions replies: send a response as one JSON document or as server-sent events."""

from collections.abc import Sequence

import msgspec
from starlette.types import Send

from leyden.core.gateway.chat.format import (
    DONE,
    AnswerHead,
    Delta,
    Logprobs,
    TokenIds,
    Usage,
    answer_message,
    call_deltas,
    completion,
    delta_event,
    logprobs,
    plain_choice,
    reasoning_delta,
    server_event,
    usage,
    usage_event,
)
from leyden.core.gateway.chat.request import ChatRequest
from leyden.core.gateway.codecs.answer_reader import ReadPart, ReadToken
from leyden.core.gateway.dialect import FinishedChoice
from leyden.core.gateway.http.asgi import EventWriter, send_json
from leyden.core.gateway.reasoning import Reasoning
from leyden.core.gateway.refusal import Refusal


class PlainReply:
    """Writer of a response as one JSON document."""

    live = False

    def __init__(self, send: Send, head: AnswerHead, request: ChatRequest) -> None:
        self._send, self._head, self._request = send, head, request

    async def show(self, choice: int, parts: Sequence[ReadPart], tokens: Sequence[ReadToken] | None) -> None:
        """Send nothing; `end` sends the whole response."""

    async def end(self, choices: Sequence[FinishedChoice], prompt_tokens: int) -> None:
        """Send the document."""
        answers = [
            plain_choice(
                index,
                answer_message(drawn.reader.content, drawn.reader.calls, drawn.reader.reasoning),
                drawn.finish(self._request),
                logprobs(drawn.reader.tokens()),
                _ids(drawn, self._request),
            )
            for index, drawn in enumerate(choices)
        ]
        token_usage = _usage(prompt_tokens, choices)
        await send_json(self._send, 200, completion(self._head, answers, token_usage, _ids(choices[0], self._request)))

    async def fail(self, refusal: Refusal) -> None:
        """Raise `refusal`, because nothing has been sent yet."""
        raise refusal


class StreamReply:
    """Writer of a response as server-sent events."""

    live = True

    def __init__(self, send: Send, head: AnswerHead, request: ChatRequest) -> None:
        self._head, self._request = head, request
        self._opened: set[int] = set()
        self._calls: dict[int, int] = {}
        self._events = EventWriter(send, concurrent=request.choices > 1)

    async def show(self, choice: int, parts: Sequence[ReadPart], tokens: Sequence[ReadToken] | None) -> None:
        """Send the new parts of a choice: one event for each text or reasoning, two for each tool call."""
        token_logprobs = logprobs(tokens)
        for part in parts:
            if isinstance(part, str):
                delta = Delta(content=part)
                await self._events.write(
                    self._opening_event(choice) + delta_event(self._head, choice, delta, token_logprobs=token_logprobs)
                )
                token_logprobs = None
                continue
            if isinstance(part, Reasoning):
                event = delta_event(self._head, choice, reasoning_delta(part.text))
                await self._events.write(self._opening_event(choice) + event)
                continue
            name, arguments = call_deltas(part, self._calls.get(choice, 0))
            if choice not in self._opened:
                self._opened.add(choice)
                name = msgspec.structs.replace(name, role="assistant", content=None, refusal=None)
            await self._events.write(delta_event(self._head, choice, name) + delta_event(self._head, choice, arguments))
            self._calls[choice] = self._calls.get(choice, 0) + 1

    async def end(self, choices: Sequence[FinishedChoice], prompt_tokens: int) -> None:
        """Send the finish reason of each choice, the token counts if requested, and the end mark."""
        events: list[bytes] = []
        for index, drawn in enumerate(choices):
            finish, ids = drawn.finish(self._request), _ids(drawn, self._request)
            ending = delta_event(self._head, index, Delta(), finish, ids=ids)
            events.append(self._opening_event(index) + ending)
        if self._head.include_usage:
            token_usage = _usage(prompt_tokens, choices)
            events.append(usage_event(self._head, token_usage))
        await self._events.write(b"".join([*events, DONE]), more=False)

    async def fail(self, refusal: Refusal) -> None:
        """Send an error event, which clients raise as an exception; raises `refusal` if nothing has been sent yet."""
        if not self._events.started:
            raise refusal
        await self._events.write(server_event(refusal.encode()), more=False)

    def _opening_event(self, choice: int) -> bytes:
        """Return the event that opens a choice; empty after the first call for this choice."""
        if choice in self._opened:
            return b""
        self._opened.add(choice)
        token_logprobs = Logprobs([]) if self._request.logprobs else None
        return delta_event(
            self._head, choice, Delta(role="assistant", content="", refusal=None), token_logprobs=token_logprobs
        )


def _usage(prompt_tokens: int, choices: Sequence[FinishedChoice]) -> Usage:
    return usage(
        prompt_tokens,
        sum(drawn.tokens for drawn in choices),
        sum(drawn.reasoning_tokens for drawn in choices),
    )


def _ids(drawn: FinishedChoice, request: ChatRequest) -> TokenIds | None:
    """Return the token ids of a choice, if the agent requested them."""
    return TokenIds(list(drawn.prompt_ids), list(drawn.response_ids)) if request.return_token_ids else None

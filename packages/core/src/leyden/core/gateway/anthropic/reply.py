"""Messages replies: send a response as one JSON document or as server-sent events."""

import time
from collections.abc import Sequence

import msgspec
from starlette.types import Send

from leyden.core.gateway.anthropic.errors import error_event, new_request_id, request_headers
from leyden.core.gateway.anthropic.format import (
    PING,
    Head,
    block_start,
    block_stop,
    call_input,
    content_blocks,
    end_events,
    ending,
    input_delta,
    message,
    signature,
    signature_delta,
    start_event,
    text_block,
    text_delta,
    thinking_block,
    thinking_delta,
    tool_block,
)
from leyden.core.gateway.codecs.answer_reader import AnswerCall, ReadPart, ReadToken
from leyden.core.gateway.dialect import FinishedChoice
from leyden.core.gateway.http.asgi import EVENTS, send_json, start_message
from leyden.core.gateway.reasoning import Reasoning
from leyden.core.gateway.refusal import Refusal

PING_SECONDS = 10.0
"""Seconds without an event after which a stream gets a ping, while the policy writes a long tool call."""


class PlainReply:
    """Writer of a response as one JSON document."""

    live = False

    def __init__(self, send: Send, head: Head) -> None:
        self._send, self._head = send, head

    async def show(self, choice: int, parts: Sequence[ReadPart], tokens: Sequence[ReadToken] | None) -> None:
        """Send nothing; `end` sends the whole response."""

    async def end(self, choices: Sequence[FinishedChoice], prompt_tokens: int) -> None:
        """Send the document."""
        answer = message(self._head, content_blocks(self._head, choices[0].reader.parts), ending(choices[0]))
        await send_json(self._send, 200, msgspec.json.encode(answer), request_headers(new_request_id()))

    async def fail(self, refusal: Refusal) -> None:
        """Raise `refusal`, because nothing has been sent yet."""
        raise refusal


class StreamReply:
    """Writer of a response as server-sent events.

    The status line is sent with the first token, so that an earlier error can still have its own status. A text is sent
    while it is sampled. A tool call is sent when it is complete, so that a text that only looks like a call stays text.
    """

    live = True

    def __init__(self, send: Send, head: Head) -> None:
        self._send, self._head = send, head
        self._request_id = new_request_id()
        self._started = False
        self._sent_at = 0.0
        self._index = 0
        """Index of the open block, or of the next one."""
        self._text_is_open = False
        self._thoughts: list[str] = []
        """Pieces of the open thinking block; empty if none is open."""

    async def show(self, choice: int, parts: Sequence[ReadPart], tokens: Sequence[ReadToken] | None) -> None:
        """Send the events of the new parts; without new parts, send a ping if the last event was long ago."""
        events = self._opening_events()
        for part in parts:
            if isinstance(part, Reasoning):
                events += self._thinking(part.text)
            elif isinstance(part, str):
                events += [*self._close_thinking(), *self._text(part)]
            else:
                events += [*self._close(), *self._call_events(part)]
        if not events and time.monotonic() - self._sent_at > PING_SECONDS:
            events = [PING]
        if events:
            await self._write(events)

    async def end(self, choices: Sequence[FinishedChoice], prompt_tokens: int) -> None:
        """Send the events that end the open block and the response."""
        events = self._opening_events()
        if not self._index and not self._text_is_open and not self._thoughts:
            events += self._text("")
        await self._write([*events, *self._close(), end_events(self._head, ending(choices[0]))], more=False)

    async def fail(self, refusal: Refusal) -> None:
        """Send an error event, which clients raise as an exception; raises `refusal` if nothing has been sent yet."""
        if not self._started:
            raise refusal
        await self._write([error_event(refusal, self._request_id)], more=False)

    def _opening_events(self) -> list[bytes]:
        """Return the events that open the stream; empty after the first event."""
        return [] if self._started else [start_event(self._head), PING]

    def _text(self, text: str) -> list[bytes]:
        opening = [] if self._text_is_open else [block_start(self._index, text_block())]
        self._text_is_open = True
        return [*opening, *([text_delta(self._index, text)] if text else [])]

    def _close(self) -> list[bytes]:
        """Return the events that end the open block; empty if no block is open."""
        if not self._text_is_open:
            return self._close_thinking()
        self._text_is_open = False
        self._index += 1
        return [block_stop(self._index - 1)]

    def _thinking(self, text: str) -> list[bytes]:
        if self._head.thinking == "hidden":
            return []
        opening = [] if self._thoughts else [block_start(self._index, thinking_block())]
        self._thoughts.append(text)
        return [*opening, *([thinking_delta(self._index, text)] if self._head.thinking == "shown" else [])]

    def _close_thinking(self) -> list[bytes]:
        """Return the events that end the open thinking block; empty if none is open."""
        if not self._thoughts:
            return []
        whole = signature(self._head, "".join(self._thoughts))
        self._thoughts = []
        self._index += 1
        return [signature_delta(self._index - 1, whole), block_stop(self._index - 1)]

    def _call_events(self, call: AnswerCall) -> list[bytes]:
        index, self._index = self._index, self._index + 1
        return [block_start(index, tool_block(call)), input_delta(index, call_input(call)), block_stop(index)]

    async def _write(self, events: Sequence[bytes], *, more: bool = True) -> None:
        if not self._started:
            self._started = True
            await self._send(start_message(200, EVENTS, extra_headers=request_headers(self._request_id)))
        self._sent_at = time.monotonic()
        await self._send({"type": "http.response.body", "body": b"".join(events), "more_body": more})

"""Replies of the Responses API: send a response as one JSON document or as server-sent events."""

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from starlette.types import Send

from leyden.core.gateway.codecs.answer_reader import AnswerCall, ReadPart, ReadToken
from leyden.core.gateway.dialect import FinishedChoice
from leyden.core.gateway.http.asgi import EVENTS, send_json, start_message
from leyden.core.gateway.http.padding import padding
from leyden.core.gateway.reasoning import Reasoning
from leyden.core.gateway.refusal import Refusal
from leyden.core.gateway.responses.format import (
    Ending,
    Head,
    Response,
    billed,
    call,
    event,
    logprobs,
    message,
    output_items,
    reasoning,
    response,
    usage,
)
from leyden.core.gateway.responses.items import Item, reasoning_part, text_part


class AnswerWriter:
    """Builder of one response's JSON; repeated calls return the same content and the same completion time."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self._tokens: list[ReadToken] = []
        self._completed_at: int | None = None

    def take(self, tokens: Sequence[ReadToken] | None) -> None:
        """Keep tokens with log-probabilities that were read from the answer, for the whole response."""
        self._tokens += tokens or ()

    def begun(self) -> Response:
        """Return the response before its first output."""
        return response(self.head, [], Ending(status="in_progress"))

    def failed(self, output: Sequence[Item], error: str) -> Response:
        """Return a failed response with the output so far."""
        return response(self.head, output, Ending(status="failed", error={"code": "server_error", "message": error}))

    def whole(self, drawn: FinishedChoice, prompt_tokens: int | None = None) -> Response:
        """Return the whole response; without `prompt_tokens`, it has no token counts but those of its reasoning."""
        self.take(drawn.reader.tokens())
        if self._completed_at is None:
            self._completed_at = int(time.time())
        output = output_items(self.head, drawn.reader.parts, self._tokens, cut=drawn.cut)
        token_usage: Mapping[str, object] | None = usage(prompt_tokens or 0, drawn.tokens, drawn.reasoning_tokens)
        if prompt_tokens is None:
            details = "output_tokens_details"
            token_usage = {details: token_usage[details]} if drawn.reasoning_tokens else None
        if drawn.cut:
            return response(self.head, output, Ending(status="incomplete", usage=token_usage))
        return response(self.head, output, Ending(completed_at=self._completed_at, usage=token_usage))


OnEnd = Callable[[Response], None]
"""Callback that gets the whole response before its last part is sent."""


class PlainReply:
    """Writer of a response as one JSON document."""

    live = False

    def __init__(self, send: Send, writer: AnswerWriter, on_end: OnEnd) -> None:
        self._send, self._writer, self._on_end = send, writer, on_end

    async def show(self, choice: int, parts: Sequence[ReadPart], tokens: Sequence[ReadToken] | None) -> None:
        """Send nothing; `end` sends the whole response."""

    async def end(self, choices: Sequence[FinishedChoice], prompt_tokens: int) -> None:
        """Send the document; the callback `on_end` runs before."""
        answer = self._writer.whole(choices[0], prompt_tokens)
        self._on_end(answer)
        await send_json(self._send, 200, msgspec.json.encode(billed(answer)))

    async def fail(self, refusal: Refusal) -> None:
        """Raise `refusal`, because nothing has been sent yet."""
        raise refusal


class StreamReply:
    """Writer of a response as server-sent events.

    The status line is sent with the first event, so that an earlier error can still have its own status.
    """

    live = True

    def __init__(self, send: Send, writer: AnswerWriter, on_end: OnEnd) -> None:
        self._send, self._writer, self._on_end = send, writer, on_end
        self._id, self._padded = writer.head.id, writer.head.padded
        self._number = 0
        self._items: list[Item] = []
        """Items that are complete."""
        self._texts: list[str] | None = None
        """Texts of the open message so far; None if no message is open."""
        self._logprobs: list[Item] = []
        self._thoughts: list[str] | None = None
        """Pieces of the open reasoning so far; None if no reasoning is open."""

    async def show(self, choice: int, parts: Sequence[ReadPart], tokens: Sequence[ReadToken] | None) -> None:
        """Send the events of the new parts."""
        self._writer.take(tokens)
        events: list[bytes] = []
        token_logprobs = logprobs(tokens)
        for part in parts:
            events += self._opening_events()
            if isinstance(part, Reasoning):
                events += self._reasoning(part.text)
            elif isinstance(part, str):
                events += [*self._close_reasoning(), *self._text(part, token_logprobs)]
                token_logprobs = []
            else:
                events += [*self._close(), *self._call(part)]
        if events:
            await self._write(events)

    async def end(self, choices: Sequence[FinishedChoice], prompt_tokens: int) -> None:
        """Send the events that end the open message, then the event with the whole response."""
        answer = self._writer.whole(choices[0], prompt_tokens)
        events = self._opening_events()
        if not self._items and self._texts is None and self._thoughts is None:
            events += self._open()
        events += self._close("incomplete" if choices[0].cut else "completed")
        events.append(self._event(f"response.{answer['status']}", response=answer))
        self._on_end(answer)
        await self._write(events, more=False)

    async def fail(self, refusal: Refusal) -> None:
        """Send an error event, which clients raise as an exception; raises `refusal` if nothing has been sent yet."""
        if not self._number:
            raise refusal
        error = self._event("error", error=msgspec.structs.asdict(refusal.body))
        failed = self._event("response.failed", response=self._writer.failed(self._items, str(refusal)))
        await self._write([error, failed], more=False)

    def _opening_events(self) -> list[bytes]:
        """Return the events that open the stream; empty after the first event."""
        if self._number:
            return []
        begun = self._writer.begun()
        return [self._event("response.created", response=begun), self._event("response.in_progress", response=begun)]

    def _open(self) -> list[bytes]:
        self._texts = []
        item = message(self._id, len(self._items), [], "in_progress")
        return [
            self._event("response.output_item.added", item=item, output_index=len(self._items)),
            self._event("response.content_part.added", **self._location(), part=text_part("")),
        ]

    def _text(self, text: str, token_logprobs: list[Item]) -> list[bytes]:
        events = self._open() if self._texts is None else []
        assert self._texts is not None
        self._texts.append(text)
        self._logprobs += token_logprobs
        return [*events, self._delta("response.output_text.delta", text, **self._location(), logprobs=token_logprobs)]

    def _close(self, status: str = "completed") -> list[bytes]:
        """Return the events that end the open message or reasoning; empty if neither is open."""
        if self._texts is None:
            return self._close_reasoning(status)
        part = text_part("".join(self._texts), self._logprobs)
        item = message(self._id, len(self._items), [part], status)
        text_fields = {"text": part["text"], "logprobs": part["logprobs"]}
        events = [
            self._event("response.output_text.done", **self._location(), **text_fields),
            self._event("response.content_part.done", **self._location(), part=part),
            self._event("response.output_item.done", item=item, output_index=len(self._items)),
        ]
        self._items.append(item)
        self._texts, self._logprobs = None, []
        return events

    def _reasoning(self, text: str) -> list[bytes]:
        events: list[bytes] = []
        if self._thoughts is None:
            self._thoughts = []
            item = reasoning(self._writer.head, len(self._items), "", "in_progress")
            events += [
                self._event("response.output_item.added", item=item, output_index=len(self._items)),
                self._event("response.content_part.added", **self._reasoning_location(), part=reasoning_part("")),
            ]
        self._thoughts.append(text)
        return [*events, self._delta("response.reasoning_text.delta", text, **self._reasoning_location())]

    def _close_reasoning(self, status: str = "completed") -> list[bytes]:
        """Return the events that end the open reasoning; empty if none is open."""
        if self._thoughts is None:
            return []
        text, self._thoughts = "".join(self._thoughts), None
        item = reasoning(self._writer.head, len(self._items), text, status)
        events = [
            self._event("response.reasoning_text.done", **self._reasoning_location(), text=text),
            self._event("response.content_part.done", **self._reasoning_location(), part=reasoning_part(text)),
            self._event("response.output_item.done", item=item, output_index=len(self._items)),
        ]
        self._items.append(item)
        return events

    def _reasoning_location(self) -> dict[str, object]:
        """Return the event fields that locate the open reasoning."""
        index = len(self._items)
        return {"item_id": reasoning(self._writer.head, index, "")["id"], "output_index": index, "content_index": 0}

    def _call(self, answer_call: AnswerCall) -> list[bytes]:
        index = len(self._items)
        item = call(self._id, index, answer_call)
        location = {"item_id": item["id"], "output_index": index}
        begun = call(self._id, index, answer_call, "in_progress", "")
        self._items.append(item)
        return [
            self._event("response.output_item.added", item=begun, output_index=index),
            self._delta("response.function_call_arguments.delta", answer_call.arguments, **location),
            self._event("response.function_call_arguments.done", **location, arguments=answer_call.arguments),
            self._event("response.output_item.done", item=item, output_index=index),
        ]

    def _location(self) -> dict[str, object]:
        """Return the event fields that locate the text of the open message."""
        index = len(self._items)
        return {"item_id": message(self._id, index, [])["id"], "output_index": index, "content_index": 0}

    def _delta(self, kind: str, delta: str, **fields: object) -> bytes:
        padded = {"obfuscation": padding(delta)} if self._padded else {}
        return self._event(kind, **fields, delta=delta, **padded)

    def _event(self, kind: str, **fields: object) -> bytes:
        number, self._number = self._number, self._number + 1
        return event(kind, number, fields)

    async def _write(self, events: Sequence[bytes], *, more: bool = True) -> None:
        if events[0].startswith(b"event: response.created\n"):
            await self._send(start_message(200, EVENTS))
        await self._send({"type": "http.response.body", "body": b"".join(events), "more_body": more})

"""ASGI helpers: HTTP functions that the gateway's endpoints share, such as JSON responses and disconnect detection."""

import asyncio
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from leyden.core.gateway.limits.connections import connection_of

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ClientGone(Exception):
    """The client disconnected before its response was complete."""


def start_message(
    status: int, content_type: bytes, length: int | None = None, extra_headers: Mapping[str, str] = NO_HEADERS
) -> Message:
    """Return the ASGI message that starts a response; `length` is in bytes, and None for a streamed response.

    The request's id is that of the header `request-id` in `extra_headers`, or else a new one.
    """
    request_id = extra_headers.get("request-id") or f"req_{os.urandom(16).hex()}"
    headers = [(b"content-type", content_type), (b"x-request-id", request_id.encode())]
    headers += [(name.encode(), value.encode()) for name, value in extra_headers.items()]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    return {"type": "http.response.start", "status": status, "headers": headers}


async def send_json(send: Send, status: int, body: bytes, headers: Mapping[str, str] = NO_HEADERS) -> None:
    """Send a complete JSON response."""
    await send(start_message(status, JSON, len(body), headers))
    await send({"type": "http.response.body", "body": body})


class EventWriter:
    """Writer of server-sent events.

    The status line is sent with the first event, so that an earlier error can still have its own status. With
    `concurrent`, several tasks may write, and their events are serialized.
    """

    def __init__(self, send: Send, *, concurrent: bool) -> None:
        self._send = send
        self._writing = asyncio.Lock() if concurrent else None
        self.started = False
        """Whether an event has been sent."""

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send events; without `more`, they are the last."""
        if self._writing is None:
            return await self._write(data, more)
        async with self._writing:
            await self._write(data, more)

    async def _write(self, data: bytes, more: bool) -> None:
        if not self.started:
            self.started = True
            await self._send(start_message(200, EVENTS))
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


class ClientWatch:
    """Detects that the client of a request has disconnected; the request's body must have been read before.

    The gateway's own server reports the end of a connection itself. For another server, a task waits for its message.

    On a disconnect, `with watch.cancelling():` cancels its block and raises ClientGone. A block that is entered after
    the disconnect raises ClientGone at once. The task that made the watch runs these blocks, one after the other.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._connection, self._receive = connection_of(scope), receive
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._watcher: asyncio.Task[None] | None = None
        self._cancels = False
        self._cancel_count = 0
        self.gone = False

    def __enter__(self) -> "ClientWatch":
        if self._connection is None:
            self._watcher = asyncio.create_task(self._watch())
        else:
            self._connection.watch(self._client_has_gone)
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.watch(None)
        elif self._watcher is not None:
            self._watcher.cancel()

    def cancelling(self) -> "_Cancelling":
        """Return a context manager that cancels its block if the client disconnects."""
        return _Cancelling(self)

    def enter(self) -> None:
        """Start to cancel the task on a disconnect; raises ClientGone if the client has already disconnected."""
        if self.gone:
            raise ClientGone
        self._cancel_count = self._task.cancelling()
        self._cancels = True

    def leave(self, error: BaseException | None) -> None:
        """Stop cancelling the task on a disconnect; raises ClientGone if a disconnect alone has cancelled it."""
        self._cancels = False
        if isinstance(error, asyncio.CancelledError) and self.gone and self._task.uncancel() <= self._cancel_count:
            raise ClientGone from error

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._client_has_gone()

    def _client_has_gone(self) -> None:
        self.gone = True
        if self._cancels:
            self._task.cancel()


class _Cancelling:
    """Context manager of `ClientWatch.cancelling`; a class and not a generator, because every call enters four."""

    __slots__ = ("_watch",)

    def __init__(self, watch: ClientWatch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._watch.enter()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        self._watch.leave(error)

"""HTTP protocol: uvicorn's protocol of one connection with timeouts for slow clients.

It limits the time in which a client must send the rest of a request and read its response. The connection of a client
that is too slow is closed, without a response if none can be sent. While a body is read, the reader's own time limits
apply (`body.BodyLimits`). A request that arrives in one piece, as almost all do, starts no timer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from leyden.core.gateway.limits.connections import CONNECTION, UNKNOWN, Connections, Unauthenticated
from leyden.core.gateway.refusal import Refusal, invalid

_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on the time and memory of one connection, and on the number of connections."""

    head_seconds: float = 15.0
    """Time for a whole request head, from the start of the connection or of the head.

    Also the time for the rest of a request that was answered before it had arrived completely.
    """
    head_bytes: int = 64 << 10
    unread_seconds: float = 300.0
    """Total time for which a client may leave one response unread."""
    max_connections: int = 8192
    """Open connections; further ones wait in the operating system's queue.

    The limit is lower if the process may not open so many files.
    """
    max_unknown: int = 2048
    """Connections without an accepted token; for a further one, the oldest idle one is closed."""
    max_unknown_per_peer: int = 1024
    """Connections without an accepted token from one address."""
    max_per_attempt: int = 1024
    """Connections of one attempt; for a further one, an idle one is closed, or else the request is refused."""


class TimeoutProtocol(HttpToolsProtocol):
    """Protocol of one connection; the callback `lost` runs when the connection is closed."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        limits: ConnectionLimits,
        lost: Callable[[], None],
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._limits, self._lost, self._all = limits, lost, connections
        self.owner: str | Unauthenticated | None = UNKNOWN
        """Attempt of the last accepted token on this connection; see `Connection.owner`."""
        self._unread_left, self._unread_since = limits.unread_seconds, 0.0
        self.made = False
        """Whether the connection was ever established."""
        self._in_head = self._in_body = False
        self._head_size = 0
        """Bytes of an incomplete head so far, if the head arrives in several pieces."""
        self._tail = b""
        """Last bytes of the incomplete head, because the end marker may be split between two pieces."""
        self._behind = False
        """Whether the arriving piece starts with the end of an earlier request; it then does not count to the head."""
        self._refused = False
        """Whether further data is ignored."""
        self._owed: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._is_lost = False
        self._notify: Callable[[], None] | None = None
        """Callback of the request in progress, for the case that the connection is lost."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Register the connection, and start the timer for the first request head."""
        super().connection_made(transport)
        self.made = True
        self._all.made(self)
        if not transport.is_closing():
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, notify the request in progress, and remove the connection."""
        super().connection_lost(exc)
        self._is_lost = True
        if self._notify is not None:
            self._notify()
        self._all.lost(self)
        self._paid()
        self.resume_writing()
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Process data from the client; refuse a request head that is too long."""
        if self._refused:
            return
        head = not self._in_body
        if head and self._head_size + len(data) > self._limits.head_bytes and self._too_long(data):
            self._refuse_head()
            return
        self._behind = not head
        super().data_received(data)
        if self._in_head:
            self._head_size += 0 if self._behind else len(data)
            self._tail = (self._tail + data)[-len(_END) + 1 :]
        elif self._in_body or self._answering():
            return
        if self._owed is None and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self._expect()

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP.

        If the data follows a request that is still in progress, finish that response and then close the connection.
        """
        if self._answering() and not self._in_body:
            self._refused = True
            self.cycle.keep_alive = False
            return
        self.transport.write(_whole(b"400 Bad Request", invalid(msg)))
        self.transport.close()

    def on_message_begin(self) -> None:
        """Mark the start of a request head."""
        super().on_message_begin()
        self.scope["extensions"] = cast("Any", {CONNECTION: self})
        self._in_head = True

    def on_headers_complete(self) -> None:
        """Mark the end of the head, and stop its timer."""
        self._in_head, self._in_body = False, True
        self._head_size, self._tail = 0, b""
        self._paid()
        self._unset_keepalive_if_required()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Mark the end of the body."""
        self._in_body, self._behind = False, True
        if self._owed is not None:  # the response was complete before the body
            self._paid()
            self._keep_alive()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start a timer for the rest of a request that was answered early, because the next request follows it."""
        super().on_response_complete()
        self._unread_left = self._limits.unread_seconds
        if self._in_body and self.cycle.response_complete and self._owed is None:
            self._expect()

    def pause_writing(self) -> None:
        """Pause writing, and start the timer for the unread response."""
        super().pause_writing()
        if self._unread is None:
            self._unread_since = self.loop.time()
            self._unread = self.loop.call_later(max(0.0, self._unread_left), self.transport.abort)

    def resume_writing(self) -> None:
        """Resume writing, and stop the timer for the unread response."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
            self._unread_left -= self.loop.time() - self._unread_since

    @property
    def peer(self) -> str:
        """Address of the client, without its port."""
        return self.client[0] if self.client else ""

    @property
    def idle(self) -> bool:
        """Whether no request is in progress."""
        return not self._answering() and not self._in_body

    def accept(self, owner: str | None) -> None:
        """Record the attempt of an accepted token; raises Refusal if the attempt has too many busy connections."""
        self._all.accept(self, owner)

    @property
    def body_has_arrived(self) -> bool:
        """Whether the body of the request in progress, and of every pipelined one after it, has arrived completely."""
        return bool(self.cycle) and not self.cycle.more_body

    def watch(self, notify: Callable[[], None] | None) -> None:
        """Call `notify` when the connection is lost, at once if it already is; None: stop."""
        self._notify = notify
        if notify is None:
            return
        self.flow.resume_reading()
        if self._is_lost:
            notify()

    def shut(self) -> None:
        """Close the connection; abort it if a request is in progress."""
        if self.idle:
            self.transport.close()
        else:
            self.transport.abort()

    def _answering(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _keep_alive(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _expect(self) -> None:
        self._owed = self.loop.call_later(self._limits.head_seconds, self._overdue)

    def _paid(self) -> None:
        if self._owed is not None:
            self._owed.cancel()
            self._owed = None

    def _overdue(self) -> None:
        self._owed = None
        if self._answering():
            self._expect()  # a response is in progress, and the head of a further request has begun
        elif not self.transport.is_closing():
            self.transport.close()

    def _too_long(self, data: bytes) -> bool:
        end = (self._tail + data).find(_END)
        head = len(data) if end < 0 else end + len(_END) - len(self._tail)
        return self._head_size + head > self._limits.head_bytes

    def _refuse_head(self) -> None:
        """Send status 431, and ignore further data for a while; an immediate close could lose the response."""
        self._refused = True
        if self._answering():
            self.cycle.keep_alive = False
            return
        refusal = Refusal(431, f"The request's head is larger than {self._limits.head_bytes} bytes.")
        self.transport.write(_whole(b"431 Request Header Fields Too Large", refusal))
        self.transport.write_eof()
        self._paid()  # the client gets the whole time to read the response
        self._expect()


def _whole(status: bytes, refusal: Refusal) -> bytes:
    """Return a complete response as bytes; the connection is closed after it."""
    body = refusal.encode()
    lines = [
        b"HTTP/1.1 " + status,
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"connection: close",
    ]
    return b"\r\n".join(lines) + _END + body

"""`PatientProtocol`: uvicorn's HTTP protocol, with an end to its patience. Knows nothing of what is served.

A client owes us the rest of a request that it has begun, and somebody to read the answer. One that pays too slowly is
cut off, without an answer where none can be given; how slowly a body may come while it is read, its reader decides. A
request that arrives in one piece, as almost all do, starts no timer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from leyden.core.gateway.limits.connections import CONNECTION, UNKNOWN, Connections, Unknown
from leyden.core.gateway.refusal import Refusal, invalid

_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one connection may cost, and how many there may be."""

    head_seconds: float = 15.0
    """For a whole request head, from the moment the connection is made or the head begins; and for the rest of a
    request that was answered before it had come."""
    head_bytes: int = 64 << 10
    unread_seconds: float = 300.0
    """That a client may let one answer wait to be read, in all."""
    max_connections: int = 8192
    """Further ones wait in the operating system's queue until one of these is closed. Fewer where the process may not
    open so many files."""
    max_unknown: int = 2048
    """Without an accepted token; for one more, the oldest idle one is closed."""
    max_unknown_per_peer: int = 1024
    """Of one address."""
    max_per_attempt: int = 1024
    """At work for one attempt; the oldest idle one is closed before one is refused."""


class PatientProtocol(HttpToolsProtocol):
    """One connection; `lost` is called when it is closed."""

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
        self.owner: str | Unknown | None = UNKNOWN
        """Whose token came on it; see `Connection`."""
        self._unread_left, self._unread_since = limits.unread_seconds, 0.0
        self.made = False
        """Whether there has been a connection."""
        self._in_head = self._in_body = False
        self._head_size = 0
        """Bytes of the head so far, where it comes in several pieces."""
        self._tail = b""
        """The last of them: the end of the head may itself be cut."""
        self._behind = False
        """Whether what arrives begins with something else than a head, and is not counted as one."""
        self._refused = False
        """Whether what arrives is not looked at any more."""
        self._owed: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self.made = True
        self._all.made(self)
        if not transport.is_closing():
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        super().connection_lost(exc)
        self._all.lost(self)
        self._paid()
        self.resume_writing()
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Take what the client sent, unless it makes a head too long."""
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
        """Refuse what is no HTTP; where it stands behind a request that is being answered, answer that and no more."""
        if self._answering() and not self._in_body:
            self._refused = True
            self.cycle.keep_alive = False
            return
        self.transport.write(_whole(b"400 Bad Request", invalid(msg)))
        self.transport.close()

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self.scope["extensions"] = cast("Any", {CONNECTION: self})
        self._in_head = True

    def on_headers_complete(self) -> None:
        """End the head."""
        self._in_head, self._in_body = False, True
        self._head_size, self._tail = 0, b""
        self._paid()
        self._unset_keepalive_if_required()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the body."""
        self._in_body, self._behind = False, True
        if self._owed is not None:  # the answer is long given
            self._paid()
            self._keep_alive()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the rest of a request that was answered early: the next one begins behind it."""
        super().on_response_complete()
        self._unread_left = self._limits.unread_seconds
        if self._in_body and self.cycle.response_complete and self._owed is None:
            self._expect()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        if self._unread is None:
            self._unread_since = self.loop.time()
            self._unread = self.loop.call_later(max(0.0, self._unread_left), self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
            self._unread_left -= self.loop.time() - self._unread_since

    @property
    def peer(self) -> str:
        """The client's address, without its port."""
        return self.client[0] if self.client else ""

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return not self._answering() and not self._in_body

    def accept(self, owner: str | None) -> None:
        """Note whose token came; raises Refusal where an attempt has too many connections at work."""
        self._all.accept(self, owner)

    def shut(self) -> None:
        """Close the connection, at once where a request is under way."""
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
            self._expect()  # an answer is under way, and a further request has begun behind it
        elif not self.transport.is_closing():
            self.transport.close()

    def _too_long(self, data: bytes) -> bool:
        end = (self._tail + data).find(_END)
        head = len(data) if end < 0 else end + len(_END) - len(self._tail)
        return self._head_size + head > self._limits.head_bytes

    def _refuse_head(self) -> None:
        """Say so, and read on for a while without looking: closing at once could take the answer from the client."""
        self._refused = True
        if self._answering():
            self.cycle.keep_alive = False
            return
        refusal = Refusal(431, f"The request's head is larger than {self._limits.head_bytes} bytes.")
        self.transport.write(_whole(b"431 Request Header Fields Too Large", refusal))
        self.transport.write_eof()
        if self._owed is None:
            self._expect()


def _whole(status: bytes, refusal: Refusal) -> bytes:
    """Return a whole answer, after which the connection is closed."""
    body = refusal.encode()
    lines = [
        b"HTTP/1.1 " + status,
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"connection: close",
    ]
    return b"\r\n".join(lines) + _END + body

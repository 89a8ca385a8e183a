"""`Connections`: limits the connections without an accepted token, and the connections of one attempt.

A connection is unauthenticated until a request on it has an accepted token. If a new connection exceeds a limit, the
oldest idle connection of the same group is closed. The groups are the unauthenticated connections, those of one peer
address, and those of one attempt.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leyden.core.gateway.refusal import Refusal, retry_after

CONNECTION = "leyden.connection"
"""Key in the ASGI scope's `extensions` that holds the connection of a request."""


class Connection(Protocol):
    """One client's connection."""

    owner: "str | Unauthenticated | None"
    """Attempt id of its latest request; None for another accepted token, `UNKNOWN` before any accepted token."""

    @property
    def peer(self) -> str:
        """Address of the client."""
        ...

    @property
    def idle(self) -> bool:
        """Whether no request is in progress on it."""
        ...

    @property
    def body_has_arrived(self) -> bool:
        """Whether the body of the request in progress has arrived completely."""
        ...

    def accept(self, owner: str | None) -> None:
        """Record the attempt of an accepted token; raises Refusal if the attempt has too many busy connections."""
        ...

    def watch(self, notify: Callable[[], None] | None) -> None:
        """Call `notify` when the connection is lost, at once if it already is; None: stop."""
        ...

    def shut(self) -> None:
        """Close the connection."""
        ...


class Unauthenticated:
    """Owner of a connection that has not been authenticated yet."""


UNKNOWN = Unauthenticated()


class Connections:
    """The open connections of one server."""

    def __init__(self, *, unknown: int, unknown_per_peer: int, per_attempt: int) -> None:
        self._max_unknown, self._max_unknown_per_peer, self._max_per_attempt = unknown, unknown_per_peer, per_attempt
        # Dictionaries, because they keep their order: the oldest connection comes first.
        self._unknown: dict[Connection, None] = {}
        self._of_peer: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._of_attempt: defaultdict[str, dict[Connection, None]] = defaultdict(dict)

    @property
    def unknown(self) -> int:
        """Number of connections without an accepted token."""
        return len(self._unknown)

    def made(self, connection: Connection) -> None:
        """Register a new connection, and close an older one if there are too many."""
        peers = self._of_peer[connection.peer]
        self._unknown[connection] = peers[connection] = None
        if len(peers) > self._max_unknown_per_peer:
            self._shut(_oldest(peers))
        elif len(self._unknown) > self._max_unknown:
            self._shut(_oldest(self._unknown))

    def lost(self, connection: Connection) -> None:
        """Remove a connection that is closed."""
        self._leave(connection)

    def accept(self, connection: Connection, owner: str | None) -> None:
        """Record the attempt of an accepted token as the owner of a connection; None for another accepted token.

        Raises Refusal with status 429 if the attempt has too many busy connections.
        """
        if connection.owner == owner:
            return
        self._leave(connection)
        connection.owner = owner
        if owner is None:
            return
        own = self._of_attempt[owner]
        own[connection] = None
        if len(own) > self._max_per_attempt:
            idle = next((one for one in own if one.idle and one is not connection), None)
            if idle is None:
                message = f"This attempt has more than {self._max_per_attempt} connections in use."
                headers = {**retry_after(1), "connection": "close"}
                raise Refusal(429, message, type="requests", code="too_many_connections", headers=headers)
            self._shut(idle)

    def _shut(self, connection: Connection) -> None:
        self._leave(connection)
        connection.shut()

    def _leave(self, connection: Connection) -> None:
        owner = connection.owner
        if isinstance(owner, str):
            _discard(self._of_attempt, owner, connection)
        elif owner is not None:
            self._unknown.pop(connection, None)
            _discard(self._of_peer, connection.peer, connection)


def accept(scope: Scope, owner: str) -> None:
    """Record the attempt of a request's token as the owner of the request's connection.

    Raises Refusal with status 429 if the attempt has too many busy connections.
    """
    connection = connection_of(scope)
    if connection is not None and connection.owner != owner:
        connection.accept(owner)


def connection_of(scope: Scope) -> Connection | None:
    """Return the connection of a request; None if the request came through another server."""
    return scope.get("extensions", {}).get(CONNECTION)


def authenticating(app: ASGIApp) -> ASGIApp:
    """Return `app` with a wrapper that marks a connection as authenticated after a successful POST with credentials.

    The success (a status below 300) shows that `app` checked the credentials.
    """

    def serve(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        connection = connection_of(scope) if scope["type"] == "http" and scope["method"] == "POST" else None
        if connection is None or connection.owner is not UNKNOWN or not _has_credentials(scope["headers"]):
            return app(scope, receive, send)

        async def observed_send(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 300 and connection.owner is UNKNOWN:
                connection.accept(None)
            await send(message)

        return app(scope, receive, observed_send)

    return serve


def _has_credentials(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"authorization" for name, _ in headers)


def _oldest(connections: dict[Connection, None]) -> Connection:
    return next((one for one in connections if one.idle), next(iter(connections)))


def _discard(groups: "defaultdict[str, dict[Connection, None]]", name: str, connection: Connection) -> None:
    group = groups.get(name)
    if group is not None:
        group.pop(connection, None)
        if not group:
            del groups[name]

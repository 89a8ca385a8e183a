"""Somebody keeps connections to the gateway open, without a token or with one; the others are answered meanwhile."""

import asyncio
from typing import Any

import pytest
from gateway_site import request, serving
from uvicorn.config import Config
from uvicorn.server import ServerState

from leyden.core.gateway.http.protocol import ConnectionLimits, TimeoutProtocol
from leyden.core.gateway.limits.connections import CONNECTION, UNKNOWN, Connections, authenticating


async def test_of_idle_connections_without_a_token_the_oldest_is_closed() -> None:
    """Somebody opens thousands of connections and sends nothing."""
    async with serving(connections=ConnectionLimits(max_unknown=3)) as site:
        attempt = await site.attempt()
        known = await site.connect(request(attempt))
        assert await known.status() == 200
        idle = [await site.connect() for _ in range(3)]
        for line in idle:
            line.writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert await line.status() == 200
        new = await site.connect(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert await new.status() == 200
        assert await idle[0].closed()
        for line, sent in ((idle[1], b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"), (known, request(attempt))):
            line.writer.write(sent)
            assert await line.status() == 200
        for line in (known, new, *idle):
            line.writer.close()


async def test_connections_of_an_attempt_are_limited_and_no_one_elses() -> None:
    """The attempt keeps calls open on as many connections as it can."""
    async with serving(connections=ConnectionLimits(max_per_attempt=2)) as site:
        abuser, other = await site.attempt(), await site.attempt()
        idle = await site.connect(request(abuser))
        assert await idle.status() == 200
        site.hold = True
        busy = [await site.connect(request(abuser)) for _ in range(2)]
        await site.in_flight(2)
        assert await idle.closed()
        refused = await site.connect(request(abuser))
        assert await refused.status() == 429
        assert await refused.closed()
        site.hold = False
        fine = await site.connect(request(other))
        assert await fine.status() == 200
        await site.engine.close()
        for line in (idle, refused, fine, *busy):
            line.writer.close()


class FakeLoop:
    """Has a clock that is set, and remembers what is to be called when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.later: list[float] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, *_: object) -> "FakeLoop":
        self.later.append(seconds)
        return self

    def cancel(self) -> None:
        pass


class FakeTransport(asyncio.Transport):
    """Goes nowhere."""

    def abort(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


async def test_a_client_that_reads_a_little_now_and_then_has_no_more_time_than_one_that_does_not() -> None:
    """The attempt reads just enough of a stream, each time that it would be cut off."""
    config = Config(app=None, log_config=None)  # pyright: ignore[reportArgumentType]  # nothing is served
    limits = ConnectionLimits(unread_seconds=10, head_seconds=99)
    connections = Connections(unknown=1, unknown_per_peer=1, per_attempt=1)
    protocol = TimeoutProtocol(config, ServerState(), {}, limits, lambda: None, connections)
    loop = FakeLoop()
    protocol.loop = loop  # pyright: ignore[reportAttributeAccessIssue]
    protocol.connection_made(FakeTransport())
    for waited, left in ((4, 10), (5, 6), (0, 1)):
        protocol.pause_writing()
        assert loop.later[-1] == left
        loop.now += waited
        protocol.resume_writing()


class FakeConnection:
    """Remembers who it was accepted for."""

    def __init__(self) -> None:
        self.owner: object = UNKNOWN

    def accept(self, owner: object) -> None:
        self.owner = owner


@pytest.mark.parametrize(
    ("method", "headers", "status", "known"),
    [
        ("POST", [(b"authorization", b"Bearer t")], 200, True),
        ("POST", [(b"authorization", b"Bearer t")], 401, False),
        ("POST", [], 200, False),
        ("GET", [(b"authorization", b"Bearer t")], 200, False),  # pages that anybody may read
    ],
)
async def test_a_connection_is_known_once_a_token_was_accepted_on_it(
    method: str, headers: list[tuple[bytes, bytes]], status: int, known: bool
) -> None:
    """Somebody sends what looks like a token."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})

    async def nothing(*_: Any) -> Any: ...

    connection = FakeConnection()
    scope = {"type": "http", "method": method, "headers": headers, "extensions": {CONNECTION: connection}}
    await authenticating(app)(scope, nothing, nothing)
    assert (connection.owner is None) == known

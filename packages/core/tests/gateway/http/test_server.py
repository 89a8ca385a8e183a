"""Clients that are slow, long-winded or many, on real sockets."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from leyden.core.errors import GatewayError
from leyden.core.gateway.http.body import BodyLimits, read_body
from leyden.core.gateway.http.protocol import ConnectionLimits
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.refusal import Refusal

PATIENCE = 10.0
SHORT = ConnectionLimits(head_seconds=0.25)
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Application:
    """Answers every request, after its body unless `early`, with the number of bytes; `hold` lets it wait."""

    def __init__(self) -> None:
        self.early = False
        self.answer = b""
        self.hold = asyncio.Event()
        self.hold.set()
        self.reached = asyncio.Event()
        self.entered = list[str]()
        self.ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b"" if self.early else await read_body(scope, receive, BodyLimits())
        self.reached.set()
        self.entered.append(scope["path"])
        await self.hold.wait()
        answer = self.answer or b"%d" % len(body)
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for start in range(0, len(answer), 1 << 16):
            part = answer[start : start + (1 << 16)]
            await send({"type": "http.response.body", "body": part, "more_body": start + len(part) < len(answer)})
        self.ended.set()


class Client:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def closed(self) -> bytes:
        """Wait until the server has closed the connection; return what it had sent."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), PATIENCE)
        return b""

    async def answer(self) -> bytes:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)
        (length,) = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        body = await asyncio.wait_for(self.reader.readexactly(int(length.split(b":")[1])), PATIENCE)
        assert head.startswith(b"HTTP/1.1 200")
        return body

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class Site:
    """A running server and its clients."""

    def __init__(self, app: Application, url: str) -> None:
        self.app = app
        self.host, self.port = "127.0.0.1", int(url.rpartition(":")[2])
        self.clients: list[Client] = []

    async def connect(self, **how: Any) -> Client:
        client = Client(*await asyncio.open_connection(self.host, self.port, **how))
        self.clients.append(client)
        return client


@contextlib.asynccontextmanager
async def serving(limits: ConnectionLimits | None = None) -> AsyncGenerator[Site]:
    app = Application()
    server = GatewayServer(app, limits=limits)
    site = Site(app, await server.start())
    try:
        yield site
    finally:
        app.hold.set()
        for client in site.clients:
            await client.close()
        await server.stop()


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: localhost\r\nx-slow: ", b"\r\n\r\n"])
async def test_a_connection_without_a_whole_request_head_is_closed(begun: bytes) -> None:
    async with serving(SHORT) as site:
        client = await site.connect()
        client.send(begun)
        assert await client.closed() == b""


@pytest.mark.parametrize("begun", [b"G", b"GET / HTTP/1.1\r\nx-slow: ", b"\r\n"])
async def test_so_is_one_that_has_had_an_answer_before(begun: bytes) -> None:
    async with serving(SHORT) as site:
        client = await site.connect()
        client.send(GET)
        assert await client.answer() == b"0"
        client.send(begun)
        assert await client.closed() == b""


async def test_trickling_a_head_buys_no_time() -> None:
    async with serving(SHORT) as site:
        client = await site.connect()
        client.send(b"GET / HTTP/1.1\r\nx-slow: ")
        closed = asyncio.create_task(client.closed())
        for _ in range(4000):
            client.send(b"a")
            if (await asyncio.wait([closed], timeout=0.005))[0]:
                break
        assert closed.done()


async def test_an_idle_connection_and_one_that_waits_for_its_answer_are_kept() -> None:
    async with serving(SHORT) as site:
        idle = await site.connect()
        idle.send(GET)
        assert await idle.answer() == b"0"
        site.app.hold.clear()
        busy = await site.connect()
        busy.send(GET + GET[:9])  # the beginning of a further one must not end it either
        await site.app.reached.wait()
        for _ in range(2):
            assert await (await site.connect()).closed() == b""  # so their time was over long ago
        site.app.hold.set()
        assert await busy.answer() == b"0"
        idle.send(GET)
        assert await idle.answer() == b"0"


async def test_a_head_may_come_in_pieces_and_bodies_may_hold_what_looks_like_its_end() -> None:
    body = b"\r\n\r\n" * 100
    request = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    async with serving(ConnectionLimits(head_bytes=80)) as site:
        for size in (1, 3, 50, 1000):
            client = await site.connect(limit=1 << 20)
            for start in range(0, len(request), size):
                client.send(request[start : start + size])
                await asyncio.sleep(0)
            assert await client.answer() == b"400"
        client = await site.connect()
        client.send(request * 5)
        assert [await client.answer() for _ in range(5)] == [b"400"] * 5


@pytest.mark.parametrize("size", [1 << 20, 1000])
async def test_a_head_that_is_too_long_is_refused_and_the_connection_closed(size: int) -> None:
    head = b"GET / HTTP/1.1\r\nx-long: " + b"a" * 5000
    async with serving(ConnectionLimits(head_bytes=4000)) as site:
        client = await site.connect()
        for start in range(0, len(head), size):
            client.send(head[start : start + size])
            await asyncio.sleep(0)
        status, _, body = (await client.closed()).partition(b"\r\n\r\n")
        assert status.startswith(b"HTTP/1.1 431 ")
        assert json.loads(body)["error"]["message"] == "The request's head is larger than 4000 bytes."
        assert not site.app.reached.is_set()
        whole = await site.connect()
        whole.send(head + b"\r\n\r\n")
        assert (await whole.closed()).startswith(b"HTTP/1.1 431 ")


async def test_a_further_head_that_is_too_long_does_not_spoil_the_answer_before_it() -> None:
    async with serving(ConnectionLimits(head_bytes=4000, head_seconds=0.25)) as site:
        site.app.hold.clear()
        client = await site.connect()
        client.send(GET)
        await site.app.reached.wait()
        client.send(b"GET / HTTP/1.1\r\nx-long: " + b"a" * 5000)
        assert await (await site.connect()).closed() == b""  # so it was read long ago
        site.app.hold.set()
        assert (await client.closed()).endswith(b"connection: close\r\n\r\n0")


async def test_the_rest_of_a_request_that_was_answered_early_is_read_and_the_connection_kept() -> None:
    async with serving() as site:
        site.app.early = True
        client = await site.connect()
        client.send(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\nab")
        assert await client.answer() == b"0"
        client.send(b"cd" + GET)
        assert await client.answer() == b"0"


async def test_a_client_that_owes_that_rest_for_too_long_is_cut_off() -> None:
    async with serving(SHORT) as site:
        site.app.early = True
        client = await site.connect()
        client.send(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\nab")
        assert await client.answer() == b"0"
        assert await client.closed() == b""


async def test_a_client_that_does_not_read_its_answer_is_cut_off() -> None:
    async with serving(ConnectionLimits(unread_seconds=0.05)) as site:
        site.app.answer = bytes(64 << 20)
        raw = socket.create_connection((site.host, site.port))
        with raw:
            raw.sendall(GET)
            await asyncio.wait_for(site.app.ended.wait(), PATIENCE)  # what is sent to nobody costs no time


async def test_connections_beyond_the_limit_wait_for_room() -> None:
    async with serving(ConnectionLimits(max_connections=2)) as site:
        clients = [await site.connect() for _ in range(4)]
        for client in clients:
            client.send(GET)
        assert [await client.answer() for client in clients[:2]] == [b"0", b"0"]
        third = asyncio.create_task(clients[2].answer())
        assert not (await asyncio.wait([third], timeout=0.05))[0]
        await clients[0].close()
        assert await third == b"0"
        await clients[1].close()
        assert await clients[3].answer() == b"0"
        await clients[2].close()
        await clients[3].close()
        last = [await site.connect() for _ in range(2)]
        for client in last:
            client.send(GET)
        assert [await client.answer() for client in last] == [b"0", b"0"]


async def test_hundreds_of_clients_at_once_are_all_answered() -> None:
    async with serving(ConnectionLimits(max_connections=16)) as site:

        async def one() -> bytes:
            client = await site.connect()
            client.send(GET)
            answer = await client.answer()
            await client.close()
            return answer

        assert await asyncio.gather(*(one() for _ in range(300))) == [b"0"] * 300


async def test_an_application_that_cannot_start_is_one_clear_error() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "lifespan"
        await receive()
        await send({"type": "lifespan.startup.failed", "message": ""})

    with pytest.raises(GatewayError, match="ended before it was ready"):
        await GatewayServer(broken).start()


async def test_a_slow_body_is_refused_and_its_connection_closed() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        with pytest.raises(Refusal) as error:
            await read_body(scope, receive, BodyLimits(gap_seconds=0.02))
        refusal = error.value
        headers = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": refusal.encode()})

    server = GatewayServer(app)
    url = await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nab")
    assert (await asyncio.wait_for(reader.read(), PATIENCE)).startswith(b"HTTP/1.1 408 ")
    writer.close()
    await writer.wait_closed()
    await server.stop()


async def test_calls_that_do_not_end_in_time_are_cancelled_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    application = Application()
    application.early = True
    application.hold.clear()
    server = GatewayServer(application, grace=0)
    port = int((await server.start()).rpartition(":")[2])
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    for _, writer in connections:
        writer.write(GET)
    while len(application.entered) < 3:
        await asyncio.sleep(0.01)
    await server.stop()
    for _, writer in connections:
        writer.close()
    assert [record.getMessage() for record in caplog.records] == ["cancelled 3 calls that did not end in time"]


async def test_a_stop_that_is_cancelled_still_ends_the_application(caplog: pytest.LogCaptureFixture) -> None:
    heard = list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "lifespan"
        for what in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{what}"
            await asyncio.sleep(0.01)
            heard.append(what)
            await send({"type": f"lifespan.{what}.complete"})

    server = GatewayServer(app, "127.0.0.1", 0)
    await server.start()
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert (heard, caplog.messages) == (["startup", "shutdown"], [])

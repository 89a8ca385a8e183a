"""Clients that disconnect while their call is in progress."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message, Receive, Scope, Send

from leyden.core.gateway.http.asgi import ClientGone, ClientWatch
from leyden.core.gateway.http.body import BodyLimits, read_body
from leyden.core.gateway.http.server import GatewayServer

pytestmark = pytest.mark.integration

PATIENCE = 10.0
REQUEST = b"POST /%d HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\nab"


class Application:
    """Reads the body, and then waits in the block that a disconnect cancels."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[str] = asyncio.Queue()
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await read_body(scope, receive, BodyLimits())
        with ClientWatch(scope, receive) as watch:
            self.entered.put_nowait(scope["path"])
            try:
                with watch.cancelling():
                    await self.go_on.wait()
            except ClientGone:
                self.ended.put_nowait("gone")
                return
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})
            with watch.cancelling():
                await asyncio.sleep(0.05)
        self.ended.put_nowait("gone after the response" if watch.gone else "answered")


@contextlib.asynccontextmanager
async def serving() -> AsyncGenerator[tuple[Application, int]]:
    app = Application()
    server = GatewayServer(app)
    port = int((await server.start()).rpartition(":")[2])
    try:
        yield app, port
    finally:
        await server.stop()


async def next_of(queue: asyncio.Queue[str]) -> str:
    return await asyncio.wait_for(queue.get(), PATIENCE)


@pytest.mark.parametrize("requests", [1, 3], ids=["one", "pipelined"])
async def test_a_disconnect_cancels_the_call_in_progress(requests: int) -> None:
    async with serving() as (app, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(REQUEST % n for n in range(requests)))
        assert await next_of(app.entered) == "/0"
        writer.close()
        assert await next_of(app.ended) == "gone"
        assert app.entered.empty()


async def test_a_call_whose_client_stays_is_not_cancelled_by_its_own_response() -> None:
    async with serving() as (app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        app.go_on.set()
        for n in range(3):
            writer.write(REQUEST % n)
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)).startswith(b"HTTP/1.1 200")
            assert await next_of(app.ended) == "answered"
        writer.close()


async def test_a_client_that_has_gone_before_the_call_is_watched_cancels_it_at_once() -> None:
    gone = asyncio.Event()
    outcomes: asyncio.Queue[str] = asyncio.Queue()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await read_body(scope, receive, BodyLimits())
        outcomes.put_nowait("read")
        await gone.wait()
        await asyncio.sleep(0.1)
        with ClientWatch(scope, receive) as watch:
            try:
                with watch.cancelling():
                    outcomes.put_nowait("entered")
            except ClientGone:
                outcomes.put_nowait("gone")

    server = GatewayServer(app)
    port = int((await server.start()).rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST % 0)
    assert await next_of(outcomes) == "read"
    writer.close()
    await writer.wait_closed()
    gone.set()
    assert await next_of(outcomes) == "gone"
    await server.stop()


async def test_under_another_server_its_message_is_the_disconnect() -> None:
    """Applications may be mounted under any ASGI server, which does not know our connections."""
    messages: asyncio.Queue[Message] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b"ab"})
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    app = Application()
    scope = {"type": "http", "path": "/other", "headers": [(b"content-length", b"2")]}
    call = asyncio.create_task(app(scope, messages.get, send))
    assert await next_of(app.entered) == "/other"
    messages.put_nowait({"type": "http.disconnect"})
    assert await next_of(app.ended) == "gone"
    await call
    assert sent == []

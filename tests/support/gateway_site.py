"""A gateway on a real port whose answers can be held, and bare connections to it, for attacks."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx

from leyden.core.data.identity import mint, new_key
from leyden.core.engine.base import GenerateRequest, ModelInfo
from leyden.core.gateway.app import Gateway, GatewayLimits
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.protocol import ConnectionLimits
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import VOCABULARY, ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine

PATIENCE = 60.0
ROOM = 1 << 16


class Attempt(NamedTuple):
    """An attempt and how it calls."""

    http: httpx.AsyncClient
    token: str

    async def chat(self, content: str = "hi", **more: Any) -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": content}], **more}
        return await self.post(json.dumps(body).encode())

    async def post(self, body: bytes, path: str = "chat/completions", **more: Any) -> httpx.Response:
        return await self.http.post(f"/a/{self.token}/v1/{path}", content=body, **more)


class Site:
    """A gateway on a real port; `hold` has answers wait."""

    def __init__(self, codec: ByteCodec, context_length: int, limits: GatewayLimits | None) -> None:
        self.codec, self.store, self._key = codec, MemoryStore(), new_key()
        self.hold = False
        model = ModelInfo(name="scripted", context_length=context_length, vocab_size=VOCABULARY)
        self.engine = ScriptedEngine(self._script, model=model)
        policy = ServedPolicy(name="policy", engine=self.engine, codec=codec)
        self.gateway = Gateway(self.store, policy, self._key, limits=limits)
        self.http = httpx.AsyncClient(timeout=PATIENCE)
        self.host, self.port = "127.0.0.1", 0

    def _script(self, _: GenerateRequest) -> ScriptedAnswer:
        return ScriptedAnswer(ids=self.codec.answer("hello"), held=self.hold)

    async def attempt(self) -> Attempt:
        rollout = await self.store.start_rollout("a task")
        return Attempt(self.http, mint(self._key, rollout.rollout_id, rollout.attempt.attempt_id))

    async def in_flight(self, calls: int) -> None:
        """Wait until the engine answers so many."""
        async with asyncio.timeout(PATIENCE):
            while self.engine.in_flight < calls:
                await asyncio.sleep(0.005)

    async def connect(self, *requests: bytes) -> "Line":
        line = Line(*await asyncio.open_connection(self.host, self.port))
        for request in requests:
            line.writer.write(request)
        return line


class Line(NamedTuple):
    """A bare connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def status(self) -> int:
        """Return the status of an answer, and read all of it."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)).lower()
        await self.reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
        return int(head.split()[1])

    async def closed(self) -> bool:
        """Wait until the other side has closed it."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), PATIENCE) == b""
        return True


@asynccontextmanager
async def serving(
    codec: ByteCodec | None = None,
    *,
    context_length: int = ROOM,
    limits: GatewayLimits | None = None,
    connections: ConnectionLimits | None = None,
) -> AsyncGenerator[Site]:
    site = Site(codec or ByteCodec(), context_length, limits)
    server = GatewayServer(site.gateway.app, limits=connections)
    url = await server.start()
    site.port = int(url.rpartition(":")[2])
    site.http.base_url = httpx.URL(url)
    try:
        yield site
    finally:
        await site.engine.close()
        await site.http.aclose()
        await server.stop()


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def request(attempt: Attempt, content: str = "hi") -> bytes:
    """Bytes of a call."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    head = f"POST /a/{attempt.token}/v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body

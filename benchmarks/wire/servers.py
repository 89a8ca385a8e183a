"""Servers that a benchmark process runs: the engine's own endpoint, a minimal capturing proxy, the gateway."""

import asyncio
import json
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import httptools
from aiohttp import web

from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.identity import mint
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http import gc_tuning
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.store.open import open_store
from leyden.core.testing.byte_codec import ByteCodec
from wire.reference import InstantEngine, answer_body, answer_events

KEY = b"benchmark" * 4
ATTEMPTS = 64
KEPT = 4096
"""Records that the capturing proxy keeps, so that it does not grow."""


class EngineProtocol(asyncio.Protocol):
    """The engine called straight: answers as soon as a request is there. The floor of everything else."""

    plain = (lambda body: b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
             % (len(body), body))(answer_body())  # fmt: skip
    events = answer_events()

    def __init__(self) -> None:
        self._body = b""
        self._parser: Any = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Keep a piece of a request."""
        self._body += body

    def on_message_complete(self) -> None:
        """Answer a request."""
        body, self._body = self._body, b""
        if b'"stream": true' not in body and b'"stream":true' not in body:
            self._transport.write(self.plain)
            return
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._transport.write(head)
        for event in self.events:
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self._transport.write(b"0\r\n\r\n")


async def serve_engine(pipe: Connection, _: str) -> None:
    """Serve the engine's own endpoint."""
    server = await asyncio.get_running_loop().create_server(EngineProtocol, "127.0.0.1", 0)
    pipe.send((server.sockets[0].getsockname()[1], ["/v1/chat/completions"]))
    await asyncio.to_thread(pipe.recv)
    server.close()


async def serve_capture(pipe: Connection, upstream: str) -> None:
    """Serve the least that captures: ask for ids, keep them packed in memory, strip them, answer."""
    records: list[tuple[bytes, bytes, bytes]] = []
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def chat(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read()) | {"return_token_ids": True, "logprobs": True}
        async with session.post(f"{upstream}/v1/chat/completions", json=body) as answer:
            if body.get("stream"):
                return await _relay(request, answer)
            data = json.loads(await answer.read())
        choice = data["choices"][0]
        logprobs = [token["logprob"] for token in choice.pop("logprobs")["content"]]
        record = (pack_ids(data.pop("prompt_token_ids")), pack_ids(choice.pop("token_ids")), pack_log_probs(logprobs))
        records.append(record)
        if len(records) > KEPT:
            records.clear()
        return web.Response(body=json.dumps(data), content_type="application/json")

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    sockets: Any = site._server  # pyright: ignore[reportPrivateUsage]  # aiohttp tells a chosen port nowhere else
    pipe.send((sockets.sockets[0].getsockname()[1], ["/v1/chat/completions"]))
    await asyncio.to_thread(pipe.recv)
    await session.close()
    await runner.cleanup()


async def _relay(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Pass a stream on, reading it as it goes."""
    reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await reply.prepare(request)
    async for line in answer.content:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            for choice in event["choices"]:
                choice.pop("token_ids", None)
            line = b"data: " + json.dumps(event).encode() + b"\n"
        await reply.write(line)
    await reply.write_eof()
    return reply


async def serve_gateway(pipe: Connection, store_uri: str) -> None:
    """Serve the gateway, which does all that it does in a run."""
    await _serve(pipe, store_uri, ServedPolicy(name="policy", engine=InstantEngine(), codec=ByteCodec()))


async def serve_real_prompts(pipe: Connection, folder: str) -> None:
    """Serve the gateway with the tokenizer and the chat template of a policy, and room for very long prompts."""
    from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec  # imports transformers

    engine = InstantEngine(context_length=4 << 20)
    await _serve(pipe, "memory://", ServedPolicy(name="policy", engine=engine, codec=HuggingFaceCodec(folder)))


async def _serve(pipe: Connection, store_uri: str, policy: ServedPolicy) -> None:
    store = await open_store(store_uri)
    paths: list[str] = []
    for _ in range(ATTEMPTS):
        rollout = await store.start_rollout("task", mode="train")
        paths.append(f"/a/{mint(KEY, rollout.rollout_id, rollout.attempt.attempt_id)}/v1/chat/completions")
    server = GatewayServer(Gateway(store, policy, KEY).app)
    url = await server.start()
    gc_tuning.tune()
    pipe.send((int(url.rpartition(":")[2]), paths))
    await asyncio.to_thread(pipe.recv)
    await server.stop()
    await store.close()

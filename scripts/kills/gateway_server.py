"""A gateway of its own, to be killed: `python -m kills.gateway_server`, told what to do in one line on its input.

Its engine answers every call with something new, in pieces, notes when a call begins and ends, and sometimes fails in
the middle. A whole answer is on its way for a moment after it was recorded, as it is on a slow network.
"""

import asyncio
import secrets
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from random import Random
from typing import cast

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kills.journal import note
from leyden.core.engine.base import GenerateRequest, ModelInfo, TokenChunk
from leyden.core.errors import EngineError
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.store.open import open_store
from leyden.core.testing.byte_codec import VOCABULARY, ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine

ENGINE_FAILS = 0.05
CHUNK_DELAY = 0.02
LONGEST_WAY = 0.1
"""Seconds for which the end of a whole answer is on its way."""


class ServerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one life of the server needs to know."""

    store_uri: str
    port: int
    key: str
    """In hexadecimal."""
    engine_log: str
    life: int
    """How many lives came before this one."""


class NotingEngine(ScriptedEngine):
    """Notes the beginning and the end of every call on the disk."""

    def __init__(self, plan: ServerPlan) -> None:
        model = ModelInfo(name="scripted", context_length=4096, vocab_size=VOCABULARY)
        super().__init__(self._script, model=model)
        self._plan, self._random, self._codec = plan, Random(f"engine {plan.life}"), ByteCodec()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Draw as scripted."""
        self._note("begins", request)
        async with aclosing(cast("AsyncGenerator[TokenChunk]", super().generate(request))) as chunks:
            async for chunk in chunks:
                if chunk.finish_reason is not None:
                    self._note("ends", request)
                yield chunk

    def _note(self, event: str, request: GenerateRequest) -> None:
        note(self._plan.engine_log, event=event, call=request.request_id, life=self._plan.life)

    def _script(self, request: GenerateRequest) -> ScriptedAnswer:
        ids = self._codec.answer(f"drawn {secrets.token_hex(20)}")
        fails = self._random.random() < ENGINE_FAILS
        return ScriptedAnswer(
            ids=ids[:20] if fails else ids,
            chunk_size=8,
            chunk_delay=self._random.uniform(0.0, CHUNK_DELAY),
            error=EngineError("the engine died of this call") if fails else None,
        )


def slow_way(app: ASGIApp, random: Random) -> ASGIApp:
    """Hold the last piece of every answer back for a moment."""

    async def slowed(scope: Scope, receive: Receive, send: Send) -> None:
        async def late(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                await asyncio.sleep(random.uniform(0.0, LONGEST_WAY))
            await send(message)

        await app(scope, receive, late if scope["type"] == "http" else send)

    return slowed


async def serve(plan: ServerPlan) -> None:
    """Serve until the input ends."""
    store = await open_store(plan.store_uri)
    policy = ServedPolicy(name="policy", engine=NotingEngine(plan), codec=ByteCodec())
    app = slow_way(Gateway(store, policy, bytes.fromhex(plan.key)).app, Random(f"way {plan.life}"))
    server = GatewayServer(app, port=plan.port)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()
    await store.close()


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(sys.stdin.readline(), type=ServerPlan)))

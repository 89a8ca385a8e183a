"""The real gateway before an engine that answers from an agent's script, with every request taken down on the way."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from leyden.core.data import semconv
from leyden.core.data.identity import new_key, verify
from leyden.core.engine.base import GenerateRequest, ModelInfo
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import BEGIN, END, VOCABULARY, ByteCodec
from leyden.core.testing.gateway_bench import turns as finished_turns
from leyden.core.testing.scripted_engine import Scripted, ScriptedAnswer, ScriptedEngine
from zoo_harness.provider import CHATS, STATUS_HEADERS
from zoo_harness.script import Answer, Script, Turn
from zoo_harness.wire import CHUNK, error_body, turns_of

CONTEXT = 1 << 16
STORE_TOKEN = "opens-the-store"
DELAY_SECONDS = 0.01
"""Before each answer, so that rollouts overlap."""


@dataclass
class Served:
    """A running gateway, with what it received by rollout."""

    rules: Any
    key: bytes = field(default_factory=new_key)
    store: MemoryStore = field(default_factory=MemoryStore)
    codec: ByteCodec = field(default_factory=ByteCodec)
    url: str = ""
    bodies: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    scripts: dict[str, Script] = field(default_factory=dict[str, Script])
    engine: ScriptedEngine = field(init=False)

    def __post_init__(self) -> None:
        model = ModelInfo(name="scripted", context_length=CONTEXT, vocab_size=VOCABULARY)
        self.engine = ScriptedEngine(self._answer, model=model)

    def script(self, rollout_id: str) -> Script:
        """The rules, for one rollout."""
        return self.scripts.setdefault(rollout_id, Script(self.rules))

    def arrived(self, token: str, body: dict[str, Any]) -> Answer:
        """Take a model call down; returns the error that the provider answers with, or an answer that is given."""
        ids = verify(self.key, token)
        if ids is None:
            return Answer()
        self.bodies[ids[0]].append(body)
        return self.script(ids[0]).answer(turns_of(body), only_errors=True)

    def _answer(self, request: GenerateRequest) -> Scripted:
        answer = self.script(request.rollout_id or "").answer(conversation(request.prompt_ids))
        opening = _opening(request.prompt_ids)
        text = answer.as_text().removeprefix(opening) if opening else answer.as_text()
        ids = self.codec.answer(text)
        return ScriptedAnswer(ids=ids, chunk_size=CHUNK, delay=DELAY_SECONDS, held=answer.held)


def conversation(ids: list[int]) -> list[Turn]:
    """The turns that the engine read, without the one that lists the tools."""
    turns = [Turn(role, text) for role, text in finished_turns(ids)]
    is_tools = bool(turns) and turns[0].role == "system" and turns[0].text.startswith('[{"')
    return turns[1:] if is_tools else turns


def _opening(ids: list[int]) -> str:
    """What the gateway wrote into the prompt of the answer: the beginning of a forced tool call."""
    last = len(ids) - 1 - ids[::-1].index(BEGIN)
    tail = bytes(token for token in ids[last + 1 :] if token < min(BEGIN, END)).decode()
    return tail.partition("\n")[2]


@asynccontextmanager
async def gateway(rules: Any) -> AsyncGenerator[Served]:
    """Serve inside the block."""
    served = Served(rules)
    stores = store_app(served.store, authorize=lambda token: token == STORE_TOKEN)
    policy = ServedPolicy(name="policy", engine=served.engine, codec=served.codec)
    app = Gateway(served.store, policy, served.key, mounts={"/store": stores}).app
    server = GatewayServer(_Noting(app, served))
    served.url = await server.start()
    try:
        yield served
    finally:
        await server.stop()
        await served.engine.close()
        await served.store.close()


class _Noting:
    """ASGI: takes model calls down, and answers with the script's errors, as an overloaded server before it would."""

    def __init__(self, app: Any, served: Served) -> None:
        self._app, self._served = app, served

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(CHATS):
            return await self._app(scope, receive, send)
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        answer = self._served.arrived(_token(scope), _decoded(b"".join(one.get("body", b"") for one in messages)))
        if answer.hang:
            while (await receive())["type"] != "http.disconnect":
                await asyncio.sleep(0)
            return None
        if answer.status is not None:
            return await _error(send, answer.status)

        async def replayed() -> Any:
            return messages.pop(0) if messages else await receive()

        return await self._app(scope, replayed, send)


def _token(scope: Any) -> str:
    parts = scope["path"].split("/")
    if len(parts) > 2 and parts[1] == "a":
        return parts[2]
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    return headers.get(semconv.HEADER_ATTEMPT) or headers.get("authorization", "").removeprefix("Bearer ")


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        return json.loads(data)
    except ValueError:
        return {"undecoded": len(data)}


async def _error(send: Any, status: int) -> None:
    headers = {"content-type": "application/json", **STATUS_HEADERS}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": json.dumps(error_body(status)).encode()})

"""Runs an unmodified agent of any framework with an expert in its model's place, and keeps every call it made.

The agent's calls go through the real gateway, so that what is kept is what a policy would be shown. Knows nothing of
questions or of who is right.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from leyden.core.data.identity import mint, new_key
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest, ModelInfo
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.codec import Forced, Message, ToolDefinition
from leyden.core.gateway.codecs.messages import plain_messages
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import VOCABULARY, ByteCodec
from leyden.core.testing.scripted_engine import Scripted, ScriptedEngine
from leyden.core.tracing import context_propagation
from leyden.core.tracing.context import OpenAttempt, open_attempt
from leyden.core.tracing.wire import gateway_pool, routing

AT_ONCE = 16
Write = Callable[[list[Message], bool], str]
"""From a conversation, and whether a format is required, to the text that the expert writes next."""


@dataclass(frozen=True)
class Heard:
    """One model call: what the policy would be shown, and what the expert wrote."""

    messages: list[Message]
    tools: list[ToolDefinition]
    formatted: bool
    """Whether the agent requires a format of the answer."""
    text: str


class _Listening(ByteCodec):
    """Notes what each call shows, and gives the call's number in the place of a prompt."""

    def __init__(self) -> None:
        self.shown: list[tuple[list[Message], list[ToolDefinition], bool]] = []

    def encode(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        forced: Forced | None = None,
        *,
        formatted: bool = False,
        **how: Any,
    ) -> list[int]:
        """Return the digits of the call's number."""
        self.shown.append((plain_messages(messages), list(tools), formatted))
        return list(str(len(self.shown) - 1).encode())


async def run_all(reference: str, questions: Sequence[str], write: Write) -> list[Heard]:
    """Run the agent that `reference` names on every question, many at once; return every call that was answered."""
    source, codec, store, key = AgentSource.load(reference), _Listening(), MemoryStore(), new_key()
    heard: list[Heard] = []

    def answer(request: GenerateRequest) -> Scripted:
        messages, tools, formatted = codec.shown[int(bytes(request.prompt_ids))]
        text = write(messages, formatted)
        heard.append(Heard(messages, tools, formatted, text))
        return codec.answer(text)

    engine = ScriptedEngine(answer, model=ModelInfo(name="expert", context_length=1 << 16, vocab_size=VOCABULARY))
    policy = ServedPolicy(name="policy", engine=engine, codec=codec, sampling=Sampling())
    server = GatewayServer(Gateway(store, policy, key).app)
    url, turn = await server.start(), asyncio.Semaphore(AT_ONCE)

    async def run(question: str) -> None:
        async with turn:
            rollout = await store.start_rollout({"question": question}, mode="train")
            ids = rollout.rollout_id, rollout.attempt.attempt_id
            token = mint(key, *ids)
            named: dict[str, Any] = {"rollout_id": ids[0], "attempt_id": ids[1], "trace_id": "0" * 31 + "1"}
            with open_attempt(OpenAttempt(**named, token=token, gateway_url=url, mode="train")):
                await source.adapter.run(source.fresh(), {"question": question}, {})

    source.adapter.instrument()
    context_propagation.install()
    routing.install(fail_closed=True)
    try:
        await asyncio.gather(*(run(question) for question in questions))
    finally:
        await gateway_pool.aclose()
        routing.uninstall()
        context_propagation.uninstall()
        source.adapter.uninstrument()
        await server.stop()
        await engine.close()
        await store.close()
    return heard

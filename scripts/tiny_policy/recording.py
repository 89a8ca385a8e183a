"""Runs an unmodified agent of any framework with an expert in its model's place, and returns every call it made.

The agent's calls go through the real gateway, so that a recorded call is what a policy would receive. This module knows
nothing of tasks or of right answers.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
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
from leyden.core.runner.adapters.auto_instrument import instrument_all
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.store.base import LightningStore
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
class Plan:
    """A task, and what the expert writes in each of the conversations that the agent has about it."""

    task: Mapping[str, Any]
    write: Write


@dataclass(frozen=True)
class Heard:
    """One model call: what the policy would be shown, and what the expert wrote."""

    plan: int
    """Index of the plan whose task the call belongs to."""
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


async def run_all(reference: str, plans: Sequence[Plan], store: LightningStore | None = None) -> list[Heard]:
    """Run the agent that `reference` names on every plan's task, many at once; return every call that was answered.

    The rollouts and calls are in `store` afterwards, which stays open, or nowhere if there is none. A rollout whose
    agent raises an error is failed in the store, and the error is raised here.
    """
    source, codec, key = AgentSource.load(reference), _Listening(), new_key()
    records = store or MemoryStore()
    heard: list[Heard] = []
    running: dict[str | None, int] = {}

    def answer(request: GenerateRequest) -> Scripted:
        messages, tools, formatted = codec.shown[int(bytes(request.prompt_ids))]
        plan = running[request.rollout_id]
        text = plans[plan].write(messages, formatted)
        heard.append(Heard(plan, messages, tools, formatted, text))
        return codec.answer(text)

    engine = ScriptedEngine(answer, model=ModelInfo(name="expert", context_length=1 << 16, vocab_size=VOCABULARY))
    policy = ServedPolicy(name="policy", engine=engine, codec=codec, sampling=Sampling())
    server = GatewayServer(Gateway(records, policy, key).app)
    url, turn = await server.start(), asyncio.Semaphore(AT_ONCE)

    async def run(number: int) -> None:
        async with turn:
            task = dict(plans[number].task)
            rollout = await records.start_rollout(task, mode="train")
            ids = rollout.rollout_id, rollout.attempt.attempt_id
            running[rollout.rollout_id] = number
            token = mint(key, *ids)
            named: dict[str, Any] = {"rollout_id": ids[0], "attempt_id": ids[1], "trace_id": "0" * 31 + "1"}
            status = "failed"
            try:
                with open_attempt(OpenAttempt(**named, token=token, gateway_url=url, mode="train")):
                    await source.adapter.run(source.fresh(), task, {})
                status = "succeeded"
            finally:
                await records.update_attempt(*ids, status=status)

    uninstrument = instrument_all(source.adapter)
    context_propagation.install()
    routing.install(fail_closed=True)
    try:
        await asyncio.gather(*(run(number) for number in range(len(plans))))
    finally:
        await gateway_pool.aclose()
        routing.uninstall()
        context_propagation.uninstall()
        uninstrument()
        await server.stop()
        await engine.close()
        if store is None:
            await records.close()
    return heard

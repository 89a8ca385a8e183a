"""The dry run: an agent on a few tasks, every span shown, nothing trained."""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import msgspec

from leyden.core.data.resources import LLM, NamedResources
from leyden.core.data.rollout import EnqueueRollout, RolloutConfig, Task
from leyden.core.errors import UsageError
from leyden.core.runner.command import CommandAgent
from leyden.core.runner.loading import AgentReference
from leyden.core.store.base import LightningStore
from leyden.core.trainer.agents import AgentPlan, served_resources, worker_agents
from leyden.core.trainer.launch import run_loop
from leyden.core.trainer.recorded import RecordedRollout, read_rollout
from leyden.core.trainer.serving import Address, embedded_policy, gateway

if TYPE_CHECKING:
    from leyden.core.gateway.serving import ServedPolicy
    from leyden.core.gateway.upstream import Upstream


class DevPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What answers the agent's calls, and how the rollouts run."""

    policy: str | None = None
    """Hugging Face model for the embedded engine."""
    resources: NamedResources = {}
    """An LLM among them is the endpoint that answers instead."""
    concurrency: int = 4
    timeout_seconds: float | None = 120.0
    input: Any = None
    """From a task to the agent's input: a function, or its import string."""
    hooks: tuple[Any, ...] = ()
    """Hooks, or import strings of such."""


def dry_run(
    plan: DevPlan, agent: Any, tasks: Sequence[Task], reward: Any = None, *, show: bool = True
) -> list[RecordedRollout]:
    """Run `agent` once on each task and return what was recorded; with `show`, print each rollout as a tree.

    `agent` and `reward` are live objects, or import strings; the words of a command line are an agent, too.
    Raises UsageError when nothing could answer.
    """
    results = run_loop(_dry_run(plan, agent, tasks, reward))
    if show:
        from rich.console import Console

        from leyden.core.trainer.tree import rollout_tree

        for result in results:
            Console().print(rollout_tree(result), highlight=False)
    return results


async def _dry_run(plan: DevPlan, agent: Any, tasks: Sequence[Task], reward: Any) -> list[RecordedRollout]:
    from leyden.core.store.memory import MemoryStore

    store = MemoryStore()
    async with _answering(plan) as policy, gateway(store, policy) as address:
        await store.add_resources(served_resources(plan.resources, address, os.path.basename(plan.policy or "policy")))
        config = RolloutConfig(timeout_seconds=plan.timeout_seconds)
        requests = [
            EnqueueRollout(rollout_id=f"dev-{n}", input=t, mode="test", config=config) for n, t in enumerate(tasks)
        ]
        await store.enqueue_many_rollouts(requests)
        async with _agents(plan, agent, reward, store, address) as check:
            ids = [request.rollout_id or "" for request in requests]
            while len(await store.wait_for_rollouts(rollout_ids=ids, timeout=0.5)) < len(ids):
                await check()
    return [await read_rollout(store, rollout_id) for rollout_id in ids]


@asynccontextmanager
async def _answering(plan: DevPlan) -> "AsyncGenerator[ServedPolicy | Upstream]":
    from leyden.core.gateway.upstream import Upstream

    endpoint = next((r for r in plan.resources.values() if isinstance(r, LLM)), None)
    if endpoint is not None:
        yield Upstream(base_url=endpoint.endpoint, api_key=endpoint.api_key, model=endpoint.model)
        return
    if plan.policy is None:
        raise UsageError("nothing could answer the agent: give a policy, or an endpoint and its model")
    async with embedded_policy(plan.policy) as policy:
        yield policy


def _agents(plan: DevPlan, agent: Any, reward: Any, store: LightningStore, address: Address) -> Any:
    if isinstance(agent, str | tuple):
        reference = cast(AgentReference, agent)
        given = AgentPlan(
            agent=reference, reward=reward, input=plan.input, hooks=plan.hooks, concurrency=plan.concurrency
        )
        return worker_agents(given)(address)
    if isinstance(agent, CommandAgent):
        return _commands(plan, agent, reward, store, address)
    return _live_agents(plan, agent, reward, address)


@asynccontextmanager
async def _commands(
    plan: DevPlan, agent: CommandAgent, reward: Any, store: LightningStore, address: Address
) -> AsyncGenerator[Any]:
    """Commands on this very loop: an agent that is a process of its own cannot block it."""
    from leyden.core.runner.config import RunnerConfig
    from leyden.core.runner.loaded import LoadedAgent
    from leyden.core.runner.runner import Runner

    loaded = LoadedAgent.of(agent, reward, input=plan.input, hooks=plan.hooks)
    config = RunnerConfig(
        worker_id="commands",
        gateway_url=address.url,
        key=address.key,
        concurrency=plan.concurrency,
        reward=loaded.reward,
        input=loaded.input,
        hooks=loaded.hooks,
        poll_seconds=0.1,
    )
    stopped = asyncio.Event()
    running = asyncio.create_task(Runner(store, loaded.source, config=config).run_until(stopped))
    try:

        async def check() -> None:
            if running.done():
                await running

        yield check
    finally:
        stopped.set()
        await running


@asynccontextmanager
async def _live_agents(plan: DevPlan, agent: Any, reward: Any, address: Address) -> AsyncGenerator[Any]:
    """The agent in this process, in a thread with a loop of its own: the gateway's loop is never the agent's."""
    import threading

    from leyden.core.runner.loaded import LoadedAgent
    from leyden.core.trainer.live import AgentThread

    loaded = LoadedAgent.of(agent, reward, input=plan.input, hooks=plan.hooks)
    ended = threading.Event()
    thread = AgentThread(address, loaded, plan.concurrency, ended)
    thread.start()
    try:

        async def check() -> None:
            thread.check()

        yield check
    finally:
        ended.set()
        await asyncio.to_thread(thread.join)

"""Dry run: runs an agent on a few tasks and shows every span, without training."""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from leyden.core.data.bounds import check_bound
from leyden.core.data.isolation import Isolation
from leyden.core.data.resources import LLM, NamedResources
from leyden.core.data.rollout import FINISHED_ROLLOUT, EnqueueRollout, Rollout, RolloutConfig, Task
from leyden.core.data.route import ANSWERED_BY, POLICY
from leyden.core.errors import LeydenError, TaskError, UsageError
from leyden.core.gateway.upstream.endpoints import check_endpoint, open_upstream
from leyden.core.masking import mask_text
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.runner.isolation.live import LiveProcesses
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.runner.user_code.loading import AgentReference
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.store.queue_view import QueueView
from leyden.core.trainer.agents.local import AgentPlan, served_resources, worker_agents
from leyden.core.trainer.event_loop import ended_by_sigterm, run_both, run_loop
from leyden.core.trainer.rollouts.recorded import RecordedRollout, read_rollout
from leyden.core.trainer.rollouts.tasks import not_whole
from leyden.core.trainer.serving.address import RunAddress, open_gateway
from leyden.core.trainer.serving.provider import ProviderEndpoint
from leyden.core.trainer.serving.serving import embedded_policy

if TYPE_CHECKING:
    from leyden.core.gateway.app import Backend


class DevPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Model or endpoint for the agent's calls, and settings of the rollouts."""

    policy: str | None = None
    """Hugging Face model for the embedded engine."""
    device: str = "cpu"
    """Device of the policy."""
    resources: NamedResources = {}
    """Named resources. The endpoint of an LLM among them answers instead of the policy."""
    provider: ProviderEndpoint | None = None
    """Endpoint for requests besides model calls; None: the endpoint among the resources, if there is one."""
    concurrency: int = 4
    isolation: Isolation = "auto"
    timeout_seconds: float | None = 120.0
    input: Any = None
    """Function from a task to the agent's input, or its import string."""
    hooks: tuple[Any, ...] = ()
    """Hooks, or their import strings."""
    env: tuple[str, ...] = ()
    """Names of environment variables that hold secrets and are passed to an agent command nevertheless."""
    store: str | None = None
    """URI of the store that records the rollouts; None: they are recorded in memory."""

    def __post_init__(self) -> None:
        """Raise UsageError for a value that cannot work."""
        check_bound("concurrency", self.concurrency)
        if self.timeout_seconds is not None:
            check_bound("timeout", self.timeout_seconds)
        for name, resource in self.resources.items():
            if isinstance(resource, LLM):
                check_endpoint(resource, f"the endpoint of {name!r}")


class DryRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a dry run."""

    task: Task
    resources: NamedResources = {}
    """Resources besides those of the plan, of which they replace those with their names."""
    rollout_id: str | None = None
    """Id of the rollout; None: one with its number."""
    policy: str | None = None
    """Hugging Face model that answers it; None: that of the plan."""
    policy_version: int = 0
    """Version that the model is of its policy, with which its calls are recorded."""
    metadata: dict[str, Any] = {}


OnFinished = Callable[[Sequence[Rollout]], None]
"""Function that receives the rollouts that have finished so far. If it raises, the dry run ends with its error."""


def dry_run(
    plan: DevPlan, agent: Any, tasks: Sequence[Task], reward: Any = None, *, show: bool = True
) -> list[RecordedRollout]:
    """Run `agent` once on each task and return the recorded rollouts; with `show`, print each one as a tree.

    `agent` and `reward` are live objects or import strings. `agent` may also be the words of a command line. Raises
    UsageError when neither policy nor endpoint is given. Raises TaskError when a store would change a task, or when a
    task lacks a key that the command line uses.
    """
    results = dry_rollouts(plan, agent, [DryRollout(task=task) for task in tasks], reward)
    if show:
        from rich.console import Console

        from leyden.core.trainer.rollouts.tree import rollout_tree

        stacks = set[str]()
        for result in results:
            Console().print(rollout_tree(result, stacks), highlight=False)
    return results


def dry_rollouts(
    plan: DevPlan,
    agent: Any,
    rollouts: Sequence[DryRollout],
    reward: Any = None,
    on_finished: OnFinished = lambda _: None,
) -> list[RecordedRollout]:
    """Run `agent` as each of `rollouts` says, and return the recorded rollouts in this order; see `dry_run`.

    They begin in this order, up to `plan.concurrency` of them at once. Raises UsageError for a store that has one of
    them already. Rollouts that an error, Ctrl-C or SIGTERM leaves unfinished are cancelled in the plan's store.
    """
    _check_tasks(plan, agent, [rollout.task for rollout in rollouts])
    live = None
    if not isinstance(agent, str | tuple | CommandAgent):
        loaded = LoadedAgent.of(agent, reward, input=plan.input, hooks=plan.hooks)
        live = _Live(loaded, LiveProcesses(plan.isolation, loaded))
    try:
        return run_loop(ended_by_sigterm(_dry_run(plan, agent, rollouts, reward, live, on_finished)))
    finally:
        if live is not None:
            live.processes.end()


def _check_tasks(plan: DevPlan, agent: Any, tasks: Sequence[Task]) -> None:
    for number, task in enumerate(tasks, 1):
        if why := not_whole(task):
            raise TaskError(f"task {number}: {why}")
    if plan.input is None and isinstance(agent, tuple | CommandAgent):
        command = agent if isinstance(agent, CommandAgent) else CommandAgent(cast("tuple[str, ...]", agent))
        for task in tasks:
            command.filled(task)


class _Live(NamedTuple):
    """Agent object of this process, and the processes from which its rollouts are forked."""

    loaded: LoadedAgent
    processes: LiveProcesses


async def _dry_run(
    plan: DevPlan,
    agent: Any,
    rollouts: Sequence[DryRollout],
    reward: Any,
    live: _Live | None,
    on_finished: OnFinished,
) -> list[RecordedRollout]:
    queue = "dev" if plan.store is None else f"dev-{secrets.token_hex(4)}"
    ids = [rollout.rollout_id or f"{queue}-{number}" for number, rollout in enumerate(rollouts)]
    provider = None if plan.provider is None else plan.provider.open()
    async with _recording(plan.store, queue, ids) as store:
        opening = open_gateway(store, provider=provider)
        async with AsyncExitStack() as engines, opening as (address, gateway), AsyncExitStack() as agents:
            names = _policy_names(plan, rollouts)
            loading = engines.enter_async_context(_answering(plan, names, _policy_versions(plan, rollouts)))
            starting = agents.enter_async_context(_agents(plan, agent, reward, store, address, live))
            backends, check = await run_both(loading, starting)
            gateway.answer_with(backends[0], {backend.name: backend for backend in backends[1:]})
            await _enqueue(plan, dict(zip(ids, rollouts, strict=True)), names, store, address)
            while len(finished := await store.wait_for_rollouts(rollout_ids=ids, timeout=0.5)) < len(ids):
                on_finished(finished)
                await check()
            on_finished(finished)
        return [await read_rollout(store, rollout_id) for rollout_id in ids]


@asynccontextmanager
async def _recording(uri: str | None, queue: str, ids: Sequence[str]) -> AsyncGenerator[LightningStore]:
    """Context manager: opens the store, in which the workers here run only what is in `queue`.

    After an error, rollouts that have not finished are cancelled. Raises UsageError if the store has one of them.
    """
    if uri is None:
        from leyden.core.store.memory import MemoryStore

        yield MemoryStore()
        return
    store = QueueView(await open_store(uri), queue)
    try:
        if known := [name for name in ids if await store.get_rollout_by_id(name) is not None]:
            raise UsageError(f"the store {mask_text(uri)} has a rollout {known[0]} already: give another store")
        try:
            yield store
        except BaseException:
            with suppress(LeydenError):
                await _cancel(store, ids)
            raise
    finally:
        await store.close()


async def _cancel(store: LightningStore, ids: Sequence[str]) -> None:
    for rollout in await store.query_rollouts(rollout_id_in=ids):
        if rollout.status not in FINISHED_ROLLOUT:
            await store.update_rollout(rollout.rollout_id, status="cancelled")


def _policy_names(plan: DevPlan, rollouts: Sequence[DryRollout]) -> dict[str, str]:
    """Return the name of each policy that answers, by its source; empty if an endpoint answers."""
    if any(isinstance(resource, LLM) for resource in plan.resources.values()):
        return {}
    sources = dict.fromkeys(rollout.policy or plan.policy for rollout in rollouts)
    if None in sources:
        raise UsageError(
            "no model can answer the agent: give a policy, or an endpoint and its model; in Python, policy= or "
            "initial_resources={'main_llm': LLM(endpoint=..., model=...)}"
        )
    names = (POLICY if number == 1 else f"{POLICY}-{number}" for number in range(1, len(sources) + 1))
    return dict(zip(map(str, sources), names, strict=True))


def _policy_versions(plan: DevPlan, rollouts: Sequence[DryRollout]) -> dict[str, int]:
    """Return the version of each policy that answers, by its source."""
    return {str(rollout.policy or plan.policy): rollout.policy_version for rollout in rollouts}


async def _enqueue(
    plan: DevPlan,
    rollouts: Mapping[str, DryRollout],
    names: Mapping[str, str],
    store: LightningStore,
    address: RunAddress,
) -> None:
    config = RolloutConfig(timeout_seconds=plan.timeout_seconds)
    versions: dict[bytes, str] = {}
    requests: list[EnqueueRollout] = []
    for rollout_id, rollout in rollouts.items():
        source = rollout.policy or plan.policy
        model = os.path.basename(source or POLICY)
        key = msgspec.json.encode((model, rollout.resources))
        if key not in versions:
            served = served_resources({**plan.resources, **rollout.resources}, address, model)
            versions[key] = (await store.add_resources(served)).resources_id
        answered_by = {ANSWERED_BY: names[source]} if source is not None and len(names) > 1 else {}
        requests.append(
            EnqueueRollout(
                rollout_id=rollout_id,
                input=rollout.task,
                mode="test",
                resources_id=versions[key],
                config=config,
                metadata={**rollout.metadata, **answered_by},
            )
        )
    await store.enqueue_many_rollouts(requests)


@asynccontextmanager
async def _answering(
    plan: DevPlan, names: Mapping[str, str], versions: Mapping[str, int]
) -> "AsyncGenerator[list[Backend]]":
    """Context manager: opens the endpoint, or loads the policies one after the other."""
    endpoint = next((r for r in plan.resources.values() if isinstance(r, LLM)), None)
    if endpoint is not None:
        yield [open_upstream(endpoint)]
        return
    async with AsyncExitStack() as engines:
        loaded: list[Backend] = []
        for source, name in names.items():
            serving = embedded_policy(source, device=plan.device, version=versions[source])
            policy = await engines.enter_async_context(serving)
            loaded.append(replace(policy, name=name))
        yield loaded


def _agents(
    plan: DevPlan, agent: Any, reward: Any, store: LightningStore, address: RunAddress, live: _Live | None
) -> Any:
    if live is not None:
        return _live_agents(plan, live, address)
    if isinstance(agent, str | tuple):
        reference = cast(AgentReference, agent)
        agent_plan = AgentPlan(
            agent=reference,
            reward=reward,
            input=plan.input,
            hooks=plan.hooks,
            env=plan.env,
            concurrency=plan.concurrency,
            isolation=plan.isolation,
        )
        return worker_agents(agent_plan)(address)
    return _commands(plan, agent, reward, store, address)


@asynccontextmanager
async def _commands(
    plan: DevPlan, agent: CommandAgent, reward: Any, store: LightningStore, address: RunAddress
) -> AsyncGenerator[Any]:
    """Context manager: runs commands on this event loop; an agent in a process of its own cannot block it."""
    from leyden.core.runner.config import RunnerConfig
    from leyden.core.runner.runner import Runner

    loaded = LoadedAgent.of(agent, reward, input=plan.input, hooks=plan.hooks)
    config = RunnerConfig(
        worker_id="commands",
        gateway_url=address.url,
        key=address.key,
        concurrency=plan.concurrency,
        **loaded.functions(),
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
async def _live_agents(plan: DevPlan, live: _Live, address: RunAddress) -> AsyncGenerator[Any]:
    """Context manager: runs the agent in a thread of this process, with an event loop other than the gateway's."""
    import threading

    from leyden.core.trainer.agents.live import AgentThread

    ended = threading.Event()
    thread = AgentThread(address.machine("live"), live.loaded, plan.concurrency, live.processes, ended)
    thread.start()
    try:

        async def check() -> None:
            thread.check()

        yield check
    finally:
        ended.set()
        await asyncio.to_thread(thread.join)

"""Runs an agent on the queued rollouts of a store, beside an algorithm that only knows the store.

The gateway records the agent's model calls in the store. They are answered by a policy, by the first LLM among the
initial resources, or by the endpoint that a client of the library `openai` would call.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from leyden.core.agent_lightning.algorithm import Algorithm, TraceReader
from leyden.core.data.isolation import Isolation
from leyden.core.data.resources import LLM, NamedResources
from leyden.core.errors import UsageError
from leyden.core.runner.attempts.hooks import Hook
from leyden.core.runner.isolation.live import LiveProcesses
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.store.base import LightningStore
from leyden.core.store.memory import MemoryStore
from leyden.core.trainer.agents.live import AgentThread
from leyden.core.trainer.agents.local import served_resources
from leyden.core.trainer.event_loop import ended_by_sigterm, run_loop
from leyden.core.trainer.serving.address import RunAddress, open_gateway
from leyden.core.trainer.serving.endpoint import OPENAI, ModelEndpoint, openai_endpoint
from leyden.core.trainer.serving.serving import embedded_policy

CHECK_SECONDS = 0.5
"""Interval at which the agent's thread is checked."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """What a session runs with."""

    agent: Any
    """A live object."""
    resources: NamedResources = field(default_factory=dict[str, Any])
    """What the agent runs with until the store has other resources."""
    policy: str | None = None
    """Folder or hub name of the model that answers the agent; None: an endpoint does."""
    device: str = "cpu"
    hooks: "tuple[Hook | type[Hook] | str, ...]" = ()
    input: Any = None
    """Function from a task to the agent's input."""
    concurrency: int = 1
    isolation: Isolation = "auto"

    @property
    def endpoint(self) -> ModelEndpoint:
        """The endpoint that answers without a policy."""
        llm = next((one for one in self.resources.values() if isinstance(one, LLM)), None)
        return ModelEndpoint.of(llm) if llm is not None else openai_endpoint() or ModelEndpoint(url=OPENAI)

    @property
    def api_key(self) -> str | None:
        """The key of the LLM among the resources."""
        return next((one.api_key for one in self.resources.values() if isinstance(one, LLM)), None)

    def load(self) -> LoadedAgent:
        """Return the agent with its hooks. Raises UsageError for an import string, or what is no agent."""
        if isinstance(self.agent, str):
            raise UsageError("an algorithm that works on the store runs a live agent: give the object itself")
        return LoadedAgent.of(self.agent, input=self.input, hooks=self.hooks)


def run_algorithm(
    session: Session,
    algorithm: Algorithm,
    adapter: TraceReader,
    store: LightningStore | None,
    train_dataset: Any,
    val_dataset: Any,
) -> None:
    """Run `algorithm` on `store`, or on a store in memory, while the agent works; return when `run` does."""
    loaded = session.load()
    processes = LiveProcesses(session.isolation, loaded)
    used = store or MemoryStore()
    algorithm.set_store(used)
    algorithm.set_adapter(adapter)
    if session.resources:
        algorithm.set_initial_resources(session.resources)

    async def main() -> None:
        async with agents(session, loaded, processes, used) as check:
            running = asyncio.ensure_future(_run(algorithm, train_dataset, val_dataset))
            try:
                while not (await asyncio.wait({running}, timeout=CHECK_SECONDS))[0]:
                    await check()
                await running
            finally:
                running.cancel()

    try:
        run_loop(ended_by_sigterm(main()))
    finally:
        processes.end()


async def _run(algorithm: Algorithm, train_dataset: Any, val_dataset: Any) -> None:
    if algorithm.is_async():
        result = algorithm.run(train_dataset, val_dataset)
        if result is not None:
            await result
    else:
        await asyncio.to_thread(algorithm.run, train_dataset, val_dataset)


@asynccontextmanager
async def agents(
    session: Session, loaded: LoadedAgent, processes: LiveProcesses, store: LightningStore
) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """Context manager: runs the agent in a thread. Yields a function that raises the error that ended the thread."""
    async with open_gateway(store) as (address, gateway), _answering(session) as backend:
        gateway.answer_with(backend)
        if served := _served(session, address):
            await store.add_resources(served)
        ended = threading.Event()
        machine = address.machine("live")
        thread = AgentThread(machine, loaded, session.concurrency, processes, ended, fail_closed=False)
        thread.start()

        async def check() -> None:
            thread.check()
            await _check_llms(session, store, address)

        try:
            yield check
            await check()
        finally:
            ended.set()
            await asyncio.to_thread(thread.join)


def _served(session: Session, address: RunAddress) -> NamedResources:
    """Return the resources with the gateway as endpoint of each LLM; one is added where a policy answers."""
    if session.policy is None and not any(isinstance(one, LLM) for one in session.resources.values()):
        return session.resources
    return served_resources(session.resources, address, (session.policy or "").rpartition("/")[2])


@asynccontextmanager
async def _answering(session: Session) -> AsyncGenerator[Any]:
    if session.policy is None:
        yield session.endpoint.open(session.api_key)
        return
    async with embedded_policy(session.policy, device=session.device) as served:
        yield served


async def _check_llms(session: Session, store: LightningStore, address: RunAddress) -> None:
    """Raise UsageError if an LLM of the latest resources names an endpoint that does not answer this session's agents.

    The gateway answers for every LLM, so a further endpoint would be ignored.
    """
    latest = await store.get_latest_resources()
    own = {address.url} if session.policy is not None else {address.url, session.endpoint.url}
    for name, one in ({} if latest is None else latest.resources).items():
        if isinstance(one, LLM) and one.endpoint not in own:
            raise UsageError(
                f"the LLM {name!r} in the store names {one.endpoint}, which does not answer the agents here: give it "
                "as Trainer(initial_resources={'main_llm': LLM(...)}), or set OPENAI_BASE_URL to it"
            )

"""The agent side of a sitting: worker processes from import strings, or the process that holds a live agent."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from leyden.core.data.isolation import Isolation
from leyden.core.data.resources import LLM, NamedResources
from leyden.core.errors import RunError, UsageError
from leyden.core.runner.user_code.loading import AgentReference
from leyden.core.trainer.agents.runner_api import TOKEN
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.serving.address import Address

if TYPE_CHECKING:
    from leyden.core.runner.workers.spec import WorkerSpec

PARENT_SECONDS = 10.0
"""How long the parent may take to stop its runner."""

logger = logging.getLogger(__name__)

CheckAgents = Callable[[], Awaitable[None]]
"""Raises when no agent process can be kept alive."""
AgentSide = Callable[[Address], AbstractAsyncContextManager[CheckAgents]]
"""Brings agent processes up, however that is done, and takes them down again."""


class AgentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which agent runs, and how many at once."""

    agent: AgentReference
    reward: str | None = None
    reward_weights: dict[str, float] | None = None
    input: str | None = None
    hooks: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    """Names of variables that hold secrets and that a command gets all the same."""
    workers: int = 1
    concurrency: int = 64
    isolation: Isolation = "auto"
    log_file: str | None = None
    """Where what agents print goes; None: to this process's own output."""


def worker_agents(plan: AgentPlan) -> AgentSide:
    """Agent processes spawned from import strings, on this machine."""

    @asynccontextmanager
    async def side(address: Address) -> AsyncGenerator[CheckAgents]:
        from leyden.core.runner.workers.pool import WorkerPool

        pool = WorkerPool(worker_spec(plan, address), plan.workers)
        await pool.start()
        try:
            yield pool.check
        finally:
            await pool.stop()

    return side


def worker_spec(plan: AgentPlan, address: Address) -> "WorkerSpec":
    """What each of the worker processes is told that run `plan` at `address`."""
    from leyden.core.runner.workers.spec import WorkerSpec

    address = address.machine()
    return WorkerSpec(
        agent=plan.agent,
        reward=plan.reward,
        reward_weights=plan.reward_weights,
        input=plan.input,
        hooks=plan.hooks,
        env=plan.env,
        store_url=f"{address.url}/store",
        store_token=address.token,
        gateway_url=address.url,
        concurrency=plan.concurrency,
        isolation=plan.isolation,
        routes=address.routes,
        log_file=plan.log_file,
    )


@asynccontextmanager
async def no_agents(address: Address) -> AsyncGenerator[CheckAgents]:
    """Nobody: what is learned was collected elsewhere, and nothing is evaluated."""

    async def check() -> None:
        raise RunError(f"rollouts wait at {address.url}, and the run has no agent")

    yield check


@asynccontextmanager
async def remote_agents(address: Address) -> AsyncGenerator[CheckAgents]:
    """Whoever comes: `leyden run --server URL`, on any machine, brings workers along.

    Raises UsageError when nobody can, for want of a token that was agreed upon.
    """
    if not os.environ.get(TOKEN):
        raise UsageError(f"runners remote need a token that they know: set {TOKEN}, here and where they are")
    logger.warning("rollouts wait for runners: leyden run AGENT --server %s, with the same %s", address.url, TOKEN)

    async def check() -> None:
        """Nobody here can die: that nothing is finished for long is told by who waits."""

    yield check


def parent_agents(descriptor: int, parent: int) -> AgentSide:
    """The process `parent`, which started this one, is the runner.

    It learns the address through the pipe `descriptor`, and at the end that it may stop; it closes our standard input
    when it has, so that its last claim meets a store that still answers.
    """

    @asynccontextmanager
    async def side(address: Address) -> AsyncGenerator[CheckAgents]:
        async def check() -> None:
            if os.getppid() != parent:
                raise RunError("the process that holds the agent is gone; go on with `Trainer.resume`")

        tell_parent(descriptor, {"address": address.machine("live")})
        try:
            yield check
        finally:
            tell_parent(descriptor, {"finished": True})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_input_closed(), PARENT_SECONDS)

    return side


def agents_output(config: RunConfig, folder: RunFolder) -> str:
    """Where what the run's agents print can be read, as a clause."""
    if config.runners.where == "remote":
        return "what the agents print is where `leyden run` was started"
    if isinstance(config.agent, str) and config.agent.startswith("<"):  # a live object
        return "what the agent prints is in the output of the process that holds it"
    return f"what the agents print is in {folder.worker_log}"


def tell_parent(descriptor: int, message: dict[str, Any]) -> None:
    """Write one line to the parent; one that is gone is not told."""
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, msgspec.json.encode(message) + b"\n")


async def _input_closed() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


def served_resources(given: NamedResources, address: Address, model: str) -> NamedResources:
    """What agents run with: the given resources, each LLM served by the gateway; `main_llm` if there is none."""
    named: NamedResources = {
        name: msgspec.structs.replace(value, endpoint=address.url, api_key=None) if isinstance(value, LLM) else value
        for name, value in given.items()
    }
    if any(isinstance(value, LLM) for value in named.values()):
        return named
    return {**named, "main_llm": LLM(endpoint=address.url, model=model)}

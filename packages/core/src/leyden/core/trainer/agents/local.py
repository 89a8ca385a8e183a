"""Agents of a session: starts worker processes for import strings, or connects to the process with a live agent."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from leyden.core.data.resources import LLM, NamedResources
from leyden.core.data.sampling import Sampling
from leyden.core.errors import RunError, UsageError
from leyden.core.runner.user_code.agent_spec import AgentSpec, TaskExample, agent_fields
from leyden.core.runner.user_code.loading import AgentReference
from leyden.core.trainer.agents.runner_api import SERVED, TOKEN
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.serving.address import RunAddress

if TYPE_CHECKING:
    from leyden.core.runner.workers.pool import WorkerPool
    from leyden.core.runner.workers.ray_pool import RayPool
    from leyden.core.runner.workers.spec import WorkerSpec

PARENT_SECONDS = 10.0
"""Time limit, in seconds, for the parent process to stop its runner."""

logger = logging.getLogger(__name__)

CheckAgents = Callable[[], Awaitable[None]]
"""Raises when no agent process can be kept alive."""
AgentSide = Callable[[RunAddress], AbstractAsyncContextManager[CheckAgents]]
"""Context manager that starts the agent processes of a session, and stops them on exit."""


class AgentPlan(AgentSpec, frozen=True, kw_only=True):
    """Agent to run on this machine or a Ray cluster, and the number of its processes."""

    agent: AgentReference
    workers: int = 1
    max_workers: int | None = None
    """Largest number of processes; None: `workers`, whatever the load is."""
    examples: tuple[TaskExample, ...] = ()
    """Tasks that the agent must be able to take, checked when the agent is loaded."""
    log_file: str | None = None
    """File for the output of agents; None: the output of this process."""


def worker_agents(plan: AgentPlan) -> AgentSide:
    """Return an agent side that spawns worker processes on this machine, from import strings."""

    @asynccontextmanager
    async def side(address: RunAddress) -> AsyncGenerator[CheckAgents]:
        from leyden.core.runner.workers.pool import WorkerPool

        pool = WorkerPool(worker_spec(plan, address), plan.workers, most=plan.max_workers)
        await pool.start()
        try:
            async with scaled(pool, plan, address) as check:
                yield check
        finally:
            await pool.stop()

    return side


@asynccontextmanager
async def scaled(pool: "WorkerPool | RayPool", plan: AgentPlan, address: RunAddress) -> AsyncGenerator[CheckAgents]:
    """Context manager: the size of a started pool follows the demand of the run, where the plan allows it.

    Yields a function that raises where no worker can be kept alive.
    """
    if plan.max_workers is None or address.demand is None:
        yield pool.check
        return
    from leyden.core.runner.workers.autoscaling import follow

    following = asyncio.create_task(follow(pool, address.demand.wanted_now))

    async def check() -> None:
        await pool.check()
        if following.done():
            following.result()

    try:
        yield check
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def worker_spec(plan: AgentPlan, address: RunAddress) -> "WorkerSpec":
    """Return the specification of each worker process that runs `plan` for the run at `address`."""
    from leyden.core.runner.workers.spec import WorkerSpec

    address = address.machine()
    return WorkerSpec(
        **agent_fields(plan),
        store_url=f"{address.url}/store",
        store_token=address.token,
        gateway_url=address.url,
        routes=address.routes,
        examples=plan.examples,
        log_file=plan.log_file,
    )


@asynccontextmanager
async def no_agents(address: RunAddress) -> AsyncGenerator[CheckAgents]:
    """Agent side without agents: the run learns from stored rollouts and evaluates nothing."""

    async def check() -> None:
        raise RunError(f"rollouts are waiting at {address.url}, but the run has no agent")

    yield check


@asynccontextmanager
async def remote_agents(address: RunAddress) -> AsyncGenerator[CheckAgents]:
    """Agent side for remote workers, which `leyden run --server URL` starts on any machine.

    Raises UsageError if no token is set, because no worker could then connect.
    """
    if not os.environ.get(TOKEN):
        raise UsageError(f"runners remote need a token: set {TOKEN} here and on the machines of the runners")
    if (name := os.environ.get(SERVED)) is not None:
        start, token = f"--server URL --run {name}", "the URL and the token of its server"
    else:
        start, token = f"--server {address.url}", f"the same {TOKEN}"
    logger.warning("rollouts are waiting for runners: start `leyden run AGENT %s`, with %s", start, token)

    async def check() -> None:
        """Do nothing: no worker process belongs to this machine.

        The collector warns if no rollout finishes for long.
        """

    yield check


def parent_agents(descriptor: int, parent: int) -> AgentSide:
    """Return an agent side for the process `parent`, which started this process and runs the agent.

    The parent receives the address through the pipe `descriptor`, and at the end the message that it may stop. It
    closes the standard input of this process once it has stopped, so that its last claim still reaches the store.
    """

    @asynccontextmanager
    async def side(address: RunAddress) -> AsyncGenerator[CheckAgents]:
        async def check() -> None:
            if os.getppid() != parent:
                raise RunError("the process that holds the agent has ended; continue with `Trainer.resume`")

        send_to_parent(descriptor, {"address": address.machine("live")})
        try:
            yield check
        finally:
            send_to_parent(descriptor, {"finished": True})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_input_closed(), PARENT_SECONDS)

    return side


def agents_output(config: RunConfig, folder: RunFolder) -> str:
    """Return a clause that states where the output of the run's agents can be read."""
    if config.runners.where == "remote":
        return "the output of the agents is where `leyden run` was started"
    if isinstance(config.agent, str) and config.agent.startswith("<"):  # a live object
        return "the output of the agent is in the output of the process that holds it"
    return f"the output of the agents is in {folder.worker_log}"


def send_to_parent(descriptor: int, message: dict[str, Any]) -> None:
    """Write one line to the parent process; does nothing if that process is gone."""
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, msgspec.json.encode(message) + b"\n")


async def _input_closed() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


def served_resources(
    given: NamedResources, address: RunAddress, model: str, temperature: float = Sampling().temperature
) -> NamedResources:
    """Return the resources for agents: the given ones, with the gateway as endpoint of each LLM.

    Adds an LLM named `main_llm` if none is given, with the `temperature` that agents should request.
    """
    named: NamedResources = {
        name: _served_llm(value, address) if isinstance(value, LLM) else value for name, value in given.items()
    }
    if any(isinstance(value, LLM) for value in named.values()):
        return named
    own = LLM(endpoint=address.url, model=model, sampling_parameters={"temperature": temperature})
    return {**named, "main_llm": own}


def _served_llm(given: LLM, address: RunAddress) -> LLM:
    return msgspec.structs.replace(given, endpoint=address.url, replicas=(), api_key=None)

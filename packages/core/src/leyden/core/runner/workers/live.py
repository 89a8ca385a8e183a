"""Runner in the calling process, for an agent that exists only there as a live object."""

import asyncio
import secrets
from collections.abc import Callable

from leyden.core.data.route import Route
from leyden.core.runner.adapters.auto_instrument import instrument_all
from leyden.core.runner.attempts.thread_safety import prepare_first_use
from leyden.core.runner.attempts.threads import AgentThreads
from leyden.core.runner.config import RunnerConfig
from leyden.core.runner.isolation.live import LiveProcesses
from leyden.core.runner.runner import Runner
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.store.http.access import machine_name
from leyden.core.store.http.client import HttpStore
from leyden.core.tracing import context_propagation
from leyden.core.tracing.spans.export import start_recording
from leyden.core.tracing.wire import gateway_pool, routing


async def run_live(  # noqa: PLR0913 -- what its two callers set
    agent: LoadedAgent,
    store: HttpStore,
    *,
    gateway_url: str,
    key: bytes | None = None,
    routes: tuple[Route, ...] = (),
    concurrency: int,
    processes: LiveProcesses,
    stopped: asyncio.Event,
    fail_closed: bool = True,
) -> None:
    """Run queued rollouts of `store` with a live agent until `stopped` is set, then close the store.

    `key` as in `RunnerConfig`. Where the store's token belongs to a machine, the worker's id begins with that machine's
    name. A caller may close the store before, when its server is gone for good; it is then not waited for.

    While this runs, every model call of this process belongs to an attempt or fails; without `fail_closed`, calls that
    belong to none go where they would go without Leyden. Afterwards the process is as before. Raises RewardError when
    the agent's reward function cannot be called with a task and a result.
    """
    name = machine_name(store.address[1])
    config = RunnerConfig(
        worker_id=f"{name}1" if name else f"live-{secrets.token_hex(3)}",
        gateway_url=gateway_url,
        key=key,
        routes=routes,
        concurrency=concurrency,
        **agent.functions(),
        isolation=processes.reason,
    )
    asyncio.get_running_loop().set_default_executor(AgentThreads())
    context_propagation.install()
    routing.install(fail_closed=fail_closed)
    recorder = await start_recording(store.add_many_spans)
    undos: list[Callable[[], None]] = []
    try:
        undos.append(prepare_first_use())
        undos.append(instrument_all(agent.source.adapter))
        runner = Runner(store, agent.source, config=config, recorder=recorder, fork_server=processes.server)
        await runner.run_until(stopped)
    finally:
        processes.end()
        await recorder.stop()
        await store.close()
        for undo in reversed(undos):
            undo()
        await gateway_pool.aclose()  # the event loop may end before its own cleanup closes the pool
        routing.uninstall()
        context_propagation.uninstall()

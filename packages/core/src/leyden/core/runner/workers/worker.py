"""Worker process, started with `python -m` on this module: a `WorkerPool` starts it and sends its input.

It loads the agent before its event loop starts, as a script would. It then runs attempts on that one loop until SIGTERM
or its parent's end.
"""

import asyncio
import gc
import logging
import os
import sys

import msgspec

from leyden.core.errors import LeydenError, UsageError
from leyden.core.masking import MaskingFilter, remember_secret
from leyden.core.runner.adapters.auto_instrument import instrument_all
from leyden.core.runner.attempts.thread_safety import prepare_first_use
from leyden.core.runner.attempts.threads import AgentThreads
from leyden.core.runner.config import RunnerConfig
from leyden.core.runner.isolation.choice import choose
from leyden.core.runner.isolation.fork_server import ForkServer
from leyden.core.runner.isolation.processes import Processes
from leyden.core.runner.runner import Runner
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.runner.workers.event_loop import loop_factory, on_sigterm
from leyden.core.runner.workers.pipes import ParentPipes, WorkerHeartbeat, WorkerReady, flush_output, refusal_of
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.store.http.client import HttpStore
from leyden.core.tracing import context_propagation
from leyden.core.tracing.spans.export import start_recording
from leyden.core.tracing.wire import routing

NO_TELEMETRY = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Environment variables that stop the frameworks' own network calls, such as telemetry."""
HEARTBEAT_SECONDS = 1.0
GRACE_SECONDS = 3.0
"""Longest time that the process lives after its parent."""

logger = logging.getLogger(__name__)


def main() -> None:
    """Run until the pool stops the worker.

    Exits with 0, or with 2 when the agent or a function given with it cannot load.
    """
    pipes = ParentPipes()
    code, is_command = 1, False
    try:
        spec = msgspec.json.decode(pipes.read_line(), type=WorkerSpec)
        _prepare(spec)
        processes = Processes(lambda: _load(spec), pipes.close)
        loaded = processes.load()
        loaded.check_tasks(spec.examples)
        choice = choose(spec.isolation, loaded)
        is_command = choice.is_command
        shares = not choice.processes and not choice.is_command
        open_resources = processes.open_resources() if shares else ""
        fork_server = processes.keep(loaded) if choice.processes else processes.discard()
        token = pipes.read_line().decode().strip()  # read only now: hidden from forked processes
        remember_secret(token)
        spec = msgspec.structs.replace(spec, store_token=token)
        ready = WorkerReady(loaded.source.adapter.name, choice.reason(processes.imports_again), shares, open_resources)
        asyncio.Runner(loop_factory=loop_factory()).run(_serve(spec, loaded, pipes, ready, fork_server))
        code = 0
    except UsageError as error:
        pipes.send(refusal_of(error))
        code = 2
    except BaseException as error:
        logger.critical("the worker ends", exc_info=True)
        pipes.send(refusal_of(error))
    flush_output()
    # An agent's leftover threads and tasks would keep the process alive. The supervisor of a command ends it.
    pipes.leave(code, alone=is_command)


def _prepare(spec: WorkerSpec) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"%(asctime)s {spec.worker_id} %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(MaskingFilter())
    if spec.key:
        remember_secret(spec.key)
    leyden_logger = logging.getLogger("leyden")  # the root logger is left to the agent
    leyden_logger.addHandler(handler)
    leyden_logger.setLevel(logging.INFO if spec.log_file else logging.WARNING)
    leyden_logger.propagate = False
    os.environ.update(NO_TELEMETRY)
    sys.path.extend(entry for entry in spec.python_path if entry not in sys.path)
    context_propagation.install()
    routing.install(fail_closed=True)


def _load(spec: WorkerSpec) -> LoadedAgent:
    loaded = LoadedAgent.of(
        spec.agent, spec.reward, reward_weights=spec.reward_weights, input=spec.input, hooks=spec.hooks, env=spec.env
    )
    prepare_first_use()
    instrument_all(loaded.source.adapter)
    _set_aside()
    return loaded


def _set_aside() -> None:
    """Exclude all objects that exist now from garbage collection, mainly libraries. Scanning them is slow.

    The thresholds of the collector stay unchanged, because an agent's own garbage may hold connections.
    """
    gc.collect()
    gc.freeze()


async def _serve(
    spec: WorkerSpec, loaded: LoadedAgent, pipes: ParentPipes, ready: WorkerReady, fork_server: ForkServer | None
) -> None:
    loop, stopped, draining = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.set_default_executor(AgentThreads())  # for sync agents: asyncio's own pool limits threads
    on_sigterm(stopped.set)
    pipes.when_parent_ends(
        lambda: loop.call_soon_threadsafe(stopped.set),
        grace_seconds=GRACE_SECONDS,
        drain=lambda: loop.call_soon_threadsafe(draining.set),
    )
    store = HttpStore(spec.store_url, spec.store_token)
    recorder = await start_recording(store.add_many_spans)
    config = RunnerConfig(
        worker_id=spec.worker_id,
        gateway_url=spec.gateway_url,
        key=bytes.fromhex(spec.key) or None,
        routes=spec.routes,
        concurrency=spec.concurrency,
        **loaded.functions(),
        isolation=ready.isolation,
    )
    runner = Runner(store, loaded.source, config=config, recorder=recorder, fork_server=fork_server)
    pipes.send(ready)
    heartbeats = asyncio.create_task(_send_heartbeats(runner, pipes))
    server_watch = None if fork_server is None else asyncio.create_task(_stop_when_server_ends(fork_server, stopped))
    try:
        await runner.run_until(stopped, draining)
        if fork_server is not None and fork_server.gone.is_set():
            raise LeydenError("the fork server, which starts the agents' processes, has ended")
    finally:
        heartbeats.cancel()
        if server_watch is not None:
            server_watch.cancel()
        if fork_server is not None:
            fork_server.end()
        await recorder.stop()
        await store.close()


async def _stop_when_server_ends(fork_server: ForkServer, stopped: asyncio.Event) -> None:
    """Stop the worker when the fork server has ended. Its pool starts another worker."""
    await fork_server.gone.wait()
    stopped.set()


async def _send_heartbeats(runner: Runner, pipes: ParentPipes) -> None:
    while True:
        pipes.send(WorkerHeartbeat(runner.finished, runner.running))
        await asyncio.sleep(HEARTBEAT_SECONDS)


if __name__ == "__main__":
    main()

"""Process of one attempt: runs the agent on its own event loop and reports to the runner."""

import asyncio
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from leyden.core.data.resources import NamedResources
from leyden.core.data.span import Span
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.builtin import ROLLOUT
from leyden.core.runner.adapters.registry import installed_adapters
from leyden.core.runner.attempts.agent_run import AgentRun
from leyden.core.runner.attempts.own_failures import own_failure
from leyden.core.runner.attempts.threads import AgentThreads
from leyden.core.runner.config import RunnerConfig
from leyden.core.runner.isolation import alone
from leyden.core.runner.isolation.code_reading import libraries_loaded_since
from leyden.core.runner.isolation.messages import (
    AgentEnded,
    AgentLoaded,
    BeginAttempt,
    EmittedSpans,
    FrameworkSpans,
    begin_decoder,
    end_decoder,
    receive,
    send,
)
from leyden.core.runner.runner import Runner
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.runner.workers.event_loop import loop_factory, on_sigterm
from leyden.core.store.common.span_entry import ready
from leyden.core.store.http.client import HttpStore
from leyden.core.tracing.context import OpenAttempt
from leyden.core.tracing.spans.export import Recorder, start_recording

REPORT_SECONDS = 0.2
"""Interval at which new notes are reported."""

Load = Callable[[], LoadedAgent]
"""Returns the agent, either already loaded or loaded now in this process."""


def serve_attempt(connection: socket.socket, load: Load) -> None:
    """Run the attempt that the first message on `connection` describes. Returns when everything is reported."""
    _reseed()
    agent, runner = _ForkedAgent(), asyncio.Runner(loop_factory=loop_factory())
    begin = runner.run(agent.receive(connection))
    if begin is None:
        return
    began = time.monotonic()
    try:
        loaded = _loaded(begin, load)  # not on a loop: the agent's module may run one while it is imported
    except Exception as error:
        runner.run(agent.refuse(error))
        return
    runner.run(agent.serve(begin, loaded, time.monotonic() - began))


def _loaded(begin: BeginAttempt, load: Load) -> LoadedAgent:
    alone.begin()
    for adapter in installed_adapters():
        if adapter.module in sys.modules and type(adapter).forked is not Adapter.forked:
            folder = Path(begin.folder)
            folder.parent.mkdir(mode=0o700, exist_ok=True)  # other users share the parent of this folder
            adapter.forked(folder)
    return load()


class _ForkedAgent:
    def __init__(self) -> None:
        self._modules = set(sys.modules)
        self._reported = 0

    async def receive(self, connection: socket.socket) -> BeginAttempt | None:
        asyncio.get_running_loop().set_default_executor(AgentThreads())
        self._reader, self._writer = await asyncio.open_unix_connection(sock=connection)
        return await receive(self._reader, begin_decoder)

    async def refuse(self, error: Exception) -> None:
        await send(self._writer, AgentEnded(own_failure("the agent cannot be loaded in a separate process", error)))

    async def serve(self, begin: BeginAttempt, loaded: LoadedAgent, seconds: float) -> None:
        await send(self._writer, AgentLoaded(seconds))
        try:
            run, recorder = await self._begin(begin, loaded)
        except Exception as error:
            await self.refuse(error)
            return
        await self._work(run, recorder)
        if begin.store is not None and not run.stopping:
            end = await receive(self._reader, end_decoder)
            if end is not None:
                await run.end(end.spans)

    async def _begin(self, begin: BeginAttempt, loaded: LoadedAgent) -> tuple[AgentRun, Recorder]:
        rollout = begin.rollout
        attempt = OpenAttempt(
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
            token=begin.token,
            gateway_url=begin.gateway_url,
            trace_id=begin.trace_id,
            mode=begin.mode,
            routes=begin.routes,
            extra={ROLLOUT: rollout},
        )
        run = AgentRun(
            rollout,
            attempt,
            loaded=loaded,
            resources=_ready(begin.resources),
            runner=_runner(begin, loaded),
            is_alone=True,
        )
        return run, await start_recording(self._send_spans)

    async def _work(self, run: AgentRun, recorder: Recorder) -> None:
        work = asyncio.create_task(run.run(), name=f"leyden {run.attempt.attempt_id}")

        def stop() -> None:
            run.stopping = True
            run.attempt.closed.set()
            work.cancel()

        on_sigterm(stop)
        reporting = asyncio.create_task(self._report(run))
        await asyncio.wait({work})
        reporting.cancel()
        done = AgentEnded(run.failure, [] if run.failure else run.made_no_call, libraries_loaded_since(self._modules))
        try:
            await recorder.stop()
            await self._send_notes(run)
        except Exception as error:  # notes cannot be sent: the attempt's record must show it
            done = AgentEnded(own_failure("the attempt's remaining spans cannot be reported", error))
        if not run.stopping:
            await send(self._writer, done)

    async def _report(self, run: AgentRun) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            await self._send_notes(run)

    async def _send_notes(self, run: AgentRun) -> None:
        notes = run.attempt.notes[self._reported :]
        self._reported += len(notes)
        await send(self._writer, EmittedSpans(await ready(notes), run.stage))

    async def _send_spans(self, spans: list[Span]) -> None:
        await send(self._writer, FrameworkSpans(await ready(spans)))


def _runner(begin: BeginAttempt, loaded: LoadedAgent) -> Any:
    """Return a runner from which hooks read the store. It claims nothing. None where the runner sent no store."""
    if begin.store is None:
        return None
    config = RunnerConfig(worker_id=begin.worker_id, gateway_url=begin.gateway_url)
    return Runner(HttpStore(*begin.store), loaded.source, config=config)


def _ready(resources: NamedResources) -> Callable[[], Awaitable[NamedResources]]:
    async def given() -> NamedResources:
        return resources

    return given


def _reseed() -> None:
    """Reseed libraries whose random numbers would otherwise be the same in all forked processes.

    Python's own `random` reseeds itself.
    """
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed()

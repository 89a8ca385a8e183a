"""`ForkedRun`: the runner's handle of an agent's run in a forked process."""

import asyncio
import logging
import shutil
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from leyden.core.data.failure import Failure
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.runner.attempts.agent_run import Resources, Stage
from leyden.core.runner.attempts.annotations import failed_span
from leyden.core.runner.attempts.own_failures import own_failure
from leyden.core.runner.isolation.messages import (
    AgentLoaded,
    AttemptMarked,
    BeginAttempt,
    EmittedSpans,
    FrameworkSpans,
    Report,
    receive,
    report_decoder,
    send,
)
from leyden.core.tracing.context import OpenAttempt

if TYPE_CHECKING:
    from leyden.core.runner.isolation.fork_server import ForkedProcess, ForkServer

logger = logging.getLogger(__name__)

EXIT_SECONDS = 2.0
"""Longest wait for a process to exit after its last report, before it is killed."""


LONG_IMPORT_SECONDS = 1.0
"""Shortest import time, in seconds, that the message of a timeout mentions."""
LEFT_SECONDS = 1.0
"""Longest wait for a further report from a process that has ended."""


class ForkedRun:
    """Runs the agent in a process of `server` and receives its reports. Has the same interface as `AgentRun`.

    `keep` receives each span of a framework as it ends, so that a killed process loses only open spans. With a `store`
    (its URL and token) the process also calls the `on_rollout_end` hooks.
    """

    def __init__(
        self,
        rollout: AttemptedRollout,
        attempt: OpenAttempt,
        *,
        server: "ForkServer",
        resources: Resources,
        keep: Callable[[Span], object],
        worker_id: str,
        store: tuple[str, str] | None,
    ) -> None:
        self.rollout, self.attempt = rollout, attempt
        self.failure: Failure | None = None
        self.stage: Stage = "result"
        self.stopping = False
        self.made_no_call: list[str] = []
        self._server, self._resources, self._keep = server, resources, keep
        self._worker_id, self._store = worker_id, store
        self._folder = server.folder / attempt.attempt_id
        self._process: ForkedProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._began = rollout.attempt.start_time
        self._loaded_after: float | None = None
        """Seconds that the process took to load the agent. None until the agent is loaded."""

    async def run(self) -> None:
        """Run the agent and score its result. A failure is recorded in `failure` and not raised.

        When it is cancelled, it ends the process.
        """
        try:
            reader = await self._begin()
            await self._handle_reports(reader)
        except asyncio.CancelledError:
            self.stopping = True
            raise
        except Exception as error:
            self.failure = own_failure("the agent's process cannot be run", error)

    def lost_time(self) -> str:
        """Return the end of a message: how much of the time the process spent on importing the agent.

        Empty where that was less than `LONG_IMPORT_SECONDS`.
        """
        if self._loaded_after is None:
            return ": its process was still importing the agent" if self._process is not None else ""
        if self._loaded_after < LONG_IMPORT_SECONDS:
            return ""
        return f", of which its process took {self._loaded_after:.1f} s to import the agent"

    def give_up(self, failure: Failure) -> None:
        """Record that the run has ended with `failure`. The owner then cancels `run`."""
        self.stopping, self.failure = True, failure
        if self.stage == "result":
            self.attempt.notes.append(failed_span(self.attempt, self._began, failure))

    def kill(self) -> bool:
        """Kill the process. Returns False where it has not started."""
        if self._process is None:
            return False
        self._process.signal(signal.SIGKILL)
        return True

    async def end(self, spans: list[Span] | None) -> None:
        """Have the process call the `on_rollout_end` hooks, then wait until it has exited."""
        if self._process is None or self._writer is None:
            return
        try:
            if self._store is not None and spans is not None and not self._process.ended.done():
                await send(self._writer, AttemptMarked(spans))
                await asyncio.shield(self._process.ended)
        except OSError:
            pass  # the process has ended by itself
        finally:
            await self._close(self._process, self._writer)

    async def _begin(self) -> asyncio.StreamReader:
        attempt = self.attempt
        begin = BeginAttempt(
            rollout=self.rollout,
            token=attempt.token,
            gateway_url=attempt.gateway_url,
            trace_id=attempt.trace_id,
            mode=attempt.mode,
            routes=attempt.routes,
            resources=await self._resources(),
            folder=str(self._folder),
            worker_id=self._worker_id,
            store=self._store,
        )
        self._process = await self._server.spawn()
        reader, self._writer = await asyncio.open_unix_connection(sock=self._process.connection)
        await send(self._writer, begin)
        return reader

    async def _handle_reports(self, reader: asyncio.StreamReader) -> None:
        assert self._process is not None
        process = self._process
        try:
            while (report := await self._next_report(reader, process)) is not None:
                if self._handle(report):
                    return
        except asyncio.CancelledError:
            process.signal(signal.SIGTERM)  # the process ends its agent, sends its reports and exits
            while (report := await self._next_report(reader, process)) is not None:
                self._handle(report)
            raise
        await asyncio.shield(process.ended)
        how = process.how_it_ended()
        self.failure = Failure(kind="worker", type="ProcessEnded", message=f"the agent's process {how}")

    @staticmethod
    async def _next_report(reader: asyncio.StreamReader, process: "ForkedProcess") -> Report | None:
        """Return the next report.

        None at the end of the stream, or when the process has ended without a further report.

        The stream itself may stay open: a process that the agent started can hold it for as long as it runs.
        """
        receiving = asyncio.ensure_future(receive(reader, report_decoder))
        try:
            await asyncio.wait({receiving, process.ended}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                await asyncio.wait({receiving}, timeout=LEFT_SECONDS)
            return receiving.result() if receiving.done() else None
        finally:
            receiving.cancel()

    def _handle(self, report: Report) -> bool:
        """Store one report. Returns whether it was the last."""
        if isinstance(report, AgentLoaded):
            self._loaded_after = report.seconds
        elif isinstance(report, FrameworkSpans):
            for span in self._own_spans(report.spans):
                self._keep(span)
        elif isinstance(report, EmittedSpans):
            self.stage = report.stage
            self.attempt.notes.extend(self._own_spans(report.spans))
        elif not self.stopping:
            self.failure, self.made_no_call = report.failure, report.made_no_call
            self._server.prepare(report.imported)  # later processes find these modules loaded
            return True
        return False

    def _own_spans(self, spans: list[Span]) -> list[Span]:
        """Return the spans of this attempt only.

        The worker's token, which the process lacks, stores them, so the process must not write to other attempts.
        """
        own_ids = self.attempt.rollout_id, self.attempt.attempt_id
        kept = [span for span in spans if (span.rollout_id, span.attempt_id) == own_ids]
        if len(kept) < len(spans):
            lost = len(spans) - len(kept)
            logger.warning(
                "rollout %s: its process sent %d spans of other attempts, which are dropped", own_ids[0], lost
            )
        return kept

    async def _close(self, process: "ForkedProcess", writer: asyncio.StreamWriter) -> None:
        writer.close()
        _, running = await asyncio.wait({process.ended}, timeout=EXIT_SECONDS)
        if running:
            process.signal(signal.SIGKILL)
        if self._folder.exists():
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

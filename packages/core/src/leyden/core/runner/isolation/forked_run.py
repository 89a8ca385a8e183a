"""`ForkedRun`: a run of the agent in a process of its own, as the runner sees it."""

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
    Begin,
    End,
    Loaded,
    Notes,
    Report,
    Spans,
    receive,
    report_decoder,
    send,
)
from leyden.core.tracing.context import OpenAttempt

if TYPE_CHECKING:
    from leyden.core.runner.isolation.fork_server import ForkedProcess, ForkServer

logger = logging.getLogger(__name__)

EXIT_SECONDS = 2.0
"""How long a process may take to exit once all is said, before it is killed."""


LONG_IMPORT_SECONDS = 1.0
"""What a process spends on the import of the agent is named from here on, when the attempt takes too long."""
LEFT_SECONDS = 1.0
"""How long to wait for the next report that a process has sent before it ended."""


class ForkedRun:
    """Has a process of `server` run the agent, and takes what it reports; the same interface as `AgentRun`.

    `keep` receives the spans of frameworks as they end, so that a process that is killed loses only open ones. With a
    `store` (its URL and token) the process also calls the hooks that run last of all.
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
        """Seconds that the process took to load the agent; None until it has."""

    async def run(self) -> None:
        """Run the agent and score what it returned; what goes wrong becomes `failure`. Cancelled, end the process."""
        try:
            reader = await self._begin()
            await self._listen(reader)
        except asyncio.CancelledError:
            self.stopping = True
            raise
        except Exception as error:
            self.failure = own_failure("the agent's process cannot be run", error)

    def lost_time(self) -> str:
        """Time that went into the process and not into the agent, as the rest of a sentence; or nothing."""
        if self._loaded_after is None:
            return ": its process was still importing the agent" if self._process is not None else ""
        if self._loaded_after < LONG_IMPORT_SECONDS:
            return ""
        return f", {self._loaded_after:.1f} s of which its process took to import the agent"

    def give_up(self, failure: Failure) -> None:
        """Note that the run is over because of `failure`; the owner then cancels `run`."""
        self.stopping, self.failure = True, failure
        if self.stage == "result":
            self.attempt.notes.append(failed_span(self.attempt, self._began, failure))

    def kill(self) -> bool:
        """End the process at once, if it has begun; returns whether it has."""
        if self._process is None:
            return False
        self._process.signal(signal.SIGKILL)
        return True

    async def end(self, spans: list[Span] | None) -> None:
        """Have the process call the hooks that run last of all, and wait until it has exited."""
        if self._process is None or self._writer is None:
            return
        try:
            if self._store is not None and spans is not None and not self._process.ended.done():
                await send(self._writer, End(spans))
                await asyncio.shield(self._process.ended)
        except OSError:
            pass  # the process has ended by itself
        finally:
            await self._leave(self._process, self._writer)

    async def _begin(self) -> asyncio.StreamReader:
        attempt = self.attempt
        begin = Begin(
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

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        assert self._process is not None
        process = self._process
        try:
            while (report := await self._next(reader, process)) is not None:
                if self._take(report):
                    return
        except asyncio.CancelledError:
            process.signal(signal.SIGTERM)  # it ends its agent, sends what there is, and exits
            while (report := await self._next(reader, process)) is not None:
                self._take(report)
            raise
        await asyncio.shield(process.ended)
        how = process.how_it_ended()
        self.failure = Failure(kind="worker", type="ProcessEnded", message=f"the agent's process {how}")

    @staticmethod
    async def _next(reader: asyncio.StreamReader, process: "ForkedProcess") -> Report | None:
        """The next report; None at the end of the stream, or when the process has ended and left no further one.

        A process that the agent started may hold the stream open for as long as it lives.
        """
        receiving = asyncio.ensure_future(receive(reader, report_decoder))
        try:
            await asyncio.wait({receiving, process.ended}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                await asyncio.wait({receiving}, timeout=LEFT_SECONDS)
            return receiving.result() if receiving.done() else None
        finally:
            receiving.cancel()

    def _take(self, report: Report) -> bool:
        """Keep what was reported; returns whether it was the last."""
        if isinstance(report, Loaded):
            self._loaded_after = report.seconds
        elif isinstance(report, Spans):
            for span in self._own(report.spans):
                self._keep(span)
        elif isinstance(report, Notes):
            self.stage = report.stage
            self.attempt.notes.extend(self._own(report.spans))
        elif not self.stopping:
            self.failure, self.made_no_call = report.failure, report.made_no_call
            self._server.prepare(report.imported)  # the next processes find them loaded
            return True
        return False

    def _own(self, spans: list[Span]) -> list[Span]:
        """Those of the attempt alone: what the process reports is stored with the worker's token, which it has not."""
        own = self.attempt.rollout_id, self.attempt.attempt_id
        kept = [span for span in spans if (span.rollout_id, span.attempt_id) == own]
        if len(kept) < len(spans):
            lost = len(spans) - len(kept)
            logger.warning("rollout %s: its process reported %d spans of other attempts, left out", own[0], lost)
        return kept

    async def _leave(self, process: "ForkedProcess", writer: asyncio.StreamWriter) -> None:
        writer.close()
        _, running = await asyncio.wait({process.ended}, timeout=EXIT_SECONDS)
        if running:
            process.signal(signal.SIGKILL)
        if self._folder.exists():
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

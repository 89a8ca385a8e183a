"""`WorkerProcess`: the parent's handle of one worker process."""

import asyncio
import contextlib
import os
import signal
import sys
import time

import msgspec

from leyden.core import errors
from leyden.core.errors import LeydenError, UsageError
from leyden.core.masking import without_own_tokens
from leyden.core.runner.workers.pipes import DRAIN, WorkerHeartbeat, WorkerReady, WorkerRefused, decode_report
from leyden.core.runner.workers.spec import WorkerSpec

START_SECONDS = 120.0
"""Longest wait for the agent to load."""
STOP_SECONDS = 3.0
"""Longest wait for a worker to stop before it is killed."""
LOOK_SECONDS = 1.0


class WorkerKilled(LeydenError):
    """A signal ended a worker before it was ready."""


class WorkerProcess:
    """A started worker process. It has its own session, so that a terminal's Ctrl-C reaches only the parent."""

    def __init__(self, spec: WorkerSpec, process: asyncio.subprocess.Process) -> None:
        self.worker_id = spec.worker_id
        self.finished = 0
        """Number of attempts that the worker has run to their end, from its last `WorkerHeartbeat`."""
        self.running = 0
        """Number of attempts that it runs, from the same report."""
        self.ready: WorkerReady | None = None
        """The worker's first report, once the agent is loaded."""
        self.began = self._last_report = time.monotonic()
        self._spec, self._process = spec, process
        self._first: asyncio.Future[WorkerReady | WorkerRefused] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, spec: WorkerSpec, output: int | None = None) -> "WorkerProcess":
        """Start a worker and wait until it claims rollouts.

        The worker prints to the descriptor `output`, or to the caller's standard error where that is None.

        Raises the UsageError that occurred in the worker (AgentNotFound, UnknownAgent, RewardError). Raises
        WorkerKilled when a signal ended it, and LeydenError when it ended otherwise or sent no report in time.
        """
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "leyden.core.runner.workers.worker")
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command,
                stdin=pipe,
                stdout=pipe,
                stderr=output,
                env=without_own_tokens(os.environ),  # agents do not need Leyden's tokens
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:  # otherwise a half-started process would run until the event loop ends
            with contextlib.suppress(OSError):
                await cls(spec, await starting).kill()
            raise
        worker = cls(spec, process)
        try:
            await worker._begin()
        except BaseException:
            await worker.kill()
            raise
        return worker

    @property
    def has_ended(self) -> bool:
        """Whether the process is known to have ended."""
        return self._process.returncode is not None

    @property
    def ended_well(self) -> bool:
        """Whether the process has ended by itself, without an error."""
        return self._process.returncode == 0

    async def ended(self) -> str:
        """Wait until the worker has ended or its event loop is blocked. Returns the reason as text."""
        waiting = asyncio.create_task(self._process.wait())
        last_look = time.monotonic()
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=LOOK_SECONDS)
                now = time.monotonic()
                if now - last_look > 2 * LOOK_SECONDS:  # this loop was blocked itself and has reports to read first
                    self._last_report = now
                last_look = now
                if now - self._last_report > self._spec.stall_seconds and not waiting.done():
                    return blocked(self._spec.stall_seconds)
        finally:
            waiting.cancel()
        return self._how_it_ended()

    def drain(self) -> None:
        """Request that the worker claims no further rollout, and ends once those that it has claimed have ended."""
        if self._process.stdin is not None:
            self._process.stdin.write(DRAIN)

    async def stop(self) -> None:
        """Send SIGTERM to the worker. Kill it when it does not end within `STOP_SECONDS`."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        await self.kill()

    async def kill(self) -> None:
        """Kill the worker's process group, then close the pipes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # a dead worker may have left processes behind
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
            with contextlib.suppress(OSError):
                await self._process.stdin.wait_closed()
        await self._reading

    async def _begin(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None  # opened as a pipe
        spec = msgspec.structs.replace(self._spec, store_token="")
        stdin.write(b"%b\n%b\n" % (msgspec.json.encode(spec), self._spec.store_token.encode()))
        with contextlib.suppress(OSError):  # the code below handles a process that has already ended
            await stdin.drain()
        await asyncio.wait({self._first, self._reading}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not self._first.done():
            seconds = f"within {START_SECONDS:.0f} s"
            why = seconds if not self._reading.done() else f"but {await self._ended_early()}"
            kind = WorkerKilled if (self._process.returncode or 0) < 0 else LeydenError
            raise kind(f"a worker did not start {why}{self._see_log()}")
        first = self._first.result()
        if isinstance(first, WorkerRefused):
            raise same_error(first, self._see_log())
        self.ready = first

    async def _ended_early(self) -> str:
        await self._process.wait()
        return self._how_it_ended()

    async def _read(self) -> None:
        """Read the worker's reports until its end."""
        stdout = self._process.stdout
        assert stdout is not None  # opened as a pipe
        async for line in stdout:
            self._last_report = time.monotonic()
            with contextlib.suppress(msgspec.MsgspecError):
                report = decode_report(line)
                if isinstance(report, WorkerHeartbeat):
                    self.finished, self.running = report.finished, report.running
                elif not self._first.done():
                    self._first.set_result(report)

    def _how_it_ended(self) -> str:
        code = self._process.returncode
        if code is not None and code < 0:
            return f"it was killed by {signal.Signals(-code).name}"
        return f"it ended with code {code}"

    def _see_log(self) -> str:
        return f"; see {self._spec.log_file}" if self._spec.log_file else ""


def same_error(refused: WorkerRefused, see_log: str = "") -> LeydenError:
    """Return the error of a process that could not start, to be raised in this process."""
    kind = getattr(errors, refused.kind, None)
    if isinstance(kind, type) and issubclass(kind, UsageError):
        return kind(refused.message)
    return LeydenError(f"a worker could not start: {refused.kind}: {refused.message}{see_log}")


def blocked(seconds: float) -> str:
    """Return the message for a worker whose event loop was blocked for `seconds`, with advice."""
    return (
        f"its event loop has been blocked for {seconds:.0f} s, by an async agent that makes blocking calls: make it a "
        "plain `def`, use the async client, or give --isolation process"
    )

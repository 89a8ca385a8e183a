"""`GatewayWorkers`: a gateway of several processes, which accept connections from one socket and share one store.

This process accepts no connection itself. It starts the workers, replaces one that dies, and ends them in order. The
socket is inherited, so that a connection that no worker has accepted yet is never lost with one of them.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from leyden.core.data.identity import new_key
from leyden.core.errors import LeydenError, UsageError
from leyden.core.gateway.http.server import listen, root_url
from leyden.core.gateway.shared.folder import forget_worker
from leyden.core.runner.workers.pipes import WorkerReady, WorkerRefused, decode_report
from leyden.core.runner.workers.process import same_error
from leyden.core.store.open import open_store
from leyden.core.trainer.services.captures import CapturePlan
from leyden.core.trainer.services.gateway_worker import GatewayWorkerPlan

START_SECONDS = 120.0
"""Longest wait for a worker to accept connections."""
STOP_SECONDS = 15.0
"""Longest wait for a worker to end its calls before it is killed; longer than the grace of `GatewayServer`."""
STABLE_SECONDS = 10.0
"""A worker that lived this long is replaced at once."""
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
"""Seconds before a worker is replaced that died early; the wait doubles up to the longest."""

logger = logging.getLogger(__name__)


def check_workers(count: int, store: str, *, is_embedded: bool) -> None:
    """Raise UsageError for a number of workers that cannot serve this store and this policy."""
    if count < 1:
        raise UsageError(f"--workers must be at least 1, not {count}")
    if count == 1:
        return
    if is_embedded:
        raise UsageError(
            f"--workers {count} needs --engine-url or --endpoint: each worker would load the policy itself"
        )
    if store.startswith("memory:"):
        raise UsageError(f"--workers {count} needs a store that processes can share: {store} belongs to one process")
    if sys.platform == "win32":
        raise UsageError(f"--workers {count} is not available on Windows: start several gateways behind a proxy")


async def serve_with_workers(
    plan: CapturePlan, count: int, started: Callable[[str], None], stopped: asyncio.Event
) -> None:
    """Serve with `count` workers until `stopped` is set; `started` receives the root URL once all accept connections.

    Raises what `serve_captures` raises, before any worker has answered a call.
    """
    with listen(plan.host, plan.port) as listener, tempfile.TemporaryDirectory(prefix="leyden-gateway-") as folder:
        # The store is created here, so that several workers do not create it at the same time.
        await (await open_store(plan.store)).close()
        worker_plan = GatewayWorkerPlan(
            plan=plan, key=new_key(), listener=listener.fileno(), folder=folder, name="unnamed"
        )
        workers = GatewayWorkers(worker_plan)
        try:
            await workers.start(count)
            started(root_url(plan.host, listener))
            await stopped.wait()
        finally:
            listener.close()  # so that new connections are refused once the workers have closed theirs
            await workers.stop()


class GatewayWorkers:
    """The workers of one gateway."""

    def __init__(self, plan: GatewayWorkerPlan) -> None:
        self._plan = plan
        self._numbers = itertools.count(1)
        self._running: set[_Worker] = set()
        self._replacing: list[asyncio.Task[None]] = []

    async def start(self, count: int) -> None:
        """Start the workers; the first one alone, so that an error which all of them have is raised once."""
        first = await self._start_worker()
        others = await asyncio.gather(*(self._start_worker() for _ in range(count - 1)), return_exceptions=True)
        for other in others:
            if isinstance(other, BaseException):
                raise other
        workers = [first, *(other for other in others if isinstance(other, _Worker))]
        self._replacing = [asyncio.create_task(self._replace_when_ended(worker)) for worker in workers]

    async def stop(self) -> None:
        """End all workers at the same time; a worker that takes too long is killed."""
        for task in self._replacing:
            task.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._running))

    async def _start_worker(self) -> "_Worker":
        plan = msgspec.structs.replace(self._plan, name=f"worker-{next(self._numbers)}")
        worker = await _Worker.start(plan)
        self._running.add(worker)
        return worker

    async def _replace_when_ended(self, worker: "_Worker") -> None:
        delay = 0.0
        while True:
            reason = await worker.ended()
            self._running.discard(worker)
            try:
                forget_worker(Path(self._plan.folder), worker.name)
            except (OSError, msgspec.MsgspecError) as error:  # for example a full disk; the calls go on without
                logger.warning("the metrics of a gateway worker that ended are lost: %s", error)
            delay = 0.0 if worker.age > STABLE_SECONDS else min(max(2 * delay, FIRST_DELAY), LONGEST_DELAY)
            logger.warning("A gateway worker (process %d) %s; another one is started", worker.pid, reason)
            worker = await self._start_repeatedly(delay)

    async def _start_repeatedly(self, delay: float) -> "_Worker":
        while True:
            await asyncio.sleep(delay)
            try:
                return await self._start_worker()
            except (LeydenError, OSError) as error:
                delay = min(max(2 * delay, FIRST_DELAY), LONGEST_DELAY)
                logger.warning("A gateway worker could not be started, the next try is in %.1f s: %s", delay, error)


class _Worker:
    """A worker process in a session of its own, so that Ctrl-C in a terminal reaches only the parent."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name, self.pid = name, process.pid
        self._process, self._began = process, time.monotonic()

    @classmethod
    async def start(cls, plan: GatewayWorkerPlan) -> "_Worker":
        """Start a worker and wait until it accepts connections.

        Raises the UsageError that occurred in the worker, and LeydenError when it did not start for another reason.
        """
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "leyden.core.trainer.services.gateway_worker")
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, pass_fds=(plan.listener,), start_new_session=True
        )
        worker = cls(plan.name, process)
        try:
            await worker._begin(plan)
        except BaseException:
            await worker.kill()
            raise
        return worker

    @property
    def age(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    async def ended(self) -> str:
        """Wait until the process has ended; return how it ended."""
        code = await self._process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    async def stop(self) -> None:
        """Send SIGTERM, and wait until the calls in progress have ended; then kill what is left."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        await self.kill()

    async def kill(self) -> None:
        """Kill the process, and close its pipe."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _begin(self, plan: GatewayWorkerPlan) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # opened as pipes
        stdin.write(msgspec.json.encode(plan) + b"\n")
        with contextlib.suppress(OSError):  # the code below handles a process that has already ended
            await stdin.drain()
        try:
            line = await asyncio.wait_for(stdout.readline(), START_SECONDS)
        except TimeoutError:
            raise LeydenError(f"a gateway worker did not start within {START_SECONDS:.0f} s") from None
        report = decode_report(line) if line else None
        if isinstance(report, WorkerRefused):
            raise same_error(report)
        if not isinstance(report, WorkerReady):
            raise LeydenError(f"a gateway worker did not start: it {await self.ended()}")

"""`WorkerPool`: keeps a number of worker processes alive, and changes it on request.

When a worker dies, its attempts become `unresponsive` at once. The store can then give their rollouts to another worker
where retries are allowed. Attempts may have shared the dead process, and one of them may have ended it. A retry in a
shared process could end that one too, so from then on each attempt has a process of its own.
"""

import asyncio
import logging
import os
import secrets
import sys
import time

import msgspec

from leyden.core.errors import LeydenError
from leyden.core.masking import known_secrets, remember_words
from leyden.core.runner.workers.masked_log import MaskedLog
from leyden.core.runner.workers.orphaned_attempts import OrphanedAttempts
from leyden.core.runner.workers.process import WorkerKilled, WorkerProcess
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.store.http.access import machine_name, worker_token
from leyden.core.store.http.client import HttpStore

SHORT_LIFE_SECONDS = 10.0
SHARED = "; attempts shared its process, and one of them may have ended it"
"""Suffix for the reason why a worker was lost, in the failure of each of its attempts."""
SHORT_LIVES = 10
"""Number of workers in a row that may die young with no finished attempt. Then no further worker is started."""

logger = logging.getLogger(__name__)


def worker_prefix(token: str, name: str | None) -> str:
    """Return the prefix of worker ids for a pool that uses `token`.

    `name` distinguishes pools that share a token.
    """
    machine = machine_name(token)
    if machine is None:
        return f"worker-{name or secrets.token_hex(3)}-"
    return f"{machine}{name}-" if name else machine


class WorkerPool:
    """Pool of workers that run the agent of `spec`, between `start` and `stop`; `size` of them at the start.

    Worker ids begin with `worker-NAME-`; without a `name` the pool generates one. Where the spec's token belongs to a
    machine, ids begin with the machine's name, then `NAME-` if a name is given. Each worker then gets its own token.
    The workers' output goes to the spec's `log_file`, masked. The pool never has more than `most` processes.
    """

    def __init__(self, spec: WorkerSpec, size: int = 1, *, name: str | None = None, most: int | None = None) -> None:
        self._size, self._most = size, most or size
        self._store = HttpStore(spec.store_url, spec.store_token)
        self._spec = msgspec.structs.replace(spec, python_path=(*spec.python_path, *filter(None, sys.path)))
        self._prefix = worker_prefix(spec.store_token, name)
        self._started = 0
        self._workers: dict[int, WorkerProcess] = {}
        """Workers by their slot. A slot is that of one worker and of those that replace it."""
        self._keep_alive_tasks: dict[int, asyncio.Task[None]] = {}
        self._next_slot = size
        self._draining = set[int]()
        """Slots whose worker finishes its rollouts and is not replaced."""
        self._orphaned_attempts = OrphanedAttempts(self._store)
        if not isinstance(spec.agent, str):
            remember_words(list(spec.agent))
        self._log = MaskedLog(spec.log_file, self._secrets)
        self._broken: LeydenError | None = None
        self._set_aside = set[str]()
        """Ids of workers that were stopped because attempts no longer share a process."""

    @property
    def worker_ids(self) -> list[str]:
        """Ids of the live workers in the store."""
        return [worker.worker_id for worker in self._workers.values()]

    @property
    def size(self) -> int:
        """Number of workers that the pool keeps alive; those that are being drained are not counted."""
        return len(self._keep_alive_tasks.keys() - self._draining)

    @property
    def running(self) -> int:
        """Number of attempts that run, by the workers' last reports."""
        return sum(worker.running for worker in self._workers.values())

    async def resize(self, size: int) -> None:
        """Start workers, or drain those with the fewest running attempts, until `size` workers claim rollouts.

        A drained worker ends after its last attempt. Until then it counts as one of the `most` processes of the pool,
        so a pool may reach a larger size only later. Returns when the new workers are ready. Raises LeydenError when
        one cannot start; the others are kept.
        """
        slots = self._keep_alive_tasks.keys() - self._draining
        surplus = sorted(slots, key=lambda slot: self._workers[slot].running if slot in self._workers else 0)
        for slot in surplus[: max(len(slots) - size, 0)]:
            self._draining.add(slot)
            if slot in self._workers:
                self._workers[slot].drain()
        missing = min(size - len(slots), self._most - len(self._keep_alive_tasks))
        if missing > 0 and self._broken is not None:
            raise self._broken
        added = range(self._next_slot, self._next_slot + max(missing, 0))
        self._next_slot = added.stop
        ended = await asyncio.gather(*(self._start_one(slot) for slot in added), return_exceptions=True)
        for slot in added:
            if slot in self._workers:
                self._keep_alive_tasks[slot] = asyncio.create_task(self._keep_alive(slot))
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def drained(self) -> None:
        """Drain all workers, and return when each has ended."""
        await self.resize(0)
        await asyncio.gather(*self._keep_alive_tasks.values(), return_exceptions=True)

    async def start(self) -> None:
        """Start the workers and wait until each is ready.

        Raises the UsageError of a worker that cannot load the agent, reward or hooks. Raises LeydenError when a worker
        cannot start or its output cannot be written. No worker is left running after an error.
        """
        try:
            await self._log.start()
        except BaseException:
            await self.stop()
            raise
        starts = [self._start_one(slot) for slot in range(self._size)]
        try:
            ended = await asyncio.gather(*starts, return_exceptions=True)
        except asyncio.CancelledError:
            await self.stop()
            raise
        failures = [error for error in ended if isinstance(error, BaseException)]
        if failures:
            await self.stop()
            raise failures[0]
        self._keep_alive_tasks = {slot: asyncio.create_task(self._keep_alive(slot)) for slot in range(self._size)}

    async def check(self) -> None:
        """Raise LeydenError when no worker is alive and none can be started."""
        if self._broken is not None and not self._workers:
            raise self._broken

    async def stop(self) -> None:
        """Stop every worker. Their running rollouts go back to the queue. Takes about two seconds, at most five."""
        tasks = list(self._keep_alive_tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._orphaned_attempts.stop()
        workers, self._workers = list(self._workers.values()), {}
        await asyncio.gather(*(worker.stop() for worker in workers))
        await self._log.stop()
        await self._store.close()

    def _secrets(self) -> set[str]:
        """Return the values to mask in the workers' output."""
        given = {value for name in self._spec.env if (value := os.environ.get(name))}
        return {*known_secrets(), *given, *filter(None, (self._spec.store_token, self._spec.key))}

    async def _start_one(self, slot: int) -> None:
        """Start a worker. A worker killed by a signal meanwhile is replaced.

        After `SHORT_LIVES` such workers the last one's error is raised.
        """
        for lives_left in reversed(range(SHORT_LIVES)):
            self._started += 1
            worker_id = f"{self._prefix}{self._started}"
            token = worker_token(self._spec.store_token, worker_id)
            spec = msgspec.structs.replace(self._spec, worker_id=worker_id, store_token=token)
            try:
                self._workers[slot] = await self._start_worker(spec)
            except WorkerKilled as error:
                if not lives_left:
                    raise
                logger.warning("worker %s is replaced: %s", worker_id, error)
                continue
            worker = self._workers[slot]
            if self._spec.isolation == "process" and self._shares(worker):  # another was lost meanwhile
                await worker.stop()
                await self._start_one(slot)
            return

    async def _start_worker(self, spec: WorkerSpec) -> WorkerProcess:
        output = self._log.open_pipe()
        try:
            return await WorkerProcess.start(spec, output)
        finally:
            os.close(output)

    def _shares(self, worker: WorkerProcess) -> bool:
        """Return whether several attempts may have run in the process of `worker` itself."""
        return self._spec.concurrency > 1 and worker.ready is not None and worker.ready.shares

    async def _isolate(self, lost: WorkerProcess, why: str) -> None:
        """After the loss of a shared worker, switch to one process for each attempt, where that is possible.

        Other workers whose attempts share a process are stopped first, and their rollouts are requeued. One of them
        might otherwise retry the attempt that ended `lost`.
        """
        if self._spec.isolation != "auto" or lost.ready is None:
            return
        if lost.ready.keeps_open:
            logger.warning(
                "attempts still share a process, although one of them may have ended worker %s: the agent's import "
                "leaves %s open, so the process cannot be forked; --isolation process imports the agent again for "
                "each attempt",
                lost.worker_id,
                lost.ready.keeps_open,
            )
            return
        self._spec = msgspec.structs.replace(self._spec, isolation="process")
        logger.warning(
            "from now on each attempt runs in a separate process: attempts shared worker %s, which was lost (%s), and "
            "an attempt that ends its process would end the others too",
            lost.worker_id,
            why,
        )
        others = [worker for worker in self._workers.values() if self._shares(worker) and not worker.has_ended]
        self._set_aside.update(worker.worker_id for worker in others)
        await asyncio.gather(*(worker.stop() for worker in others))

    async def _keep_alive(self, slot: int) -> None:
        """Replace the worker of one slot whenever it dies. Returns once it was drained, or cannot be replaced."""
        try:
            await self._replace_lost(slot)
        finally:
            del self._keep_alive_tasks[slot]
            self._draining.discard(slot)

    async def _replace_lost(self, slot: int) -> None:
        short_lives = 0
        while True:
            worker = self._workers[slot]
            why = await worker.ended()
            del self._workers[slot]
            await worker.kill()
            if slot in self._draining and worker.ended_well:
                return
            if worker.worker_id in self._set_aside:  # stopped by `_isolate`, which requeued its rollouts
                self._set_aside.discard(worker.worker_id)
                why = "attempts no longer share a process"
            else:
                what = "was lost while it was being drained" if slot in self._draining else "is replaced"
                logger.warning("worker %s %s: %s", worker.worker_id, what, why)
                if self._shares(worker):
                    await self._isolate(worker, why)
                    why += SHARED
            self._orphaned_attempts.sweep_worker(f"worker {worker.worker_id}", why, worker.worker_id.__eq__)
            if slot in self._draining:
                return
            short = worker.finished == 0 and time.monotonic() - worker.began < SHORT_LIFE_SECONDS
            short_lives = short_lives + 1 if short else 0
            if short_lives >= SHORT_LIVES:
                log = f"; see {self._spec.log_file}" if self._spec.log_file else ""
                self._broken = LeydenError(
                    f"{short_lives} workers in a row ended right after their start, the last because {why}{log}"
                )
                return
            try:
                await self._start_one(slot)
            except LeydenError as error:
                self._broken = error
                return
            if slot in self._draining:
                self._workers[slot].drain()

"""`WorkerPool`: keeps a number of worker processes alive. Knows nothing of what they run.

When one dies, the attempts it held become `unresponsive` at once, so that the store can give their rollouts to
another worker if they may be tried again.
"""

import asyncio
import logging
import secrets
import sys
import time

import msgspec

from leyden.core.errors import LeydenError
from leyden.core.runner.lost_workers import LostWorkers
from leyden.core.runner.worker_process import WorkerKilled, WorkerProcess
from leyden.core.runner.worker_spec import WorkerSpec
from leyden.core.store.client import HttpStore

SHORT_LIFE_SECONDS = 10.0
SHORT_LIVES = 10
"""So many workers in a row that died young, without finishing one attempt: no further one is started."""

logger = logging.getLogger(__name__)


class WorkerPool:
    """`size` workers that run the agent of `spec`, as long as `start` and `stop` say.

    Their ids in the store begin with `worker-NAME-`; a name is made up if none is given.
    """

    def __init__(self, spec: WorkerSpec, size: int = 1, *, name: str | None = None) -> None:
        self._size = size
        self._store = HttpStore(spec.store_url, spec.store_token)
        self._spec = msgspec.structs.replace(spec, python_path=(*spec.python_path, *filter(None, sys.path)))
        self._name = name or secrets.token_hex(3)
        self._started = 0
        self._workers: dict[int, WorkerProcess] = {}
        self._keeping: list[asyncio.Task[None]] = []
        self._lost = LostWorkers(self._store)
        self._broken: LeydenError | None = None

    @property
    def worker_ids(self) -> list[str]:
        """Names of the live workers, as the store knows them."""
        return [worker.worker_id for worker in self._workers.values()]

    async def start(self) -> None:
        """Start the workers and wait until each is ready.

        Raises the UsageError that a worker met while loading the agent, reward or hooks, or LeydenError when one
        cannot start; none is left running then.
        """
        starts = [self._start_one(place) for place in range(self._size)]
        try:
            ended = await asyncio.gather(*starts, return_exceptions=True)
        except asyncio.CancelledError:
            await self.stop()
            raise
        failures = [error for error in ended if isinstance(error, BaseException)]
        if failures:
            await self.stop()
            raise failures[0]
        self._keeping = [asyncio.create_task(self._keep(place)) for place in range(self._size)]

    async def check(self) -> None:
        """Raise LeydenError when no worker can be kept alive."""
        if self._broken is not None and not self._workers:
            raise self._broken

    async def stop(self) -> None:
        """Stop every worker; what they were running goes back to the queue. Takes about two seconds, at most five."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await self._lost.stop()
        workers, self._workers = list(self._workers.values()), {}
        await asyncio.gather(*(worker.stop() for worker in workers))
        await self._store.close()

    async def _start_one(self, place: int) -> None:
        """Start a worker; one that is killed meanwhile is not the agent's fault, unless it happens again and again."""
        for lives_left in reversed(range(SHORT_LIVES)):
            self._started += 1
            worker_id = f"worker-{self._name}-{self._started}"
            try:
                self._workers[place] = await WorkerProcess.start(
                    msgspec.structs.replace(self._spec, worker_id=worker_id)
                )
            except WorkerKilled as error:
                if not lives_left:
                    raise
                logger.warning("worker %s is replaced: %s", worker_id, error)
            else:
                return

    async def _keep(self, place: int) -> None:
        """Replace the worker of one place whenever it dies."""
        short_lives = 0
        while True:
            worker = self._workers[place]
            why = await worker.ended()
            del self._workers[place]
            await worker.kill()
            logger.warning("worker %s is replaced: %s", worker.worker_id, why)
            self._lost.sweep_worker(f"worker {worker.worker_id}", why, worker.worker_id.__eq__)
            short = worker.finished == 0 and time.monotonic() - worker.began < SHORT_LIFE_SECONDS
            short_lives = short_lives + 1 if short else 0
            if short_lives >= SHORT_LIVES:
                log = f"; see {self._spec.log_file}" if self._spec.log_file else ""
                self._broken = LeydenError(f"{short_lives} workers in a row died at once, the last because {why}{log}")
                return
            try:
                await self._start_one(place)
            except LeydenError as error:
                self._broken = error
                return

"""`WorkerPresence`: which workers a store's server hears from, and how many rollouts they can take."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PRESENT_SECONDS = 15.0
"""A worker whose last heartbeat is older is not present. Runners send one every 5 seconds."""


@dataclass(frozen=True, slots=True)
class PresentWorker:
    """A worker at its last heartbeat."""

    at: float
    concurrency: int
    """Rollouts that it runs at the same time; 0 if it did not report it."""
    draining: bool
    """Whether it finishes its rollouts and claims no others."""


class WorkerPresence:
    """The workers that have sent a heartbeat through this server. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._workers: dict[str, PresentWorker] = {}

    def heartbeat(self, worker_id: str, stats: Mapping[str, Any]) -> None:
        """Record the heartbeat of a worker with its statistics. Only a runner reports its concurrency."""
        concurrency = stats.get("concurrency")
        self._workers.pop(worker_id, None)  # so that the oldest heartbeat is the first of the dict
        self._workers[worker_id] = PresentWorker(
            at=self._clock(),
            concurrency=concurrency if isinstance(concurrency, int) and concurrency > 0 else 0,
            draining=stats.get("draining") is True,
        )
        self._forget()

    def claiming(self) -> list[PresentWorker]:
        """Return the present workers that claim rollouts."""
        self._forget()
        return [worker for worker in self._workers.values() if not worker.draining]

    def _forget(self) -> None:
        oldest = self._clock() - PRESENT_SECONDS
        while self._workers and (first := next(iter(self._workers))) and self._workers[first].at < oldest:
            del self._workers[first]

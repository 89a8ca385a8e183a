"""`RedisCache`: a cache of the rollouts, workers and resources that a store last read or wrote.

A transaction may use outdated entries, since its commit checks every version it used and is refused where one is old.
"""

import msgspec

from leyden.core.store.common.rows import AttemptKey, ResourcesRow, WorkerRow
from leyden.core.store.redis.codec import ABSENT, RolloutAtRest

MOST, MOST_BYTES = 4096, 32 << 20
"""Largest number of rollouts and of workers, and of bytes of rollouts; above it, the entries are cleared."""


class CachedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """Cached entry of a worker and its open attempts."""

    version: str = ABSENT
    position: int = 0
    row: WorkerRow | None = None
    open: dict[AttemptKey, int] = {}
    """Positions of the newest of its open attempts."""
    whole: bool = True
    """Whether these are all of its open attempts."""


class CachedResources(msgspec.Struct, frozen=True, kw_only=True):
    """Cached entries of resources, all as of one version."""

    version: str = ABSENT
    latest: ResourcesRow | None = None
    current: dict[str, ResourcesRow | None] = {}
    """Current version by id; None where there is no such id."""


class RedisCache:
    """Cache of one store. Not thread-safe."""

    def __init__(self) -> None:
        self.rollouts: dict[str, RolloutAtRest] = {}
        self.workers: dict[str, CachedWorker] = {}
        self.resources: CachedResources | None = None
        self._bytes = 0

    def keep(self, rollout: RolloutAtRest) -> None:
        """Add a rollout."""
        rollout_id = rollout.row.rollout_id
        old = self.rollouts.get(rollout_id)
        self._bytes += _size(rollout) - (_size(old) if old is not None else 0)
        self.rollouts[rollout_id] = rollout
        if len(self.rollouts) > MOST or self._bytes > MOST_BYTES:
            self.rollouts.clear()
            self._bytes = 0

    def keep_worker(self, worker_id: str, cached_worker: CachedWorker) -> None:
        """Add a worker."""
        if len(self.workers) >= MOST:
            self.workers.clear()
        self.workers[worker_id] = cached_worker

    def forget_all(self) -> None:
        """Clear the cache."""
        self.rollouts.clear()
        self.workers.clear()
        self.resources = None
        self._bytes = 0


def _size(rollout: RolloutAtRest) -> int:
    return len(rollout.row.input) + len(rollout.row.metadata)

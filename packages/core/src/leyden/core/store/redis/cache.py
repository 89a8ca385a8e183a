"""`Memory`: what a store last read of rollouts, workers and resources, or wrote. Knows no keys and no connections.

Nothing here is ever believed without a look: a commit that was decided on it is refused where it is old.
"""

import msgspec

from leyden.core.store.common.rows import AttemptKey, ResourcesRow, WorkerRow
from leyden.core.store.redis.codec import ABSENT, RolloutAtRest

MOST, MOST_BYTES = 4096, 32 << 20
"""Rollouts and workers that are remembered, and bytes of what rollouts were given; beyond that all are forgotten."""


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """A worker and its open attempts."""

    version: str = ABSENT
    place: int = 0
    row: WorkerRow | None = None
    open: dict[AttemptKey, int] = {}
    """Places of the newest of its open attempts."""
    whole: bool = True
    """Whether there are no others."""


class Shelf(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the resources, all as of one version."""

    version: str = ABSENT
    latest: ResourcesRow | None = None
    current: dict[str, ResourcesRow | None] = {}
    """By id; None where there is no such id."""


class Memory:
    """For one thread at a time."""

    def __init__(self) -> None:
        self.rollouts: dict[str, RolloutAtRest] = {}
        self.benches: dict[str, Bench] = {}
        self.shelf: Shelf | None = None
        self._bytes = 0

    def keep(self, rollout: RolloutAtRest) -> None:
        """Remember a rollout."""
        rollout_id = rollout.row.rollout_id
        old = self.rollouts.get(rollout_id)
        self._bytes += _size(rollout) - (_size(old) if old is not None else 0)
        self.rollouts[rollout_id] = rollout
        if len(self.rollouts) > MOST or self._bytes > MOST_BYTES:
            self.rollouts.clear()
            self._bytes = 0

    def keep_bench(self, worker_id: str, bench: Bench) -> None:
        """Remember a worker."""
        if len(self.benches) >= MOST:
            self.benches.clear()
        self.benches[worker_id] = bench

    def forget_all(self) -> None:
        """Forget everything."""
        self.rollouts.clear()
        self.benches.clear()
        self.shelf = None
        self._bytes = 0


def _size(rollout: RolloutAtRest) -> int:
    return len(rollout.row.input) + len(rollout.row.metadata)

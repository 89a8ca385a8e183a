"""Autoscaling: how many worker processes a run needs, and pools that start and drain workers accordingly.

The rule is that of Kubernetes' HorizontalPodAutoscaler with two stabilization windows. A load that rises or falls for a
moment changes nothing.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from leyden.core.errors import LeydenError

LOOK_SECONDS = 1.0
"""Seconds between two looks at the load."""
RETRY_SECONDS = 30.0
"""Pause of a pool after a worker that it wanted to add could not start."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRule:
    """Bounds for the number of workers, and how long a load must last before the number changes."""

    least: int = 1
    most: int = 1
    out_after: float = 10.0
    """Seconds for which rollouts must have waited while all workers were full, before workers are added."""
    in_after: float = 300.0
    """Seconds for which fewer workers must have sufficed, before workers are drained."""

    def needed(self, load: "Load") -> int:
        """Return the number of workers that could run everything that is running or waiting, within the bounds.

        It exceeds the present number only if more rollouts wait than the workers have free places.
        """
        enough = math.ceil((load.running + load.queued) / max(load.concurrency, 1))
        free = max(load.workers * load.concurrency - load.running, 0)
        if load.queued <= free:  # workers that are being drained may run more than the others have places
            enough = min(enough, load.workers)
        return min(max(enough, self.least), self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of a run at one moment."""

    queued: int
    """Rollouts that no worker has claimed."""
    running: int
    """Rollouts that workers have claimed and not finished."""
    workers: int
    """Workers that claim rollouts; those that are being drained are not counted."""
    concurrency: int
    """Rollouts that one worker runs at the same time."""


class Autoscaler:
    """Applies a `ScalingRule` to a series of loads: `wanted` changes only after a load has lasted."""

    def __init__(self, rule: ScalingRule) -> None:
        self.rule = rule
        self.wanted = rule.least
        self._needed = deque[tuple[float, int]]()
        """What was needed at each look, as far back as the longer window reaches."""

    def look(self, load: Load, now: float) -> int:
        """Return the wanted number of workers, given the load at the time `now`.

        It rises to the smallest number that was needed within the last `out_after` seconds, and falls to the largest
        one of the last `in_after` seconds. Before a window has passed once, the number does not change in its
        direction.
        """
        rule = self.rule
        self._needed.append((now, rule.needed(load)))
        longest = max(rule.out_after, rule.in_after)
        while len(self._needed) > 1 and self._needed[1][0] <= now - longest:  # the look at the window's begin is kept
            self._needed.popleft()
        rise, fall = self._within(rule.out_after, now), self._within(rule.in_after, now)
        if rise is not None and min(rise) > self.wanted:
            self.wanted = min(rise)
        elif fall is not None and max(fall) < self.wanted:
            self.wanted = max(fall)
        return self.wanted

    def _within(self, seconds: float, now: float) -> list[int] | None:
        """Return what was needed at the looks of the last `seconds`; None if the first look is younger."""
        begin = now - seconds
        if self._needed[0][0] > begin:
            return None
        before = [at for at, _ in self._needed if at <= begin]
        return [needed for at, needed in self._needed if at >= before[-1]]


class Pool(Protocol):
    """A pool of workers whose number can change."""

    @property
    def size(self) -> int:
        """Number of workers that claim rollouts."""
        ...

    async def resize(self, size: int) -> None:
        """Start or drain workers. Returns when the new ones are ready; raises LeydenError if one cannot start.

        The pool may reach the size only later, in another call.
        """
        ...


async def follow(pool: Pool, wanted: Callable[[int], Awaitable[int]]) -> None:
    """Keep the size of `pool` at `wanted(size)`, until cancelled.

    A worker that cannot be started is logged, and tried again after `RETRY_SECONDS`: those that run go on.
    """
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        size = pool.size
        target = await wanted(size)
        if target == size:
            continue
        try:
            await pool.resize(target)
        except LeydenError as error:
            logger.warning("the number of workers stays %d instead of %d: %s", pool.size, target, error)
            await asyncio.sleep(RETRY_SECONDS)
        if pool.size != size:
            logger.warning("the number of workers has changed from %d to %d", size, pool.size)


def share(wanted: int, present: int, own: int) -> int:
    """Return the share of `wanted` workers of a pool that has `own` of the `present` ones, rounded up.

    Several pools that each take their share have `wanted` workers together, but for rounding.
    """
    return math.ceil(wanted * own / max(present, own, 1))

"""`LoadBalancer`: chooses which replica of a model gets a call, by what each has in flight.

A rollout stays on its replica, whose prefix cache holds its prompts. A new rollout gets the replica that a hash of its
id ranks first, so that several processes choose the same one. If that replica has clearly more in flight than the
average, the rollout gets the one with the least (consistent hashing with bounded loads, Mirrokni et al. 2018). A
replica that failed is left until a probe of it succeeds.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection
from hashlib import blake2b

logger = logging.getLogger(__name__)

Probe = Callable[[str], Awaitable[bool]]
"""Function that returns whether the replica of that name answers; it must return within seconds, and not raise."""

REMEMBERED = 65536
"""Maximum number of rollouts whose replica is remembered; the least recently used are forgotten."""
BOUND = 1.25
"""A new rollout gets the replica that its hash ranks first, up to this multiple of the average load."""
FIRST_PROBE, LONGEST_PROBE = 0.5, 30.0
"""Seconds before the first probe of a replica that failed; the wait doubles up to the longest."""


class Load:
    """What one call has in flight on a replica, until the end of its `with` block."""

    __slots__ = ("_loads", "_name", "_size")

    def __init__(self, loads: Counter[str], name: str, size: int) -> None:
        self._loads, self._name, self._size = loads, name, 0
        self.add(size)

    def add(self, size: int) -> None:
        """Count more, such as the tokens that were just generated."""
        self._size += size
        self._loads[self._name] += size

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: object) -> None:
        self.add(-self._size)


class LoadBalancer:
    """Balancer of the replicas that were added, by name. It belongs to one event loop.

    Without a `probe`, `leave` must not be called.
    """

    def __init__(self, names: Collection[str] = (), *, probe: Probe | None = None) -> None:
        self._probe = probe
        self._names = dict.fromkeys(names)
        self._loads: Counter[str] = Counter()
        self._replica_of: OrderedDict[str, str] = OrderedDict()
        self._left: dict[str, asyncio.Task[None]] = {}

    @property
    def loads(self) -> dict[str, int]:
        """What each replica has in flight, by name."""
        return {name: self._loads[name] for name in self._names}

    @property
    def left(self) -> frozenset[str]:
        """Names of the replicas that failed and were not restored."""
        return frozenset(self._left)

    def add(self, name: str) -> None:
        """Add a replica."""
        self._names[name] = None

    def remove(self, name: str) -> None:
        """Remove a replica; its rollouts get other ones."""
        self._names.pop(name, None)
        self.restore(name)

    def choose(self, rollout_id: str | None, tried: Collection[str] = ()) -> str | None:
        """Return the replica for a call of a rollout: one that was not tried, or None if all were.

        Replicas that were left are chosen only if no other one remains.
        """
        untried = [name for name in self._names if name not in tried]
        usable = [name for name in untried if name not in self._left] or untried
        if not usable:
            return None
        if rollout_id is None:
            return min(usable, key=self._loads.__getitem__)
        name = self._replica_of.get(rollout_id)
        if name not in usable:
            name = self._replica_of[rollout_id] = self._first_choice(rollout_id, usable)
        self._replica_of.move_to_end(rollout_id)
        if len(self._replica_of) > REMEMBERED:
            self._replica_of.popitem(last=False)
        return name

    def carry(self, name: str, size: int) -> Load:
        """Return the load of a call on a replica, to be used as a context manager."""
        return Load(self._loads, name, size)

    def leave(self, name: str, reason: str) -> None:
        """Send no further calls to a replica that failed, until a probe succeeds; a single replica is never left."""
        if self._probe is None or len(self._names) < 2 or name not in self._names or name in self._left:
            return
        logger.warning("The replica %s is left until it answers again: %s", name, reason)
        self._left[name] = asyncio.create_task(self._probe_until_restored(name, self._probe), name="leyden probe")

    def restore(self, name: str) -> None:
        """Send calls to a replica again."""
        task = self._left.pop(name, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def close(self) -> None:
        """End all probes."""
        tasks, self._left = [*self._left.values()], {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _first_choice(self, rollout_id: str, usable: list[str]) -> str:
        ranked = max(usable, key=lambda name: _rank(rollout_id, name))
        average = sum(self._loads[name] for name in usable) / len(usable)
        return ranked if self._loads[ranked] <= BOUND * average else min(usable, key=self._loads.__getitem__)

    async def _probe_until_restored(self, name: str, probe: Probe) -> None:
        delay = FIRST_PROBE
        while True:
            await asyncio.sleep(delay)
            if await probe(name):
                break
            delay = min(2 * delay, LONGEST_PROBE)
        self.restore(name)
        logger.warning("The replica %s answers again", name)


def _rank(rollout_id: str, name: str) -> bytes:
    """Return the rank of a replica for a rollout, the same in every process (rendezvous hashing)."""
    return blake2b(f"{rollout_id}\n{name}".encode(), digest_size=8).digest()

"""`TransactionSnapshot`: the data that a transaction has read from Redis and written so far.

Reads are kept, and writes are collected until `changes` makes one commit of them. Redis makes the commit only if
nothing that was read has changed. A transaction may therefore use cached data of an earlier one without a query. Where
these were outdated, the commit is refused, and the work is repeated with fresh data.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from leyden.core.store.common.rows import AttemptKey, AttemptRow, ResourcesRow, Rows, SpanRow
from leyden.core.store.redis.cache import CachedResources, CachedWorker, RedisCache
from leyden.core.store.redis.codec import (
    ABSENT,
    BETWEEN,
    RolloutAtRest,
    read_resources,
    read_rollout,
    read_worker,
)
from leyden.core.store.redis.scripts import Command, RedisKeys, StaleData
from leyden.core.store.state_and_retry_rules import OPEN_ATTEMPT

_NEWEST = 64
"""Number of a worker's newest open attempts that are read and cached; nearly always all of them."""


class RedisSource(Protocol):
    """A source of data in Redis."""

    def query(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers to commands, all from one moment."""
        ...

    def hold(self, queue: str, limit: int) -> list[Any]:
        """Return the ids and hashes of the first rollouts of a queue, which are now reserved for this store."""
        ...


class TransactionSnapshot(Rows):
    """The state of a transaction.

    With `uses_cache`, cached data are used without a query, and spans are assumed to be new; the commit checks both.
    Without `checks_health`, nothing counts as overdue here; the source or the commit checks that.
    """

    def __init__(
        self,
        now: float,
        keys: RedisKeys,
        source: RedisSource,
        cache: RedisCache,
        version: str,
        *,
        uses_cache: bool,
        checks_health: bool,
    ) -> None:
        super().__init__(now)
        self.keys, self._source, self._cache = keys, source, cache
        self.version = version
        """Id of the commit that will write the data."""
        self.uses_cache, self.checks_health = uses_cache, checks_health
        self.queries = 0
        """Number of queries, each of a moment of its own."""
        self.new_positions = 0
        """Number of positions that the commit will assign."""
        self.changed: set[str] = set()
        """Rollouts that were changed, or whose attempts were, in other fields than `_HEARTBEAT_FIELDS`."""
        self.seen: dict[str, RolloutAtRest | None] = {}
        self.written: dict[str, RolloutAtRest] = {}
        self.seen_workers: dict[str, CachedWorker] = {}
        self.written_workers: dict[str, CachedWorker] = {}
        self.seen_resources: CachedResources | None = None
        self.written_resources: CachedResources | None = None
        self.new_resources: list[tuple[ResourcesRow, int]] = []
        self.new_spans: dict[str, list[SpanRow]] = {}
        self.gone_spans: dict[str, int] = {}
        """Rollouts whose spans are removed, with the numbers of these spans."""
        self.queued: dict[str, int] = {}
        """Positions in the queue that the commit will assign."""
        self.dropped: dict[str, str] = {}
        """Rollouts that leave their queue, each with the name of the queue."""
        self.seen_runs: dict[str, str] = {}
        """Version of each run that was read."""
        self.record_changes: list[Sequence[bytes | str | int]] = []
        """Commands that write runs and their data."""

    def query(self, *commands: Command) -> list[Any]:
        """Send commands to Redis and return the answers."""
        if not commands:
            return []
        self.queries += 1
        return self._source.query(commands)

    def hold(self, queue: str, limit: int) -> list[str]:
        """Reserve the first rollouts of a queue, and return their ids."""
        self.queries += 1
        ids: list[str] = []
        for name, flat in self._source.hold(queue, limit):
            ids.append(name.decode())
            self.note(ids[-1], flat)
        return ids

    def new_position(self) -> int:
        """Reserve a position in the order of creation; the commit assigns it where none is given."""
        if self.given_positions is not None:
            return next(self.given_positions)
        self.new_positions += 1
        return -self.new_positions

    def note(self, rollout_id: str, flat: Sequence[bytes]) -> None:
        """Add the content of a rollout's hash to what was read."""
        self.seen.setdefault(rollout_id, read_rollout(rollout_id, flat))

    def at_rest(self, rollout_ids: Sequence[str]) -> dict[str, RolloutAtRest]:
        """Return the rollouts among these ids that exist, with this transaction's changes."""
        unseen = [name for name in dict.fromkeys(rollout_ids) if name not in self.written and name not in self.seen]
        if self.uses_cache:
            for name in unseen:
                if name in self._cache.rollouts:
                    self.seen[name] = self._cache.rollouts[name]
            unseen = [name for name in unseen if name not in self.seen]
        found = self.query(*(("HGETALL", self.keys.rollout + name) for name in unseen))
        for name, flat in zip(unseen, found, strict=True):
            self.note(name, flat)
        known = ((name, self.written.get(name) or self.seen[name]) for name in rollout_ids)
        return {name: rollout for name, rollout in known if rollout is not None}

    def known(self, rollout_id: str) -> RolloutAtRest:
        """Return a rollout that exists, with this transaction's changes."""
        return self.written.get(rollout_id) or self.seen.get(rollout_id) or self.at_rest([rollout_id])[rollout_id]

    def write(self, rollout: RolloutAtRest) -> None:
        """Add a changed rollout to what will be written."""
        self.written[rollout.row.rollout_id] = rollout

    def note_open(self, old: AttemptRow | None, new: AttemptRow, number: int) -> None:
        """Move a changed attempt between the workers' open attempts, or out of them."""
        before, after = _held_by(old), _held_by(new)
        if before == after:
            return
        key = (new.rollout_id, new.attempt_id)
        for worker_id in {before, after} - {None, ""}:
            cached_worker = self.cached_worker(str(worker_id))
            others = {name: position for name, position in cached_worker.open.items() if name != key}
            self.write_worker(
                str(worker_id), cached_worker, open={**others, key: number} if worker_id == after else others
            )

    def cached_worker(self, worker_id: str) -> CachedWorker:
        """Return a worker with its open attempts."""
        if worker_id in self.written_workers:
            return self.written_workers[worker_id]
        if self.uses_cache and worker_id in self._cache.workers:
            self.seen_workers.setdefault(worker_id, self._cache.workers[worker_id])
        if worker_id not in self.seen_workers:
            (version, number, packed), flat = self.query(
                ("HMGET", self.keys.worker + worker_id, "v", "n", "row"), self._open(worker_id, _NEWEST - 1)
            )
            self.seen_workers[worker_id] = CachedWorker(
                version=(version or b"").decode(),
                position=int(number or 0),
                row=None if packed is None else read_worker(packed),
                open=_read_open(flat),
                whole=len(flat) < 2 * _NEWEST,
            )
        return self.seen_workers[worker_id]

    def _open(self, worker_id: str, last: int) -> Command:
        return ("ZREVRANGE", self.keys.open + worker_id, "0", str(last), "WITHSCORES")

    def whole_worker(self, worker_id: str) -> CachedWorker:
        """Return a worker with all open attempts, for the case that all cached ones are closed."""
        cached_worker, closed = self.written_workers[worker_id], self.seen_workers[worker_id].open
        (flat,) = self.query(self._open(worker_id, -1))
        rest = {key: number for key, number in _read_open(flat).items() if key not in closed}
        self.write_worker(worker_id, cached_worker, open=rest, whole=True)
        return self.written_workers[worker_id]

    def write_worker(self, worker_id: str, cached_worker: CachedWorker, **changes: Any) -> None:
        """Change a worker or its open attempts."""
        self.written_workers[worker_id] = replace(cached_worker, version=self.version, **changes)

    def cached_resources(self, resources_id: str | None) -> CachedResources:
        """Return the resources' entry, with the current version of `resources_id`."""
        if self.seen_resources is None and self.uses_cache:
            self.seen_resources = self._cache.resources
        cached_resources = self.written_resources or self.seen_resources
        if cached_resources is not None and (resources_id is None or resources_id in cached_resources.current):
            return cached_resources
        (version, latest), current = self.query(
            ("HMGET", self.keys.resources, "v", "row"),
            ("HGET", self.keys.versions + (resources_id or ""), "current"),
        )
        new = CachedResources(
            version=ABSENT if version is None else version.decode(),
            latest=None if latest is None else read_resources(latest),
            current={} if cached_resources is None else cached_resources.current,
        )
        if resources_id is not None:
            row = None if current is None else read_resources(current)
            new = replace(new, current={**new.current, resources_id: row})
        if self.seen_resources is not None and self.seen_resources.version != new.version:
            raise StaleData
        self.seen_resources = new
        return new


def _held_by(row: AttemptRow | None) -> str | None:
    return row.worker_id if row is not None and row.status in OPEN_ATTEMPT else None


def _read_open(flat: Sequence[bytes]) -> dict[AttemptKey, int]:
    found: dict[AttemptKey, int] = {}
    for name, number in zip(flat[::2], flat[1::2], strict=True):
        rollout_id, _, attempt_id = name.decode().partition(BETWEEN)
        found[rollout_id, attempt_id] = int(number)
    return found

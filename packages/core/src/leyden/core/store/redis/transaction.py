"""`Picture`: what one transaction has read of Redis, and what it has written so far. Knows no connections.

What is read is remembered, and so is what is written until `redis_changes` makes one commit of all of it, which Redis
makes only if nothing that was read has changed. That is why a transaction may believe what an earlier one remembered:
it costs no question, and where it was wrong, the commit says so and the work is done again on what is asked.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from leyden.core.store.common.rows import AttemptKey, AttemptRow, ResourcesRow, Rows, SpanRow
from leyden.core.store.redis.cache import Bench, Memory, Shelf
from leyden.core.store.redis.codec import (
    ABSENT,
    BETWEEN,
    RolloutAtRest,
    read_resources,
    read_rollout,
    read_worker,
)
from leyden.core.store.redis.scripts import Command, Keys, Stale
from leyden.core.store.state_rules import OPEN_ATTEMPT

_NEWEST = 64
"""Open attempts of a worker that are read and remembered; nearly always all of them."""


class Source(Protocol):
    """What answers questions."""

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Answer commands of one moment."""
        ...

    def hold(self, limit: int) -> list[Any]:
        """Answer the ids and hashes of the first in the queue, which others now leave to this store for a moment."""
        ...


class Picture(Rows):
    """The state of a transaction.

    Where it `believes`, what `memory` holds is not asked, spans are taken for new, and only the commit finds out;
    where it does not `cure`, nothing is taken for overdue, and only the source or the commit finds out.
    """

    def __init__(
        self, now: float, keys: Keys, source: Source, memory: Memory, version: str, *, believes: bool, cures: bool
    ) -> None:
        super().__init__(now)
        self.keys, self._source, self._memory = keys, source, memory
        self.version = version
        """The commit that will have written it."""
        self.believes, self.cures = believes, cures
        self.asked = 0
        """Questions, each of a moment of its own."""
        self.fresh = 0
        """Places to be given out by the commit."""
        self.changed: set[str] = set()
        """Rollouts of which, or of whose attempts, more than the pulse was written."""
        self.seen: dict[str, RolloutAtRest | None] = {}
        self.written: dict[str, RolloutAtRest] = {}
        self.seen_benches: dict[str, Bench] = {}
        self.written_benches: dict[str, Bench] = {}
        self.seen_shelf: Shelf | None = None
        self.written_shelf: Shelf | None = None
        self.new_resources: list[tuple[ResourcesRow, int]] = []
        self.new_spans: dict[str, list[SpanRow]] = {}
        self.gone_spans: dict[str, int] = {}
        """Rollouts whose spans are removed, and how many those are."""
        self.queued: dict[str, int] = {}
        """Places in the queue to be given out."""
        self.dropped: set[str] = set()
        self.seen_runs: dict[str, str] = {}
        """The commits that wrote them last."""
        self.record_changes: list[Sequence[bytes | str | int]] = []
        """Commands that write runs and what belongs to them."""

    def ask(self, *commands: Command) -> list[Any]:
        """Ask Redis."""
        if not commands:
            return []
        self.asked += 1
        return self._source.ask(commands)

    def hold(self, limit: int) -> list[str]:
        """Hold the first in the queue, and return their ids."""
        self.asked += 1
        ids: list[str] = []
        for name, flat in self._source.hold(limit):
            ids.append(name.decode())
            self.note(ids[-1], flat)
        return ids

    def new_place(self) -> int:
        """Take a place in the order of creation, to be given out by the commit."""
        self.fresh += 1
        return -self.fresh

    def note(self, rollout_id: str, flat: Sequence[bytes]) -> None:
        """Take in what the hash of a rollout holds."""
        self.seen.setdefault(rollout_id, read_rollout(rollout_id, flat))

    def at_rest(self, rollout_ids: Sequence[str]) -> dict[str, RolloutAtRest]:
        """Return the rollouts among these ids that exist, as this transaction has made them."""
        unseen = [name for name in dict.fromkeys(rollout_ids) if name not in self.written and name not in self.seen]
        if self.believes:
            for name in unseen:
                if name in self._memory.rollouts:
                    self.seen[name] = self._memory.rollouts[name]
            unseen = [name for name in unseen if name not in self.seen]
        found = self.ask(*(("HGETALL", self.keys.rollout + name) for name in unseen))
        for name, flat in zip(unseen, found, strict=True):
            self.note(name, flat)
        known = ((name, self.written.get(name) or self.seen[name]) for name in rollout_ids)
        return {name: rollout for name, rollout in known if rollout is not None}

    def known(self, rollout_id: str) -> RolloutAtRest:
        """Return a rollout that exists."""
        return self.written.get(rollout_id) or self.seen.get(rollout_id) or self.at_rest([rollout_id])[rollout_id]

    def write(self, rollout: RolloutAtRest) -> None:
        """Take in a rollout that was changed."""
        self.written[rollout.row.rollout_id] = rollout

    def note_open(self, old: AttemptRow | None, new: AttemptRow, number: int) -> None:
        """Move an attempt that was changed from one worker's open attempts to another's, or out of them."""
        before, after = _held_by(old), _held_by(new)
        if before == after:
            return
        key = (new.rollout_id, new.attempt_id)
        for worker_id in {before, after} - {None, ""}:
            bench = self.bench(str(worker_id))
            others = {name: place for name, place in bench.open.items() if name != key}
            self.write_bench(str(worker_id), bench, open={**others, key: number} if worker_id == after else others)

    def bench(self, worker_id: str) -> Bench:
        """Return a worker with its open attempts."""
        if worker_id in self.written_benches:
            return self.written_benches[worker_id]
        if self.believes and worker_id in self._memory.benches:
            self.seen_benches.setdefault(worker_id, self._memory.benches[worker_id])
        if worker_id not in self.seen_benches:
            (version, number, packed), flat = self.ask(
                ("HMGET", self.keys.worker + worker_id, "v", "n", "row"), self._open(worker_id, _NEWEST - 1)
            )
            self.seen_benches[worker_id] = Bench(
                version=(version or b"").decode(),
                place=int(number or 0),
                row=None if packed is None else read_worker(packed),
                open=_read_open(flat),
                whole=len(flat) < 2 * _NEWEST,
            )
        return self.seen_benches[worker_id]

    def _open(self, worker_id: str, last: int) -> Command:
        return ("ZREVRANGE", self.keys.open + worker_id, "0", str(last), "WITHSCORES")

    def whole_bench(self, worker_id: str) -> Bench:
        """Return a worker with all open attempts, where those that were read are closed."""
        bench, closed = self.written_benches[worker_id], self.seen_benches[worker_id].open
        (flat,) = self.ask(self._open(worker_id, -1))
        rest = {key: number for key, number in _read_open(flat).items() if key not in closed}
        self.write_bench(worker_id, bench, open=rest, whole=True)
        return self.written_benches[worker_id]

    def write_bench(self, worker_id: str, bench: Bench, **changes: Any) -> None:
        """Change a worker or its open attempts."""
        self.written_benches[worker_id] = replace(bench, version=self.version, **changes)

    def shelf(self, resources_id: str | None) -> Shelf:
        """Return a shelf that knows of `resources_id`."""
        if self.seen_shelf is None and self.believes:
            self.seen_shelf = self._memory.shelf
        shelf = self.written_shelf or self.seen_shelf
        if shelf is not None and (resources_id is None or resources_id in shelf.current):
            return shelf
        (version, latest), current = self.ask(
            ("HMGET", self.keys.resources, "v", "row"),
            ("HGET", self.keys.versions + (resources_id or ""), "current"),
        )
        new = Shelf(
            version=ABSENT if version is None else version.decode(),
            latest=None if latest is None else read_resources(latest),
            current={} if shelf is None else shelf.current,
        )
        if resources_id is not None:
            row = None if current is None else read_resources(current)
            new = replace(new, current={**new.current, resources_id: row})
        if self.seen_shelf is not None and self.seen_shelf.version != new.version:
            raise Stale
        self.seen_shelf = new
        return new


def _held_by(row: AttemptRow | None) -> str | None:
    return row.worker_id if row is not None and row.status in OPEN_ATTEMPT else None


def _read_open(flat: Sequence[bytes]) -> dict[AttemptKey, int]:
    found: dict[AttemptKey, int] = {}
    for name, number in zip(flat[::2], flat[1::2], strict=True):
        rollout_id, _, attempt_id = name.decode().partition(BETWEEN)
        found[rollout_id, attempt_id] = int(number)
    return found

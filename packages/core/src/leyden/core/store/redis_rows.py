"""`RedisRows`: rows in Redis, within one transaction. Knows nothing of connections, threads or retries.

What is read is remembered, and so is what is written until `redis_changes` makes one commit of all of it, which Redis
makes only if nothing that was read has changed. That is why a transaction may believe what an earlier one remembered:
it costs no question, and where it was wrong, the commit says so and the work is done again on what is asked.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from leyden.core.store.query import Query, evaluate
from leyden.core.store.redis_layout import (
    ABSENT,
    BETWEEN,
    UNORDERED,
    RolloutAtRest,
    member,
    read_resources,
    read_rollout,
    read_span,
    read_worker,
)
from leyden.core.store.redis_memory import Bench, Memory, Shelf
from leyden.core.store.redis_scripts import Command, Keys, Stale
from leyden.core.store.redis_select import page_of_rollouts
from leyden.core.store.rows import (
    AttemptKey,
    AttemptRow,
    Changes,
    ResourcesRow,
    RolloutRow,
    Rows,
    SpanKey,
    SpanRow,
    SpanTarget,
    WorkerRow,
)
from leyden.core.store.rules import OPEN_ATTEMPT

_PULSE = frozenset({"last_heartbeat_time", "deadline"})
"""Fields that change with every span and say nothing of a state."""
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


class RedisRows(Rows):
    """Rows in Redis.

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
        self.believes, self._cures = believes, cures
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
        self.queued: dict[str, int] = {}
        """Places in the queue to be given out."""
        self.dropped: set[str] = set()

    def ask(self, *commands: Command) -> list[Any]:
        """Ask Redis."""
        if not commands:
            return []
        self.asked += 1
        return self._source.ask(commands)

    def _place(self) -> int:
        self.fresh += 1
        return -self.fresh

    def note(self, rollout_id: str, flat: Sequence[bytes]) -> None:
        """Take in what the hash of a rollout holds."""
        self.seen.setdefault(rollout_id, read_rollout(rollout_id, flat))

    def at_rest(self, rollout_ids: Sequence[str]) -> dict[str, RolloutAtRest]:
        """Return the rollouts among these ids that exist, as this transaction has made them."""
        unseen = list(dict.fromkeys(name for name in rollout_ids if name not in self.written and name not in self.seen))
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

    def _write(self, rollout: RolloutAtRest) -> None:
        self.written[rollout.row.rollout_id] = rollout

    def counts(self) -> dict[str, int]:
        """Sizes of sorted sets, and two counters."""
        keys = self.keys
        *sizes, counted = self.ask(
            *(("ZCARD", key) for key in (keys.rollouts, keys.shelf, keys.workers, keys.queue)),
            ("HMGET", keys.counts, "attempts", "spans"),
        )
        attempts, spans = (int(value or 0) for value in counted)
        return {
            "total_rollouts": sizes[0],
            "total_attempts": attempts,
            "total_spans": spans,
            "total_resources": sizes[1],
            "total_workers": sizes[2],
            "queue_length": sizes[3],
        }

    # --- Rollouts

    def rollouts(self, rollout_ids: Sequence[str]) -> dict[str, RolloutRow]:
        """A hash each."""
        return {name: rollout.row for name, rollout in self.at_rest(rollout_ids).items()}

    def select_rollouts(self, query: Query) -> tuple[list[RolloutRow], int]:
        """By the sorted sets where they give the page; nothing was written before."""
        return page_of_rollouts(self, query)

    def insert_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        """A hash each."""
        for row in rows:
            rollout = RolloutAtRest(version=self.version, place=self._place(), row=row, attempts={}, places={})
            self._write(rollout)

    def update_rollout(self, rollout_id: str, changes: Changes) -> None:
        """Replace."""
        if not _PULSE.issuperset(changes):
            self.changed.add(rollout_id)
        rollout = self.at_rest([rollout_id])[rollout_id]
        self._write(replace(rollout, version=self.version, row=replace(rollout.row, **changes)))

    def overdue(self) -> list[RolloutRow]:
        """By the sorted set."""
        if not self._cures:
            return []
        (due,) = self.ask(("ZRANGEBYSCORE", self.keys.deadlines, "-inf", repr(self.now)))
        found = self.at_rest([name.decode() for name in due]).values()
        return [rollout.row for rollout in sorted(found, key=lambda rollout: (rollout.row.deadline, rollout.place))]

    def next_deadline(self) -> float | None:
        """By the sorted set."""
        (first,) = self.ask(("ZRANGE", self.keys.deadlines, "0", "0", "WITHSCORES"))
        return float(first[1]) if first else None

    def push(self, rollout_ids: Sequence[str]) -> None:
        """Take places."""
        for name in rollout_ids:
            self.queued[name] = self._place()

    def drop(self, rollout_id: str) -> None:
        """Take out."""
        self.queued.pop(rollout_id, None)
        self.dropped.add(rollout_id)

    def head(self, limit: int) -> list[str]:
        """Hold the first ones; nothing was written before."""
        self.asked += 1
        ids: list[str] = []
        for name, flat in self._source.hold(limit):
            ids.append(name.decode())
            self.note(ids[-1], flat)
        return ids

    # --- Attempts

    def attempts(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, AttemptRow]:
        """In the hashes of their rollouts."""
        rollouts = self.at_rest([key[0] for key in keys])
        found = ((key, rollouts[key[0]].attempts.get(key[1])) for key in keys if key[0] in rollouts)
        return {key: row for key, row in found if row is not None}

    def latest_attempts(self, rows: Sequence[RolloutRow]) -> dict[str, AttemptRow]:
        """The last one of each."""
        rollouts = self.at_rest([row.rollout_id for row in rows])
        return {
            name: next(reversed(rollout.attempts.values())) for name, rollout in rollouts.items() if rollout.attempts
        }

    def select_attempts(self, query: Query) -> tuple[list[AttemptRow], int]:
        """Evaluate over one rollout's."""
        found = self.at_rest([query.within["rollout_id"]]).values()
        return evaluate((row for rollout in found for row in rollout.attempts.values()), query)

    def insert_attempt(self, row: AttemptRow) -> None:
        """Into the hash of its rollout."""
        rollout = self.at_rest([row.rollout_id])[row.rollout_id]
        number = self._place()
        self._write(
            replace(
                rollout,
                version=self.version,
                attempts={**rollout.attempts, row.attempt_id: row},
                places={**rollout.places, row.attempt_id: number},
            )
        )
        self._note_open(None, row, number)

    def update_attempt(self, key: AttemptKey, changes: Changes) -> None:
        """Replace."""
        if not _PULSE.issuperset(changes):
            self.changed.add(key[0])
        rollout = self.at_rest([key[0]])[key[0]]
        old = rollout.attempts[key[1]]
        new = replace(old, **changes)
        self._write(replace(rollout, version=self.version, attempts={**rollout.attempts, key[1]: new}))
        self._note_open(old, new, rollout.places[key[1]])

    def _note_open(self, old: AttemptRow | None, new: AttemptRow, number: int) -> None:
        before, after = _held_by(old), _held_by(new)
        if before == after:
            return
        key = (new.rollout_id, new.attempt_id)
        for worker_id in {before, after} - {None, ""}:
            bench = self._bench(str(worker_id))
            others = {name: place for name, place in bench.open.items() if name != key}
            self._write_bench(str(worker_id), bench, open={**others, key: number} if worker_id == after else others)

    def open_attempt_of(self, worker_id: str) -> AttemptRow | None:
        """By the sorted set."""
        bench = self._bench(worker_id)
        if not bench.open and not bench.whole:
            bench = self._whole_bench(worker_id)
        if not bench.open:
            return None
        key = max(bench.open, key=lambda name: _newness(bench.open[name]))
        return self.attempts([key])[key]

    def _bench(self, worker_id: str) -> Bench:
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

    def _whole_bench(self, worker_id: str) -> Bench:
        bench, closed = self.written_benches[worker_id], self.seen_benches[worker_id].open
        (flat,) = self.ask(self._open(worker_id, -1))
        rest = {key: number for key, number in _read_open(flat).items() if key not in closed}
        self._write_bench(worker_id, bench, open=rest, whole=True)
        return self.written_benches[worker_id]

    def _write_bench(self, worker_id: str, bench: Bench, **changes: Any) -> None:
        self.written_benches[worker_id] = replace(bench, version=self.version, **changes)

    # --- Spans

    def span_targets(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, SpanTarget]:
        """In the hashes of their rollouts."""
        rollouts = self.at_rest([key[0] for key in keys])
        targets: dict[AttemptKey, SpanTarget] = {}
        for key, attempt in self.attempts(keys).items():
            rollout = rollouts[key[0]]
            targets[key] = SpanTarget(
                attempt.sequence_id, attempt.status, rollout.row.attempts, rollout.row.status, rollout.counter
            )
        return targets

    def beat(self, keys: Sequence[AttemptKey]) -> None:
        """Replace each."""
        for key in keys:
            self.update_attempt(key, {"last_heartbeat_time": self.now})

    def span_counters(self, rollout_ids: Sequence[str]) -> dict[str, int]:
        """In the hashes."""
        return {name: rollout.counter for name, rollout in self.at_rest(rollout_ids).items()}

    def give_out(self, counters: Mapping[str, int]) -> None:
        """Into the hashes."""
        for name, rollout in self.at_rest(list(counters)).items():
            self._write(replace(rollout, version=self.version, counter=counters[name]))

    def stored_spans(self, keys: Sequence[SpanKey]) -> set[SpanKey]:
        """By a set for each rollout; while it believes, the commit asks instead."""
        if self.believes:
            return set()
        rollouts = self.at_rest([key[0] for key in keys])
        wanted: dict[str, list[SpanKey]] = {}
        for key in keys:
            wanted.setdefault(key[0], []).append(key)
        commands = [
            ("SMISMEMBER", self.keys.span_ids + name, *(member(rollouts[name], *key[1:]) for key in mine))
            for name, mine in wanted.items()
        ]
        found = zip(wanted.values(), self.ask(*commands), strict=True)
        return {key for mine, known in found for key, is_in in zip(mine, known, strict=True) if is_in}

    def insert_spans(self, rows: Sequence[SpanRow]) -> None:
        """To the end of the list of their rollout."""
        groups: dict[str, list[SpanRow]] = {}
        for row in rows:
            groups.setdefault(row.rollout_id, []).append(row)
        for name, rollout in self.at_rest(list(groups)).items():
            self.new_spans.setdefault(name, []).extend(groups[name])
            numbers = [row.sequence_id for row in groups[name]]
            in_order = rollout.tail != UNORDERED and [rollout.tail, *numbers] == sorted([rollout.tail, *numbers])
            self._write(
                replace(
                    rollout,
                    version=self.version,
                    counter=max(rollout.counter, *numbers),
                    tail=numbers[-1] if in_order else UNORDERED,
                )
            )

    def select_spans(self, query: Query) -> tuple[list[SpanRow], int]:
        """The list, or a part of it where spans came in the order of their numbers."""
        rollout_id = query.within["rollout_id"]
        key = self.keys.spans + rollout_id
        first, last = _part(query)
        (tail,), total, packed = self.ask(
            ("HMGET", self.keys.rollout + rollout_id, "tail"), ("LLEN", key), ("LRANGE", key, str(first), str(last))
        )
        if (first, last) == (0, -1):
            return evaluate([read_span(rollout_id, span) for span in packed], query)
        if tail is None or int(tail) != UNORDERED:
            return [read_span(rollout_id, span) for span in packed], total
        (packed,) = self.ask(("LRANGE", key, "0", "-1"))
        return evaluate([read_span(rollout_id, span) for span in packed], query)

    # --- Resources and workers

    def resources(self, resources_id: str | None, version: int | None = None) -> ResourcesRow | None:
        """A field of a hash."""
        if resources_id is not None and version is not None:
            (packed,) = self.ask(("HGET", self.keys.versions + resources_id, str(version)))
            return None if packed is None else read_resources(packed)
        shelf = self._shelf(resources_id)
        return shelf.latest if resources_id is None else shelf.current[resources_id]

    def _shelf(self, resources_id: str | None) -> Shelf:
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

    def insert_resources(self, row: ResourcesRow) -> None:
        """Into the hash of its id."""
        shelf = self._shelf(row.resources_id)
        self.new_resources.append((row, self._place()))
        current = {**shelf.current, row.resources_id: row}
        self.written_shelf = Shelf(version=self.version, latest=row, current=current)

    def select_resources(self, query: Query) -> tuple[list[ResourcesRow], int]:
        """Evaluate over the current versions."""
        keys = self.keys
        (found,) = self.ask(("EACH", "0", "-1", keys.versions, keys.shelf, "HGET", "current"))
        return evaluate([read_resources(packed) for _, packed in found], query)

    def worker(self, worker_id: str) -> WorkerRow | None:
        """A hash."""
        return self._bench(worker_id).row

    def put_worker(self, row: WorkerRow) -> None:
        """Replace."""
        bench = self._bench(row.worker_id)
        number = self._place() if bench.row is None else bench.place
        self._write_bench(row.worker_id, bench, row=row, place=number)

    def select_workers(self, query: Query) -> tuple[list[WorkerRow], int]:
        """Evaluate over all."""
        keys = self.keys
        (found,) = self.ask(("EACH", "0", "-1", keys.worker, keys.workers, "HGET", "row"))
        return evaluate([read_worker(packed) for _, packed in found], query)


def _held_by(row: AttemptRow | None) -> str | None:
    return row.worker_id if row is not None and row.status in OPEN_ATTEMPT else None


def _newness(place: int) -> tuple[bool, int]:
    return place < 0, abs(place)


def _read_open(flat: Sequence[bytes]) -> dict[AttemptKey, int]:
    found: dict[AttemptKey, int] = {}
    for name, number in zip(flat[::2], flat[1::2], strict=True):
        rollout_id, _, attempt_id = name.decode().partition(BETWEEN)
        found[rollout_id, attempt_id] = int(number)
    return found


def _part(query: Query) -> tuple[int, int]:
    """First and last place of the spans that the query wants, where they are stored in the order of their numbers."""
    in_order = query.sort_by == "sequence_id" and query.order == "asc"
    if query.conditions or len(query.within) > 1 or not in_order or query.limit <= 0:
        return 0, -1
    return query.offset, query.offset + query.limit - 1

"""`RedisRows`: the rows of a store in Redis, within one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from leyden.core.data.rollout import QUEUED, ROLLOUT_MOVES
from leyden.core.store.common.rows import (
    KEPT_SECONDS,
    AttemptKey,
    AttemptRow,
    Changes,
    ResourcesRow,
    RolloutRow,
    SpanKey,
    SpanRow,
    SpanTarget,
    WorkerRow,
)
from leyden.core.store.common.run_record_rows import RecordRow
from leyden.core.store.health_check import latest_heartbeat
from leyden.core.store.query import Condition, Query, evaluate
from leyden.core.store.redis.cache import CachedResources
from leyden.core.store.redis.codec import (
    UNORDERED,
    RolloutAtRest,
    member,
    read_resources,
    read_span,
    read_worker,
    row_without_bodies,
)
from leyden.core.store.redis.run_records import RedisRunRecords
from leyden.core.store.redis.scripts import Command, StaleData, chunks
from leyden.core.store.redis.transaction import TransactionSnapshot

_HEARTBEAT_FIELDS = frozenset({"last_heartbeat_time", "deadline"})
"""Fields that change with every span and do not concern the status."""


class RedisRows(RedisRunRecords):
    """Rows in Redis: reads through `query`, and collects writes for one commit."""

    def counts(self) -> dict[str, int]:
        """Read the sizes of sorted sets, and two counters."""
        keys = self.keys
        *sizes, counted = self.query(
            *(("ZCARD", key) for key in (keys.rollouts, keys.resources_ids, keys.workers)),
            *(("ZCARD", keys.status(status)) for status in QUEUED),
            ("HMGET", keys.counts, "attempts", "spans"),
        )
        attempts, spans = (int(value or 0) for value in counted)
        return {
            "total_rollouts": sizes[0],
            "total_attempts": attempts,
            "total_spans": spans,
            "total_resources": sizes[1],
            "total_workers": sizes[2],
            "queue_length": sum(sizes[3:]),
        }

    def positions(self, rows: Sequence[RolloutRow | AttemptRow | ResourcesRow | WorkerRow | RecordRow]) -> list[int]:
        """Read the positions in hashes and sorted sets."""
        if not rows:
            return []
        if isinstance(rows[0], RolloutRow):
            rollouts = self.at_rest([row.rollout_id for row in rows if isinstance(row, RolloutRow)])
            return [rollouts[row.rollout_id].position for row in rows if isinstance(row, RolloutRow)]
        if isinstance(rows[0], AttemptRow):
            keys = [(row.rollout_id, row.attempt_id) for row in rows if isinstance(row, AttemptRow)]
            rollouts = self.at_rest([rollout_id for rollout_id, _ in keys])
            return [rollouts[rollout_id].positions[attempt_id] for rollout_id, attempt_id in keys]
        if isinstance(rows[0], WorkerRow):
            return self.scores(self.keys.workers, [row.worker_id for row in rows if isinstance(row, WorkerRow)])
        if isinstance(rows[0], ResourcesRow):
            ids = [row.resources_id for row in rows if isinstance(row, ResourcesRow)]
            return self.scores(self.keys.resources_ids, ids)
        kept = [row for row in rows if isinstance(row, RecordRow)]
        return self.positions_of(kept)

    def queue_head(self, queue: str, limit: int) -> list[tuple[int, str]]:
        """Read the first members of the queue with their scores."""
        (flat,) = self.query(("ZRANGE", self.keys.queue(queue), "0", str(limit - 1), "WITHSCORES"))
        return [(int(float(score)), name.decode()) for name, score in zip(flat[::2], flat[1::2], strict=True)]

    # --- Rollouts

    def rollouts(self, rollout_ids: Sequence[str]) -> dict[str, RolloutRow]:
        """Read one hash for each rollout."""
        return {name: rollout.row for name, rollout in self.at_rest(rollout_ids).items()}

    def select_rollouts(self, query: Query) -> tuple[list[RolloutRow], int]:
        """Read the page, by the sorted sets where possible; only before any write."""
        return page_of_rollouts(self, query)

    def insert_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        """Add one hash for each rollout."""
        for row in rows:
            rollout = RolloutAtRest(
                version=self.version, position=self.new_position(), row=row, attempts={}, positions={}
            )
            self.write(rollout)

    def update_rollout(self, rollout_id: str, changes: Changes) -> None:
        """Replace the row."""
        if not _HEARTBEAT_FIELDS.issuperset(changes):
            self.changed.add(rollout_id)
        rollout = self.known(rollout_id)
        self.write(replace(rollout, version=self.version, row=replace(rollout.row, **changes)))

    def overdue(self) -> list[RolloutRow]:
        """Read the sorted set of deadlines, without rollouts that another process has handled in the meantime."""
        if not self.checks_health:
            return []
        (due,) = self.query(("ZRANGEBYSCORE", self.keys.deadlines, "-inf", repr(self.now)))
        found = self.at_rest([name.decode() for name in due]).values()
        still = [
            (rollout.row.deadline, rollout.position, rollout.row)
            for rollout in found
            if rollout.row.deadline is not None
        ]
        return [row for deadline, _, row in sorted(still, key=lambda each: each[:2]) if deadline <= self.now]

    def next_deadline(self) -> float | None:
        """Read the first entry of the sorted set of deadlines."""
        (first,) = self.query(("ZRANGE", self.keys.deadlines, "0", "0", "WITHSCORES"))
        return float(first[1]) if first else None

    def push(self, rows: Sequence[RolloutRow]) -> None:
        """Reserve positions in the queues; the rows are written by the same transaction."""
        for row in rows:
            self.queued[row.rollout_id] = self.new_position()

    def drop(self, row: RolloutRow) -> None:
        """Remove the rollout from its queue."""
        self.queued.pop(row.rollout_id, None)
        self.dropped[row.rollout_id] = row.queue

    def head(self, queue: str, limit: int) -> list[str]:
        """Reserve the first rollouts of the queue; only before any write."""
        return self.hold(queue, limit)

    # --- Attempts

    def attempts(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, AttemptRow]:
        """Read the hashes of their rollouts."""
        rollouts = self.at_rest([key[0] for key in keys])
        found = ((key, rollouts[key[0]].attempts.get(key[1])) for key in keys if key[0] in rollouts)
        return {key: row for key, row in found if row is not None}

    def latest_attempts(self, rows: Sequence[RolloutRow]) -> dict[str, AttemptRow]:
        """Return the last attempt of each rollout."""
        rollouts = self.at_rest([row.rollout_id for row in rows])
        return {
            name: next(reversed(rollout.attempts.values())) for name, rollout in rollouts.items() if rollout.attempts
        }

    def attempts_of(self, rollout_id: str) -> list[AttemptRow]:
        """Return the attempts in the order in which they were added."""
        return [row for rollout in self.at_rest([rollout_id]).values() for row in rollout.attempts.values()]

    def select_attempts(self, query: Query) -> tuple[list[AttemptRow], int]:
        """Evaluate the query over one rollout's attempts."""
        found = self.at_rest([query.within["rollout_id"]]).values()
        return evaluate((row for rollout in found for row in rollout.attempts.values()), query)

    def insert_attempt(self, row: AttemptRow) -> None:
        """Add the attempt to the hash of its rollout."""
        rollout = self.known(row.rollout_id)
        number = self.new_position()
        self.write(
            replace(
                rollout,
                version=self.version,
                attempts={**rollout.attempts, row.attempt_id: row},
                positions={**rollout.positions, row.attempt_id: number},
            )
        )
        self.note_open(None, row, number)

    def update_attempt(self, key: AttemptKey, changes: Changes) -> None:
        """Replace the attempt's row."""
        if not _HEARTBEAT_FIELDS.issuperset(changes):
            self.changed.add(key[0])
        rollout = self.known(key[0])
        old = rollout.attempts[key[1]]
        new = replace(old, **changes)
        self.write(replace(rollout, version=self.version, attempts={**rollout.attempts, key[1]: new}))
        self.note_open(old, new, rollout.positions[key[1]])

    def open_attempt_of(self, worker_id: str) -> AttemptRow | None:
        """Read the sorted set of the worker's open attempts."""
        cached_worker = self.cached_worker(worker_id)
        if not cached_worker.open and not cached_worker.whole:
            cached_worker = self.whole_worker(worker_id)
        if not cached_worker.open:
            return None
        key = max(cached_worker.open, key=lambda name: _newness(cached_worker.open[name]))
        return self.attempts([key])[key]

    # --- Spans

    def span_targets(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, SpanTarget]:
        """Read the hashes of the attempts' rollouts."""
        rollouts = self.at_rest([key[0] for key in keys])
        targets: dict[AttemptKey, SpanTarget] = {}
        for key in keys:
            rollout = rollouts.get(key[0])
            attempt = None if rollout is None else rollout.attempts.get(key[1])
            if rollout is not None and attempt is not None:
                targets[key] = SpanTarget(
                    attempt.sequence_id, attempt.status, rollout.row.attempts, rollout.row.status, rollout.counter
                )
        return targets

    def record_heartbeats(self, keys: Sequence[AttemptKey]) -> None:
        """Replace each attempt's heartbeat time."""
        for key in keys:
            before = self.known(key[0]).attempts[key[1]].last_heartbeat_time
            self.update_attempt(key, {"last_heartbeat_time": latest_heartbeat(before, self.now)})

    def span_counters(self, rollout_ids: Sequence[str]) -> dict[str, int]:
        """Read the counters in the hashes."""
        return {name: rollout.counter for name, rollout in self.at_rest(rollout_ids).items()}

    def record_numbers(self, counters: Mapping[str, int]) -> None:
        """Replace the counters in the hashes."""
        for name, rollout in self.at_rest(list(counters)).items():
            self.write(replace(rollout, version=self.version, counter=counters[name]))

    def stored_spans(self, keys: Sequence[SpanKey]) -> set[SpanKey]:
        """Read each rollout's set of span ids; with `uses_cache`, the commit checks instead."""
        if self.uses_cache:
            return set()
        rollouts = self.at_rest([key[0] for key in keys])
        wanted: dict[str, list[SpanKey]] = {}
        for key in keys:
            wanted.setdefault(key[0], []).append(key)
        parts = [(name, part) for name, keys_of_rollout in wanted.items() for part in chunks(keys_of_rollout)]
        commands = [
            ("SMISMEMBER", self.keys.span_ids + name, *(member(rollouts[name], *key[1:]) for key in part))
            for name, part in parts
        ]
        found = zip(parts, self.query(*commands), strict=True)
        return {key for (_, part), known in found for key, is_in in zip(part, known, strict=True) if is_in}

    def insert_spans(self, rows: Sequence[SpanRow]) -> None:
        """Append the spans to the list of their rollout."""
        groups: dict[str, list[SpanRow]] = {}
        for row in rows:
            groups.setdefault(row.rollout_id, []).append(row)
        for name in groups:
            rollout = self.known(name)
            self.new_spans.setdefault(name, []).extend(groups[name])
            numbers = [row.sequence_id for row in groups[name]]
            in_order = rollout.tail != UNORDERED and [rollout.tail, *numbers] == sorted([rollout.tail, *numbers])
            self.write(
                replace(
                    rollout,
                    version=self.version,
                    counter=max(rollout.counter, *numbers),
                    tail=numbers[-1] if in_order else UNORDERED,
                )
            )

    def delete_spans(self, rollout_id: str) -> int:
        """Delete the list of spans and the set of their ids."""
        (count,) = self.query(("LLEN", self.keys.spans + rollout_id))
        self.write(replace(self.at_rest([rollout_id])[rollout_id], version=self.version, tail=0))
        self.gone_spans[rollout_id] = count
        return count

    def select_spans(self, query: Query) -> tuple[list[SpanRow], int]:
        """Read the list, or only a part of it where spans were stored in the order of their numbers."""
        rollout_id = query.within["rollout_id"]
        key = self.keys.spans + rollout_id
        first, last = _part(query)
        (tail,), total, packed = self.query(
            ("HMGET", self.keys.rollout + rollout_id, "tail"), ("LLEN", key), ("LRANGE", key, str(first), str(last))
        )
        if (first, last) == (0, -1):
            return evaluate([read_span(rollout_id, span) for span in packed], query)
        if tail is None or int(tail) != UNORDERED:
            return [read_span(rollout_id, span) for span in packed], total
        (packed,) = self.query(("LRANGE", key, "0", "-1"))
        return evaluate([read_span(rollout_id, span) for span in packed], query)

    # --- Resources and workers

    def resources(self, resources_id: str | None, version: int | None = None) -> ResourcesRow | None:
        """Read a field of a hash."""
        if resources_id is not None and version is not None:
            (packed,) = self.query(("HGET", self.keys.versions + resources_id, str(version)))
            return None if packed is None else read_resources(packed)
        cached_resources = self.cached_resources(resources_id)
        return cached_resources.latest if resources_id is None else cached_resources.current[resources_id]

    def insert_resources(self, row: ResourcesRow) -> None:
        """Add the version to the hash of its id."""
        cached_resources = self.cached_resources(row.resources_id)
        latest, position = cached_resources.latest, self.new_position()
        if self.given_positions is None or latest is None or self._is_older(latest, position):
            latest = row  # a shard may get a copy of a version that is older than its latest
        self.new_resources.append((row, position))
        current = {**cached_resources.current, row.resources_id: row}
        self.written_resources = CachedResources(version=self.version, latest=latest, current=current)

    def _is_older(self, row: ResourcesRow, position: int) -> bool:
        return self.scores(self.keys.resources_ids, [row.resources_id])[0] <= position

    def select_resources(self, query: Query) -> tuple[list[ResourcesRow], int]:
        """Read all current versions, and evaluate the query."""
        keys = self.keys
        (found,) = self.query(("EACH", "0", "-1", keys.versions, keys.resources_ids, "", "HGET", "current"))
        return evaluate([read_resources(packed) for _, packed in found], query)

    def worker(self, worker_id: str) -> WorkerRow | None:
        """Read the worker's hash."""
        return self.cached_worker(worker_id).row

    def put_worker(self, row: WorkerRow) -> None:
        """Replace the worker's row."""
        cached_worker = self.cached_worker(row.worker_id)
        number = self.new_position() if cached_worker.row is None else cached_worker.position
        self.write_worker(row.worker_id, cached_worker, row=row, position=number)

    def select_workers(self, query: Query) -> tuple[list[WorkerRow], int]:
        """Read all workers, and evaluate the query."""
        keys = self.keys
        (found,) = self.query(("EACH", "0", "-1", keys.worker, keys.workers, "", "HGET", "row"))
        return evaluate([read_worker(packed) for _, packed in found], query)

    # --- Results of requests with an id

    def recorded_answer(self, request_id: str) -> bytes | None:
        """Read the result's key."""
        (found,) = self.query(("GET", self.keys.request + request_id))
        return found

    def record_answer(self, request_id: str, answer: bytes) -> None:
        """Set the result's key, with an expiry time."""
        key, seconds = self.keys.request + request_id, str(round(KEPT_SECONDS))
        self.record_changes.append(("SET", key, answer, "EX", seconds))


def _newness(position: int) -> tuple[bool, int]:
    return position < 0, abs(position)


def _part(query: Query) -> tuple[int, int]:
    """Return the first and last position of the spans in the page, if spans are stored in order of their numbers."""
    in_order = query.sort_by == "sequence_id" and query.order == "asc"
    if query.conditions or len(query.within) > 1 or not in_order or query.limit <= 0:
        return 0, -1
    return query.offset, query.offset + query.limit - 1


Page = tuple[list[RolloutRow], int]


@dataclass(frozen=True, slots=True)
class _Sets:
    """The sorted sets by position, whose members are the rollouts that a query may find."""

    names: Sequence[str]
    within: str = ""
    """A further sorted set, of which they must also be members; or nothing."""

    def each(self, first: int, last: int, prefix: str, *command: str) -> Command:
        """Return a query by `command` for each rollout from the `first` place to the `last` one."""
        return "EACH", str(first), str(last), prefix, " ".join(self.names), self.within, *command

    def sizes(self) -> list[Command]:
        """Return queries for the numbers of members."""
        return [("SIZE", name, self.within) if self.within else ("ZCARD", name) for name in self.names]


def page_of_rollouts(rows: TransactionSnapshot, query: Query) -> Page:
    """Return the page, and the number of rows before paging."""
    tests: Mapping[str, Condition] = {}
    if query.logic == "and" or len(query.conditions) == 1:
        tests = {test.field: test for test in query.conditions if test.test == "one of"}
    if "rollout_id" in tests:
        found = rows.at_rest(sorted(tests["rollout_id"].value))
        ordered = sorted(found.values(), key=lambda rollout: rollout.position)
        return evaluate([rollout.row for rollout in ordered], query, lambda row: found[row.rollout_id].position)
    queue = query.within.get("queue")
    of_all = rows.keys.rollouts if queue is None else rows.keys.rollouts_of(queue)
    sets = _Sets([of_all])
    if "status" in tests:
        statuses = [status for status in ROLLOUT_MOVES if status in tests["status"].value]
        sets = _Sets([*map(rows.keys.status, statuses)], "" if queue is None else of_all)
    if not sets.names:
        return [], 0
    is_indexed = query.after is None or not sets.within
    if query.sort_by is None and len(tests) == len(query.conditions) and is_indexed:
        return _in_order(rows, query, sets)
    return _evaluated(rows, query, sets)


def _in_order(rows: TransactionSnapshot, query: Query, sets: _Sets) -> Page:
    """Read only the page."""
    skipped = query.offset
    if query.after is not None:
        skipped += sum(rows.query(*(("ZCOUNT", name, "-inf", str(query.after.position)) for name in sets.names)))
    first, last = skipped, -1 if query.limit < 0 else skipped + query.limit - 1
    if query.limit == 0:
        return [], sum(rows.query(*sets.sizes()))
    found, *counted = rows.query(sets.each(first, last, rows.keys.rollout, "HGETALL"), *sets.sizes())
    ids = [name.decode() for name, _ in found]
    for name, (_, flat) in zip(ids, found, strict=True):
        rows.note(name, flat)
    at_rest = rows.at_rest(ids)
    return [at_rest[name].row for name in ids], sum(counted)


def _evaluated(rows: TransactionSnapshot, query: Query, sets: _Sets) -> Page:
    """Read the fields for filters and sorting of all rollouts, then read the page."""
    (found,) = rows.query(sets.each(0, -1, rows.keys.rollout, "HMGET", "v", "state", "n"))
    versions = {name.decode(): version.decode() for name, (version, _, _) in found}
    positions = {name.decode(): int(position) for name, (_, _, position) in found}
    states = [row_without_bodies(name.decode(), state) for name, (_, state, _) in found]
    page, total = evaluate(states, query, lambda row: positions[row.rollout_id])
    at_rest = rows.at_rest([row.rollout_id for row in page])
    for name, rollout in at_rest.items():
        if rollout.version != versions[name]:
            raise StaleData
    return [at_rest[row.rollout_id].row for row in page], total

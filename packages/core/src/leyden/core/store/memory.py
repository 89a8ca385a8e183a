"""`MemoryStore`: rows in dicts, under one lock. Keeps nothing when the process ends.

Spans may take so many bytes and no more: beyond the budget those of finished attempts go, whole attempts, the oldest
first, and `statistics` says how many.
"""

import heapq
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TypeVar

from msgspec.structs import replace

from leyden.core.data.rollout import FINISHED_ATTEMPT
from leyden.core.store.common.local import LocalStore
from leyden.core.store.common.rows import (
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
from leyden.core.store.memory_records import MemoryRecords
from leyden.core.store.query import Query, evaluate
from leyden.core.store.state_rules import OPEN_ATTEMPT, heard

logger = logging.getLogger(__name__)

T = TypeVar("T")

BUDGET_BYTES = 2 << 30
ROW_BYTES = 700
"""About what a span takes beside its body."""
_KEEP = 0.9
"""Of the budget, once it is exceeded: what is finished is looked through once for many spans."""


class MemoryStore(LocalStore):
    """A store for tests and for runs that need no record. Any thread and event loop may use it at once.

    `budget` is how many bytes spans may take. Those of attempts under way never go, so these alone may take more.
    """

    name = "memory"

    def __init__(self, clock: Callable[[], float] = time.time, budget: int = BUDGET_BYTES) -> None:
        super().__init__(clock)
        self._lock = threading.Lock()
        self._rows = MemoryRows()
        self._budget = budget
        self._look_at = budget
        """How many bytes there are when finished attempts are looked for again."""

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Neither durable nor shared between processes."""
        return {"durable": False, "multi_process": False, "otlp_traces": False}

    async def _transact(self, work: Callable[[Rows], T], *, write: bool) -> T:
        rows = self._rows
        with self._lock:
            rows.now, rows.rung = self._clock(), set()
            try:
                return work(rows)
            finally:
                self._bell.ring(rows.rung)
                if rows.span_bytes > self._look_at:
                    self._evict(rows)

    def _evict(self, rows: "MemoryRows") -> None:
        before = rows.evicted_attempts
        rows.evict(self._budget * _KEEP)
        self._look_at = max(self._budget, rows.span_bytes + self._budget // 10)
        if not before and rows.evicted_attempts:
            logger.warning("the store's budget of %d bytes is used up: spans of finished attempts go", self._budget)
        elif rows.evicted_attempts == before:
            logger.warning("the attempts under way take %d bytes, more than the store's budget", rows.span_bytes)

    async def _release(self) -> None:
        self._rows = MemoryRows()


class MemoryRows(MemoryRecords):
    """Rows in dicts, which keep the order of creation."""

    def __init__(self) -> None:
        super().__init__()
        self._rollouts: dict[str, RolloutRow] = {}
        self._attempts: dict[str, dict[str, AttemptRow]] = {}
        self._spans: dict[str, list[SpanRow]] = {}
        self._span_keys: set[SpanKey] = set()
        self._counters: dict[str, int] = {}
        self._resources: dict[str, list[ResourcesRow]] = {}
        self._latest_resources: ResourcesRow | None = None
        self._workers: dict[str, WorkerRow] = {}
        self._queue: dict[str, None] = {}
        self._open: dict[str, dict[AttemptKey, int]] = {}
        self._serials: dict[AttemptKey, int] = {}
        self._serial = count()
        self._places: dict[str, int] = {}
        """Rollouts in the order of creation, in which those with the same deadline are due."""
        self._deadlines: list[tuple[float, int, str]] = []
        self._sizes: dict[AttemptKey, int] = {}
        """Bytes of the spans of each attempt that has any, in the order of their first."""
        self.span_bytes = 0
        self.evicted_attempts = self.evicted_spans = 0

    def counts(self) -> dict[str, int]:
        """Sizes of the dicts."""
        return {
            "total_rollouts": len(self._rollouts),
            "total_attempts": len(self._serials),
            "total_spans": len(self._span_keys),
            "total_resources": len(self._resources),
            "total_workers": len(self._workers),
            "queue_length": len(self._queue),
            "span_bytes": self.span_bytes,
            "evicted_attempts": self.evicted_attempts,
            "evicted_spans": self.evicted_spans,
        }

    # --- Rollouts

    def rollouts(self, rollout_ids: Sequence[str]) -> dict[str, RolloutRow]:
        """Look up."""
        return {name: self._rollouts[name] for name in rollout_ids if name in self._rollouts}

    def select_rollouts(self, query: Query) -> tuple[list[RolloutRow], int]:
        """Evaluate over all."""
        return evaluate(self._rollouts.values(), query)

    def insert_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        """Append."""
        for row in rows:
            self._rollouts[row.rollout_id] = row
            self._places[row.rollout_id] = len(self._places)

    def update_rollout(self, rollout_id: str, changes: Changes) -> None:
        """Replace, and remember the deadline."""
        self._rollouts[rollout_id] = replace(self._rollouts[rollout_id], **changes)
        if changes.get("deadline") is not None:
            heapq.heappush(self._deadlines, (changes["deadline"], self._places[rollout_id], rollout_id))

    def overdue(self) -> list[RolloutRow]:
        """Take what is due off the heap; the caller moves its deadline."""
        due: dict[str, RolloutRow] = {}
        while (soonest := self.next_deadline()) is not None and soonest <= self.now:
            *_, rollout_id = heapq.heappop(self._deadlines)
            due[rollout_id] = self._rollouts[rollout_id]
        return list(due.values())

    def next_deadline(self) -> float | None:
        """Top of the heap, after deadlines that have moved are thrown away."""
        heap = self._deadlines
        while heap and self._rollouts[heap[0][2]].deadline != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def push(self, rollout_ids: Sequence[str]) -> None:
        """Append."""
        self._queue.update(dict.fromkeys(rollout_ids))

    def drop(self, rollout_id: str) -> None:
        """Remove."""
        self._queue.pop(rollout_id, None)

    def head(self, limit: int) -> list[str]:
        """The first ones."""
        return [name for name, _ in zip(self._queue, range(limit), strict=False)]

    # --- Attempts

    def attempts(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, AttemptRow]:
        """Look up."""
        found = ((key, self._attempts.get(key[0], {}).get(key[1])) for key in keys)
        return {key: row for key, row in found if row is not None}

    def latest_attempts(self, rows: Sequence[RolloutRow]) -> dict[str, AttemptRow]:
        """The last one of each."""
        names = (row.rollout_id for row in rows if row.rollout_id in self._attempts)
        return {name: next(reversed(self._attempts[name].values())) for name in names}

    def attempts_of(self, rollout_id: str) -> list[AttemptRow]:
        """As they were added."""
        return list(self._attempts.get(rollout_id, {}).values())

    def select_attempts(self, query: Query) -> tuple[list[AttemptRow], int]:
        """Evaluate over one rollout's."""
        return evaluate(self._attempts.get(query.within["rollout_id"], {}).values(), query)

    def insert_attempt(self, row: AttemptRow) -> None:
        """Append."""
        self._attempts.setdefault(row.rollout_id, {})[row.attempt_id] = row
        self._serials[(row.rollout_id, row.attempt_id)] = next(self._serial)
        self._note_open(row)

    def update_attempt(self, key: AttemptKey, changes: Changes) -> None:
        """Replace."""
        attempts = self._attempts[key[0]]
        old = attempts[key[1]]
        if old.worker_id is not None:
            self._open.get(old.worker_id, {}).pop(key, None)
        attempts[key[1]] = row = replace(old, **changes)
        self._note_open(row)

    def _note_open(self, row: AttemptRow) -> None:
        if row.worker_id is not None and row.status in OPEN_ATTEMPT:
            key = (row.rollout_id, row.attempt_id)
            self._open.setdefault(row.worker_id, {})[key] = self._serials[key]

    def open_attempt_of(self, worker_id: str) -> AttemptRow | None:
        """The newest of the worker's open ones."""
        keys = self._open.get(worker_id)
        if not keys:
            return None
        rollout_id, attempt_id = max(keys, key=keys.__getitem__)
        return self._attempts[rollout_id][attempt_id]

    # --- Spans

    def span_targets(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, SpanTarget]:
        """Look up."""
        targets: dict[AttemptKey, SpanTarget] = {}
        for key, attempt in self.attempts(keys).items():
            row = self._rollouts[key[0]]
            counter = self._counters.get(key[0], 0)
            targets[key] = SpanTarget(attempt.sequence_id, attempt.status, row.attempts, row.status, counter)
        return targets

    def beat(self, keys: Sequence[AttemptKey]) -> None:
        """Replace each."""
        for key in keys:
            before = self._attempts[key[0]][key[1]].last_heartbeat_time
            self.update_attempt(key, {"last_heartbeat_time": heard(before, self.now)})

    def span_counters(self, rollout_ids: Sequence[str]) -> dict[str, int]:
        """Look up."""
        return {name: self._counters.get(name, 0) for name in rollout_ids if name in self._rollouts}

    def give_out(self, counters: Mapping[str, int]) -> None:
        """Replace each."""
        self._counters.update(counters)

    def stored_spans(self, keys: Sequence[SpanKey]) -> set[SpanKey]:
        """Look up."""
        return self._span_keys.intersection(keys)

    def insert_spans(self, rows: Sequence[SpanRow]) -> None:
        """Append."""
        for row in rows:
            self._spans.setdefault(row.rollout_id, []).append(row)
            self._counters[row.rollout_id] = max(self._counters.get(row.rollout_id, 0), row.sequence_id)
            self._span_keys.add((row.rollout_id, row.attempt_id, row.span_id))
            key, size = (row.rollout_id, row.attempt_id), len(row.body) + ROW_BYTES
            self._sizes[key] = self._sizes.get(key, 0) + size
            self.span_bytes += size

    def evict(self, keep: float) -> None:
        """Let the spans of finished attempts go, oldest first, until there are `keep` bytes."""
        for key in list(self._sizes):
            if self.span_bytes <= keep:
                break
            if self._attempts[key[0]][key[1]].status in FINISHED_ATTEMPT:
                self.evicted_attempts += 1
                self.evicted_spans += self._forget_spans(key)

    def delete_spans(self, rollout_id: str) -> int:
        """Forget those of each attempt."""
        return sum(self._forget_spans((rollout_id, attempt_id)) for attempt_id in self._attempts.get(rollout_id, ()))

    def _forget_spans(self, key: AttemptKey) -> int:
        """Forget the spans of one attempt; returns how many there were."""
        spans = self._spans.get(key[0], [])
        self._spans[key[0]] = [row for row in spans if row.attempt_id != key[1]]
        self._span_keys.difference_update((*key, row.span_id) for row in spans if row.attempt_id == key[1])
        self.span_bytes -= self._sizes.pop(key, 0)
        return len(spans) - len(self._spans[key[0]])

    def select_spans(self, query: Query) -> tuple[list[SpanRow], int]:
        """Evaluate over one rollout's."""
        return evaluate(self._spans.get(query.within["rollout_id"], ()), query)

    # --- Resources and workers

    def resources(self, resources_id: str | None, version: int | None = None) -> ResourcesRow | None:
        """Look up."""
        if resources_id is None:
            return self._latest_resources
        versions = self._resources.get(resources_id, [])
        if version is not None:
            return next((row for row in versions if row.version == version), None)
        return versions[-1] if versions else None

    def select_resources(self, query: Query) -> tuple[list[ResourcesRow], int]:
        """Evaluate over the current versions."""
        return evaluate((versions[-1] for versions in self._resources.values()), query)

    def insert_resources(self, row: ResourcesRow) -> None:
        """Append, and move the id to the end."""
        self._resources[row.resources_id] = [*self._resources.pop(row.resources_id, []), row]
        self._latest_resources = row

    def worker(self, worker_id: str) -> WorkerRow | None:
        """Look up."""
        return self._workers.get(worker_id)

    def put_worker(self, row: WorkerRow) -> None:
        """Put."""
        self._workers[row.worker_id] = row

    def select_workers(self, query: Query) -> tuple[list[WorkerRow], int]:
        """Evaluate over all."""
        return evaluate(self._workers.values(), query)

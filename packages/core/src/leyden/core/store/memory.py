"""`MemoryStore`: a store that keeps its rows in dicts, under one lock, until the process ends.

The bytes of spans are limited by a budget. Above it, the spans of finished attempts are evicted, whole attempts at a
time, the oldest first. `statistics` counts them.
"""

import heapq
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from msgspec.structs import replace

from leyden.core.data.rollout import FINISHED_ATTEMPT
from leyden.core.store.common.local import LocalStore, after_health_check
from leyden.core.store.common.rows import (
    KEPT_SECONDS,
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
from leyden.core.store.common.run_record_rows import (
    BY_STEP,
    R,
    RecordKey,
    RecordRow,
    RunRow,
    StepRow,
    VersionRow,
)
from leyden.core.store.health_check import latest_heartbeat
from leyden.core.store.query import Query, evaluate
from leyden.core.store.state_and_retry_rules import OPEN_ATTEMPT

logger = logging.getLogger(__name__)

T = TypeVar("T")

BUDGET_BYTES = 2 << 30
ROW_BYTES = 700
"""Approximate bytes of a stored span beside its body."""
_KEEP = 0.9
"""Share of the budget that is kept by an eviction, so that one pass over finished attempts frees room for many spans.
"""


class MemoryStore(LocalStore):
    """A store for tests and for runs without a permanent record. Thread-safe, for any number of event loops.

    `budget` is the largest number of bytes of spans. Spans of unfinished attempts are never evicted, so they may exceed
    it.
    """

    name = "memory"

    def __init__(self, clock: Callable[[], float] = time.time, budget: int = BUDGET_BYTES) -> None:
        super().__init__(clock)
        self._lock = threading.Lock()
        self._rows = MemoryRows()
        self._budget = budget
        self._evict_above = budget
        """Number of span bytes above which finished attempts are evicted again."""

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Neither durable nor shared between processes."""
        return {"durable": False, "multi_process": False, "otlp_traces": False}

    async def _transact(self, work: Callable[[Rows], T], *, write: bool, small: bool) -> T:
        rows = self._rows
        with self._lock:
            rows.now, rows.topics = self._clock(), set()
            try:
                return after_health_check(rows, work)
            finally:
                self._notifier.notify(rows.topics)
                if rows.span_bytes > self._evict_above:
                    self._evict(rows)

    def _evict(self, rows: "MemoryRows") -> None:
        before = rows.evicted_attempts
        rows.evict(self._budget * _KEEP)
        self._evict_above = max(self._budget, rows.span_bytes + self._budget // 10)
        if not before and rows.evicted_attempts:
            logger.warning(
                "the store's budget of %d bytes is used up: spans of finished attempts are dropped", self._budget
            )
        elif rows.evicted_attempts == before:
            logger.warning("the running attempts take %d bytes, more than the store's budget", rows.span_bytes)

    async def _release(self) -> None:
        self._rows = MemoryRows()


class MemoryRows(Rows):
    """Rows in dicts, which keep the order of creation."""

    def __init__(self) -> None:
        super().__init__(now=0.0)
        self._rollouts: dict[str, RolloutRow] = {}
        self._attempts: dict[str, dict[str, AttemptRow]] = {}
        self._spans: dict[str, list[SpanRow]] = {}
        self._span_keys: set[SpanKey] = set()
        self._counters: dict[str, int] = {}
        self._resources: dict[str, list[ResourcesRow]] = {}
        self._latest_resources: ResourcesRow | None = None
        self._workers: dict[str, WorkerRow] = {}
        self._records: dict[type[RecordRow], dict[RecordKey, Any]] = {RunRow: {}, StepRow: {}, VersionRow: {}}
        self._answers: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._queues: dict[str, dict[str, None]] = {}
        """Waiting rollouts by the name of their queue, as keys in their order; an empty queue has no entry."""
        self._of_queue: dict[str, list[str]] = {}
        """All rollouts by the name of their queue, in the order of creation."""
        self._open: dict[str, dict[AttemptKey, int]] = {}
        self._serials: dict[AttemptKey, int] = {}
        self._serial = count()
        self._positions: dict[str, int] = {}
        """Position of each rollout in the order of creation; rollouts with equal deadlines are due in this order."""
        self._deadlines: list[tuple[float, int, str]] = []
        self._sizes: dict[AttemptKey, int] = {}
        """Span bytes of each attempt that has spans, in the order of its first span."""
        self.span_bytes = 0
        self.evicted_attempts = self.evicted_spans = 0

    def counts(self) -> dict[str, int]:
        """Return the sizes of the dicts."""
        return {
            "total_rollouts": len(self._rollouts),
            "total_attempts": len(self._serials),
            "total_spans": len(self._span_keys),
            "total_resources": len(self._resources),
            "total_workers": len(self._workers),
            "queue_length": sum(map(len, self._queues.values())),
            "span_bytes": self.span_bytes,
            "evicted_attempts": self.evicted_attempts,
            "evicted_spans": self.evicted_spans,
        }

    # --- Rollouts

    def rollouts(self, rollout_ids: Sequence[str]) -> dict[str, RolloutRow]:
        """Return the rows found."""
        return {name: self._rollouts[name] for name in rollout_ids if name in self._rollouts}

    def select_rollouts(self, query: Query) -> tuple[list[RolloutRow], int]:
        """Evaluate the query over all rollouts, or those of one queue."""
        queue = query.within.get("queue")
        if queue is None:
            return evaluate(self._rollouts.values(), query)
        return evaluate((self._rollouts[name] for name in self._of_queue.get(queue, ())), query)

    def insert_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        """Append the rows."""
        for row in rows:
            self._rollouts[row.rollout_id] = row
            self._of_queue.setdefault(row.queue, []).append(row.rollout_id)
            self._positions[row.rollout_id] = len(self._positions)

    def update_rollout(self, rollout_id: str, changes: Changes) -> None:
        """Replace the row, and record a new deadline."""
        self._rollouts[rollout_id] = replace(self._rollouts[rollout_id], **changes)
        if changes.get("deadline") is not None:
            heapq.heappush(self._deadlines, (changes["deadline"], self._positions[rollout_id], rollout_id))

    def overdue(self) -> list[RolloutRow]:
        """Pop the due rollouts off the heap; the caller must set their next deadline."""
        due: dict[str, RolloutRow] = {}
        while (soonest := self.next_deadline()) is not None and soonest <= self.now:
            *_, rollout_id = heapq.heappop(self._deadlines)
            due[rollout_id] = self._rollouts[rollout_id]
        return list(due.values())

    def next_deadline(self) -> float | None:
        """Return the top of the heap, after outdated deadlines are removed."""
        heap = self._deadlines
        while heap and self._rollouts[heap[0][2]].deadline != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def push(self, rows: Sequence[RolloutRow]) -> None:
        """Append the rollouts to their queues."""
        for row in rows:
            self._queues.setdefault(row.queue, {}).setdefault(row.rollout_id)

    def drop(self, row: RolloutRow) -> None:
        """Remove the rollout from its queue."""
        waiting = self._queues.get(row.queue, {})
        waiting.pop(row.rollout_id, None)
        if not waiting:
            self._queues.pop(row.queue, None)

    def head(self, queue: str, limit: int) -> list[str]:
        """Return the first rollouts of the queue."""
        return [name for name, _ in zip(self._queues.get(queue, ()), range(limit), strict=False)]

    # --- Attempts

    def attempts(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, AttemptRow]:
        """Return the rows found."""
        found = ((key, self._attempts.get(key[0], {}).get(key[1])) for key in keys)
        return {key: row for key, row in found if row is not None}

    def latest_attempts(self, rows: Sequence[RolloutRow]) -> dict[str, AttemptRow]:
        """Return the last attempt of each rollout."""
        names = (row.rollout_id for row in rows if row.rollout_id in self._attempts)
        return {name: next(reversed(self._attempts[name].values())) for name in names}

    def attempts_of(self, rollout_id: str) -> list[AttemptRow]:
        """Return the attempts in the order in which they were added."""
        return list(self._attempts.get(rollout_id, {}).values())

    def select_attempts(self, query: Query) -> tuple[list[AttemptRow], int]:
        """Evaluate the query over one rollout's attempts."""
        return evaluate(self._attempts.get(query.within["rollout_id"], {}).values(), query)

    def insert_attempt(self, row: AttemptRow) -> None:
        """Append the row."""
        self._attempts.setdefault(row.rollout_id, {})[row.attempt_id] = row
        self._serials[(row.rollout_id, row.attempt_id)] = next(self._serial)
        self._note_open(row)

    def update_attempt(self, key: AttemptKey, changes: Changes) -> None:
        """Replace the row."""
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
        """Return the newest of the worker's open attempts."""
        keys = self._open.get(worker_id)
        if not keys:
            return None
        rollout_id, attempt_id = max(keys, key=keys.__getitem__)
        return self._attempts[rollout_id][attempt_id]

    # --- Spans

    def span_targets(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, SpanTarget]:
        """Return the fields of each attempt that exists."""
        targets: dict[AttemptKey, SpanTarget] = {}
        for key, attempt in self.attempts(keys).items():
            row = self._rollouts[key[0]]
            counter = self._counters.get(key[0], 0)
            targets[key] = SpanTarget(attempt.sequence_id, attempt.status, row.attempts, row.status, counter)
        return targets

    def record_heartbeats(self, keys: Sequence[AttemptKey]) -> None:
        """Replace each attempt's row with the new heartbeat time."""
        for key in keys:
            before = self._attempts[key[0]][key[1]].last_heartbeat_time
            self.update_attempt(key, {"last_heartbeat_time": latest_heartbeat(before, self.now)})

    def span_counters(self, rollout_ids: Sequence[str]) -> dict[str, int]:
        """Return the counters of the rollouts that exist."""
        return {name: self._counters.get(name, 0) for name in rollout_ids if name in self._rollouts}

    def record_numbers(self, counters: Mapping[str, int]) -> None:
        """Replace the counters."""
        self._counters.update(counters)

    def stored_spans(self, keys: Sequence[SpanKey]) -> set[SpanKey]:
        """Return the keys that are stored."""
        return self._span_keys.intersection(keys)

    def insert_spans(self, rows: Sequence[SpanRow]) -> None:
        """Append the rows and count their bytes."""
        for row in rows:
            self._spans.setdefault(row.rollout_id, []).append(row)
            self._counters[row.rollout_id] = max(self._counters.get(row.rollout_id, 0), row.sequence_id)
            self._span_keys.add((row.rollout_id, row.attempt_id, row.span_id))
            key, size = (row.rollout_id, row.attempt_id), len(row.body) + ROW_BYTES
            self._sizes[key] = self._sizes.get(key, 0) + size
            self.span_bytes += size

    def evict(self, keep: float) -> None:
        """Remove the spans of finished attempts, oldest first, until at most `keep` bytes are left."""
        for key in list(self._sizes):
            if self.span_bytes <= keep:
                break
            if self._attempts[key[0]][key[1]].status in FINISHED_ATTEMPT:
                self.evicted_attempts += 1
                self.evicted_spans += self._forget_spans(key)

    def delete_spans(self, rollout_id: str) -> int:
        """Remove the spans of each attempt."""
        return sum(self._forget_spans((rollout_id, attempt_id)) for attempt_id in self._attempts.get(rollout_id, ()))

    def _forget_spans(self, key: AttemptKey) -> int:
        """Remove the spans of one attempt and return how many there were."""
        spans = self._spans.get(key[0], [])
        self._spans[key[0]] = [row for row in spans if row.attempt_id != key[1]]
        self._span_keys.difference_update((*key, row.span_id) for row in spans if row.attempt_id == key[1])
        self.span_bytes -= self._sizes.pop(key, 0)
        return len(spans) - len(self._spans[key[0]])

    def select_spans(self, query: Query) -> tuple[list[SpanRow], int]:
        """Evaluate the query over one rollout's spans."""
        return evaluate(self._spans.get(query.within["rollout_id"], ()), query)

    # --- Resources and workers

    def resources(self, resources_id: str | None, version: int | None = None) -> ResourcesRow | None:
        """Return the row found."""
        if resources_id is None:
            return self._latest_resources
        versions = self._resources.get(resources_id, [])
        if version is not None:
            return next((row for row in versions if row.version == version), None)
        return versions[-1] if versions else None

    def select_resources(self, query: Query) -> tuple[list[ResourcesRow], int]:
        """Evaluate the query over the current versions."""
        return evaluate((versions[-1] for versions in self._resources.values()), query)

    def insert_resources(self, row: ResourcesRow) -> None:
        """Append the version, and move its id to the end."""
        self._resources[row.resources_id] = [*self._resources.pop(row.resources_id, []), row]
        self._latest_resources = row

    def worker(self, worker_id: str) -> WorkerRow | None:
        """Return the row found."""
        return self._workers.get(worker_id)

    def put_worker(self, row: WorkerRow) -> None:
        """Store or replace the row."""
        self._workers[row.worker_id] = row

    def select_workers(self, query: Query) -> tuple[list[WorkerRow], int]:
        """Evaluate the query over all workers."""
        return evaluate(self._workers.values(), query)

    # --- Records of runs, and results of requests with an id

    def records(self, kind: type[R], keys: Sequence[RecordKey]) -> dict[RecordKey, R]:
        """Return the rows found."""
        stored = self._records[kind]
        return {key: stored[key] for key in keys if key in stored}

    def insert_records(self, rows: Sequence[RecordRow]) -> None:
        """Append the rows."""
        for row in rows:
            self._records[type(row)][row.key] = row

    def replace_records(self, rows: Sequence[RecordRow]) -> None:
        """Replace the rows."""
        self.insert_records(rows)

    def select_records(self, kind: type[R], query: Query) -> tuple[list[R], int]:
        """Evaluate the query over the rows of one run, or of all."""
        rows, run_id = self._records[kind].items(), query.within.get("run_id")
        return evaluate((row for key, row in rows if run_id in (None, key[0])), query)

    def forget_after(self, run_id: str, step: int) -> None:
        """Remove the rows of later steps."""
        for kind in BY_STEP:
            rows = self._records[kind].items()
            self._records[kind] = {key: row for key, row in rows if key[0] != run_id or key[-1] <= step}

    def recorded_answer(self, request_id: str) -> bytes | None:
        """Return the recorded result, or None."""
        return self._answers.get(request_id, (0.0, None))[1]

    def record_answer(self, request_id: str, answer: bytes) -> None:
        """Record the result, and remove those older than `KEPT_SECONDS`."""
        self._answers[request_id] = (self.now, answer)
        while next(iter(self._answers.values()))[0] < self.now - KEPT_SECONDS:
            self._answers.popitem(last=False)

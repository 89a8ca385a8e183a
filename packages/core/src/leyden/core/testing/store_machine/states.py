"""`States`: a reference implementation of the state rules for rollouts, attempts, workers and queues.

It is written from the requirements of `LightningStore` and shares no code with a store, so that the two can differ.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from leyden.core.data.rollout import (
    ATTEMPT_MOVES,
    FINISHED_ATTEMPT,
    FINISHED_ROLLOUT,
    QUEUED,
    ROLLOUT_MOVES,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
)
from leyden.core.data.span import Span
from leyden.core.data.worker import Worker, WorkerStatus
from leyden.core.errors import CallRefused, IllegalMove, NotFound

OPEN = ("preparing", "running")


@dataclass
class AttemptNow:
    """Current state of an attempt."""

    rollout_id: str
    sequence_id: int
    start_time: float
    begun: int
    """Its position among all attempts, in the order of their beginning."""
    worker_id: str | None
    status: AttemptStatus = "preparing"
    end_time: float | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def name(self) -> str:
        """Name in the place of its id, which the store chooses."""
        return name_of(self.rollout_id, self.sequence_id)

    def record(self) -> Attempt:
        """Return the attempt as a record."""
        return Attempt(
            rollout_id=self.rollout_id,
            attempt_id=self.name,
            sequence_id=self.sequence_id,
            start_time=self.start_time,
            end_time=self.end_time,
            status=self.status,
            worker_id=self.worker_id,
            last_heartbeat_time=self.last_heartbeat_time,
            metadata=self.metadata,
        )


@dataclass
class RolloutNow:
    """Current state of a rollout, with its attempts and spans."""

    rollout_id: str
    input: Any
    start_time: float
    mode: RolloutMode | None
    resources_id: str | None
    resources_version: int | None
    status: RolloutStatus
    config: RolloutConfig
    metadata: dict[str, Any]
    queue: str = ""
    end_time: float | None = None
    attempts: list[AttemptNow] = field(default_factory=list[AttemptNow])
    spans: list[Span] = field(default_factory=list[Span])
    counter: int = 0
    """Highest span number, reserved or stored."""
    ends: int = 0
    """Number of times that it has finished."""

    def record(self) -> Rollout:
        """Return the rollout as a record, with its latest attempt if there is one."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in Rollout.__struct_fields__}
        return AttemptedRollout(**fields, attempt=self.attempts[-1].record()) if self.attempts else Rollout(**fields)


def name_of(rollout_id: str, sequence_id: int) -> str:
    """Return the name in the place of an attempt's id."""
    return f"{rollout_id}#{sequence_id}"


class States:
    """Rollouts, attempts, workers and queues at one moment."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rollouts: dict[str, RolloutNow] = {}
        self.queues: dict[str, list[set[str]]] = {}
        """Queues that are not empty, by name, first in, first out.

        The members of one set were queued at the same time, so their order is not defined.
        """
        self.workers: dict[str, Worker] = {}
        self._begun = 0

    def copied(self) -> Self:
        """Return a copy that shares nothing with this object."""
        return pickle.loads(pickle.dumps(self))  # many times as fast as `copy.deepcopy`

    @property
    def queued(self) -> int:
        """Number of rollouts that wait to be claimed."""
        return sum(len(group) for queue in self.queues.values() for group in queue)

    # --- Time

    def late(self) -> list[tuple[RolloutNow, AttemptStatus]]:
        """Return rollouts whose latest attempt is overdue or silent too long, each with the attempt's new status."""
        found: list[tuple[RolloutNow, AttemptStatus]] = []
        for rollout in self.rollouts.values():
            if rollout.status in OPEN and rollout.attempts:
                verdict = self._verdict(rollout.attempts[-1], rollout.config)
                if verdict is not None:
                    found.append((rollout, verdict))
        return found

    def check_health(self, order: Sequence[int] | None = None) -> None:
        """Apply the health check at `now`; `order` is the order of the overdue rollouts."""
        late, before = self.late(), {name: len(queue) for name, queue in self.queues.items()}
        for position in order or range(len(late)):
            rollout, verdict = late[position]
            self.change_attempt(rollout, rollout.attempts[-1], {"status": verdict})
        for name, queue in self.queues.items():
            new = queue[before.get(name, 0) :]
            if new:
                queue[-len(new) :] = [set[str]().union(*new)]

    def _verdict(self, attempt: AttemptNow, config: RolloutConfig) -> AttemptStatus | None:
        is_open = attempt.status in OPEN
        timeout, silence = config.timeout_seconds, config.unresponsive_seconds
        may_time_out = is_open or attempt.status == "unresponsive"
        if timeout is not None and may_time_out and attempt.start_time + timeout <= self.now:
            return "timeout"
        last_heartbeat = attempt.start_time if attempt.last_heartbeat_time is None else attempt.last_heartbeat_time
        return "unresponsive" if silence is not None and is_open and last_heartbeat + silence <= self.now else None

    # --- Rollouts

    def found(self, rollout_id: str) -> RolloutNow:
        """Return the rollout; raises NotFound."""
        if rollout_id not in self.rollouts:
            raise NotFound
        return self.rollouts[rollout_id]

    def found_attempt(self, rollout_id: str, attempt_id: str) -> AttemptNow:
        """Return the attempt, where `latest` is a valid id; raises NotFound."""
        attempts = self.found(rollout_id).attempts
        for attempt in reversed(attempts):
            if attempt_id in (attempt.name, "latest"):
                return attempt
        raise NotFound

    def move_rollout(self, rollout: RolloutNow, status: RolloutStatus) -> None:
        """Change the status manually; raises IllegalMove where the table does not allow it."""
        if status not in ROLLOUT_MOVES:
            raise CallRefused(status)
        if status != rollout.status and status not in ROLLOUT_MOVES[rollout.status]:
            raise IllegalMove
        self._become(rollout, status)

    def _become(self, rollout: RolloutNow, status: RolloutStatus) -> None:
        before, rollout.status = rollout.status, status
        if status not in FINISHED_ROLLOUT:
            rollout.end_time = None
        elif before not in FINISHED_ROLLOUT:
            rollout.end_time = self.now
            rollout.ends += 1
            self._supersede(rollout.attempts[:-1])
        if before in QUEUED and status not in QUEUED:
            self._leave_queue(rollout)
        elif before not in QUEUED and status in QUEUED:
            self.join_queue(rollout)

    def join_queue(self, rollout: RolloutNow) -> None:
        """Put a rollout at the end of its queue."""
        self.queues.setdefault(rollout.queue, []).append({rollout.rollout_id})

    def _leave_queue(self, rollout: RolloutNow) -> None:
        groups = self.queues.pop(rollout.queue)
        if rest := [left for group in groups if (left := group - {rollout.rollout_id})]:
            self.queues[rollout.queue] = rest

    # --- Attempts

    def begin_attempt(self, rollout: RolloutNow, worker_id: str | None) -> None:
        """Begin a further attempt, which becomes the latest."""
        self._begun += 1
        self._supersede(rollout.attempts)
        attempt = AttemptNow(rollout.rollout_id, len(rollout.attempts) + 1, self.now, self._begun, worker_id)
        rollout.attempts.append(attempt)
        self._become(rollout, "preparing")

    def _supersede(self, attempts: Sequence[AttemptNow]) -> None:
        """Close attempts that another one has replaced."""
        for attempt in attempts:
            if attempt.status in OPEN:
                attempt.status = "unresponsive"
                if attempt.worker_id:
                    self.settle(attempt.worker_id, "unknown")

    def change_attempt(
        self, rollout: RolloutNow, attempt: AttemptNow, fields: dict[str, Any], *, by_span: bool = False
    ) -> None:
        """Change fields; the rollout follows its latest attempt, and the workers are updated."""
        status: AttemptStatus = fields.get("status", attempt.status)
        if status not in ATTEMPT_MOVES:
            raise CallRefused(status)
        if status != attempt.status and status not in ATTEMPT_MOVES[attempt.status]:
            raise IllegalMove
        before, holder = attempt.status, attempt.worker_id
        for name, value in fields.items():
            setattr(attempt, name, value)
        moved = status != before
        if moved and status in FINISHED_ATTEMPT:
            attempt.end_time = self.now
        if moved and not by_span and attempt is rollout.attempts[-1]:
            self._follow(rollout, attempt)
        if moved or attempt.worker_id != holder:
            for worker_id in {holder, attempt.worker_id} - {None, ""}:
                failed_us = attempt.worker_id == worker_id and status in ("timeout", "unresponsive")
                self.settle(str(worker_id), "unknown" if failed_us else "idle")

    def _follow(self, rollout: RolloutNow, latest: AttemptNow) -> None:
        status: RolloutStatus = "failed"
        if latest.status == "running" or latest.status == "succeeded":
            status = latest.status
        elif latest.status in rollout.config.retry_condition and latest.sequence_id < rollout.config.max_attempts:
            status = "requeuing"
        if status in ROLLOUT_MOVES[rollout.status]:
            self._become(rollout, status)

    def record_heartbeat(self, rollout: RolloutNow, attempt: AttemptNow) -> None:
        """Record a span as a heartbeat."""
        before = attempt.status
        fields: dict[str, Any] = {"last_heartbeat_time": max(attempt.last_heartbeat_time or self.now, self.now)}
        is_over = rollout.status in FINISHED_ROLLOUT and attempt is not rollout.attempts[-1]
        if before in ("preparing", "unresponsive") and not is_over:
            fields["status"] = "running"
        self.change_attempt(rollout, attempt, fields, by_span=True)
        revived = rollout.status == "requeuing" and before == "unresponsive"
        is_latest = attempt is rollout.attempts[-1]
        if is_latest and attempt.status == "running" and (rollout.status == "preparing" or revived):
            self._become(rollout, "running")

    # --- Workers

    def settle(self, worker_id: str, free: WorkerStatus, *, claimed: bool = False) -> None:
        """Derive a worker's status: busy with the open attempt that began last, otherwise `free`."""
        before = self.workers.get(worker_id, Worker(worker_id=worker_id))
        held = [
            attempt
            for rollout in self.rollouts.values()
            for attempt in rollout.attempts
            if attempt.worker_id == worker_id and attempt.status in OPEN
        ]
        current = max(held, key=lambda attempt: attempt.begun, default=None)
        name = None if current is None else current.name
        status: WorkerStatus = free if current is None else "busy"
        is_new = status != before.status or (status == "busy" and name != before.current_attempt_id)
        self.workers[worker_id] = Worker(
            worker_id=worker_id,
            status=status,
            heartbeat_stats=before.heartbeat_stats,
            last_heartbeat_time=before.last_heartbeat_time,
            last_dequeue_time=self.now if claimed else before.last_dequeue_time,
            last_busy_time=self.now if is_new and status == "busy" else before.last_busy_time,
            last_idle_time=self.now if is_new and status == "idle" else before.last_idle_time,
            current_rollout_id=None if current is None else current.rollout_id,
            current_attempt_id=name,
        )

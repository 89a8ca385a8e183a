"""`Rows`: the stored rows of a store, and the operations of one transaction on them.

A row has scalar fields and MessagePack bytes, the same in every backend. The store therefore never shares objects with
its callers. The state rules are in `state_and_retry_rules`.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from leyden.core.data.resources import NamedResources, ResourcesUpdate
from leyden.core.data.rollout import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
)
from leyden.core.data.worker import Worker, WorkerStatus
from leyden.core.errors import UsageError
from leyden.core.store.common.run_record_rows import RecordRow, RecordRows
from leyden.core.store.query import Query
from leyden.core.store.text import NO_CHARACTER

KEPT_SECONDS = 3600.0
"""Seconds for which the result of a request with an id is recorded; no caller repeats a request after that."""
Changes = dict[str, Any]
"""New values by field; only fields that change."""
AttemptKey = tuple[str, str]
"""Rollout id, attempt id."""
SpanKey = tuple[str, str, str]
"""Rollout id, attempt id, span id."""


class RolloutRow(msgspec.Struct, frozen=True, kw_only=True):
    """Stored form of a rollout."""

    rollout_id: str
    input: bytes
    start_time: float
    end_time: float | None = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    resources_version: int | None = None
    status: RolloutStatus
    config: bytes
    metadata: bytes
    attempts: int = 0
    """Number of attempts, which is the sequence id of the latest."""
    deadline: float | None = None
    """Unix time at which the health check must examine the rollout; it may be too early, but never too late."""
    queue: str = ""
    """Name of the queue in which the rollout waits; it never changes."""


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """Stored form of an attempt."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    start_time: float
    end_time: float | None = None
    status: AttemptStatus
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: bytes


class SpanTarget(msgspec.Struct, frozen=True):
    """Fields of an attempt and its rollout that are needed to store a span."""

    sequence_id: int
    status: AttemptStatus
    attempts: int
    """Number of attempts of the rollout; the fields below are the rollout's too."""
    rollout_status: RolloutStatus
    span_counter: int
    """Highest span number, as in `Rows.span_counters`."""


class SpanRow(msgspec.Struct, frozen=True, kw_only=True):
    """Stored form of a span: the fields for queries, and the rest as bytes."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    start_time: float
    end_time: float | None
    body: bytes


class ResourcesRow(msgspec.Struct, frozen=True, kw_only=True):
    """Stored form of one immutable version of resources."""

    resources_id: str
    version: int
    create_time: float
    update_time: float
    resources: bytes


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Stored form of a worker."""

    worker_id: str
    status: WorkerStatus = "unknown"
    heartbeat_stats: bytes
    last_heartbeat_time: float | None = None
    last_dequeue_time: float | None = None
    last_busy_time: float | None = None
    last_idle_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None


class Rows(RecordRows):
    """One transaction: atomic and isolated.

    `topics` collects the topics to notify after the commit.
    """

    def __init__(self, now: float) -> None:
        self.now = now
        """Unix time of the transaction."""
        self.topics: set[str] = set()
        self.given_positions: Iterator[int] | None = None
        """Positions of new rows, ascending, for a store that is a shard; None where the backend numbers them itself."""

    def positions(self, rows: Sequence[RolloutRow | AttemptRow | ResourcesRow | WorkerRow | RecordRow]) -> list[int]:
        """Return the position of each of these stored rows in the order of creation, by which shards are merged.

        All rows are of one kind. Resources are current versions. The rows were read in this transaction.
        """
        raise NotImplementedError

    def queue_head(self, queue: str, limit: int) -> list[tuple[int, str]]:
        """Return up to `limit` ids from the front of a queue, each after its position; nothing is claimed."""
        raise NotImplementedError

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Return the counts for `LightningStore.statistics`."""

    @abstractmethod
    def rollouts(self, rollout_ids: Sequence[str]) -> dict[str, RolloutRow]:
        """Return the rows of those ids that exist."""

    @abstractmethod
    def select_rollouts(self, query: Query) -> tuple[list[RolloutRow], int]:
        """Return a page of rows, and the number of rows before paging; the other `select_*` do the same.

        `query.within` may name the queue.
        """

    @abstractmethod
    def insert_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        """Store new rollouts."""

    @abstractmethod
    def update_rollout(self, rollout_id: str, changes: Changes) -> None:
        """Write only the changed fields; `update_attempt` does the same."""

    @abstractmethod
    def overdue(self) -> list[RolloutRow]:
        """Return rollouts whose deadline is not after `now`: by deadline, then in the order of creation."""

    @abstractmethod
    def next_deadline(self) -> float | None:
        """Return the earliest deadline, or None."""

    @abstractmethod
    def push(self, rows: Sequence[RolloutRow]) -> None:
        """Put rollouts at the ends of their queues."""

    @abstractmethod
    def drop(self, row: RolloutRow) -> None:
        """Remove a rollout from its queue, if it is queued."""

    @abstractmethod
    def head(self, queue: str, limit: int) -> list[str]:
        """Return up to `limit` ids from the front of a queue, the oldest first."""

    @abstractmethod
    def attempts(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, AttemptRow]:
        """Return the rows of those attempts that exist."""

    @abstractmethod
    def latest_attempts(self, rows: Sequence[RolloutRow]) -> dict[str, AttemptRow]:
        """Return the latest attempt of each rollout that has one, by rollout id."""

    @abstractmethod
    def attempts_of(self, rollout_id: str) -> list[AttemptRow]:
        """Return all attempts of a rollout, the first one first."""

    @abstractmethod
    def select_attempts(self, query: Query) -> tuple[list[AttemptRow], int]:
        """Return a page of attempts."""

    @abstractmethod
    def insert_attempt(self, row: AttemptRow) -> None:
        """Store a new attempt."""

    @abstractmethod
    def update_attempt(self, key: AttemptKey, changes: Changes) -> None:
        """Write the changed fields."""

    @abstractmethod
    def open_attempt_of(self, worker_id: str) -> AttemptRow | None:
        """Return the open (preparing or running) attempt that the worker started last, or None."""

    @abstractmethod
    def span_targets(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, SpanTarget]:
        """Return the `SpanTarget` of each attempt that exists."""

    @abstractmethod
    def record_heartbeats(self, keys: Sequence[AttemptKey]) -> None:
        """Record a heartbeat at `now` for these attempts; a later time from a user or another clock stays."""

    @abstractmethod
    def span_counters(self, rollout_ids: Sequence[str]) -> dict[str, int]:
        """Return the highest span number, reserved or stored, of each of these rollouts that exists."""

    @abstractmethod
    def record_numbers(self, counters: Mapping[str, int]) -> None:
        """Record the highest reserved span number of each rollout; stored spans need no record."""

    @abstractmethod
    def stored_spans(self, keys: Sequence[SpanKey]) -> set[SpanKey]:
        """Return those of `keys` that are stored already."""

    @abstractmethod
    def insert_spans(self, rows: Sequence[SpanRow]) -> None:
        """Store new spans."""

    @abstractmethod
    def delete_spans(self, rollout_id: str) -> int:
        """Remove a rollout's spans and return how many there were; the caller has recorded the highest number."""

    @abstractmethod
    def select_spans(self, query: Query) -> tuple[list[SpanRow], int]:
        """Return a page of spans; `query.within` names the rollout."""

    @abstractmethod
    def resources(self, resources_id: str | None, version: int | None = None) -> ResourcesRow | None:
        """Return a version, or the current one, of resources, or None; without an id, the resources stored last."""

    @abstractmethod
    def select_resources(self, query: Query) -> tuple[list[ResourcesRow], int]:
        """Return a page of current versions."""

    @abstractmethod
    def insert_resources(self, row: ResourcesRow) -> None:
        """Store a new version, which becomes the current one of its id and the latest of all."""

    @abstractmethod
    def recorded_answer(self, request_id: str) -> bytes | None:
        """Return the recorded result of a request, or None."""

    @abstractmethod
    def record_answer(self, request_id: str, answer: bytes) -> None:
        """Record the result of a new request; results older than `KEPT_SECONDS` may be removed."""

    @abstractmethod
    def worker(self, worker_id: str) -> WorkerRow | None:
        """Return one worker's row, or None."""

    @abstractmethod
    def put_worker(self, row: WorkerRow) -> None:
        """Store or replace a worker."""

    @abstractmethod
    def select_workers(self, query: Query) -> tuple[list[WorkerRow], int]:
        """Return a page of workers."""


def encode(value: object, what: str) -> bytes:
    """Return `value` as MessagePack; raises UsageError that names `what` for a value that cannot be stored."""
    try:
        return msgspec.msgpack.encode(value)
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} cannot be stored: {NO_CHARACTER}") from error
    except (TypeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{what} cannot be stored: {error}; use JSON values") from error


EMPTY = msgspec.msgpack.encode({})
_CONFIG = msgspec.msgpack.Decoder(RolloutConfig)
_RESOURCES = msgspec.msgpack.Decoder(NamedResources)
_ANY = msgspec.msgpack.Decoder()


def config_of(row: RolloutRow) -> RolloutConfig:
    """Return the rollout's configuration."""
    return _CONFIG.decode(row.config)


def to_rollout(row: RolloutRow, latest: AttemptRow | None) -> Rollout:
    """Return the rollout as a record for the caller, with its latest attempt if there is one."""
    if latest is not None:
        return to_attempted_rollout(row, latest)
    return Rollout(**_rollout_fields(row))


def to_attempted_rollout(row: RolloutRow, latest: AttemptRow) -> AttemptedRollout:
    """Return the rollout with its latest attempt as a record for the caller."""
    return AttemptedRollout(**_rollout_fields(row), attempt=to_attempt(latest))


def _rollout_fields(row: RolloutRow) -> dict[str, Any]:
    return {
        "rollout_id": row.rollout_id,
        "input": _ANY.decode(row.input),
        "start_time": row.start_time,
        "end_time": row.end_time,
        "mode": row.mode,
        "resources_id": row.resources_id,
        "resources_version": row.resources_version,
        "status": row.status,
        "config": config_of(row),
        "metadata": _ANY.decode(row.metadata),
        "queue": row.queue,
    }


def to_attempt(row: AttemptRow) -> Attempt:
    """Return the attempt as a record for the caller."""
    return Attempt(
        rollout_id=row.rollout_id,
        attempt_id=row.attempt_id,
        sequence_id=row.sequence_id,
        start_time=row.start_time,
        end_time=row.end_time,
        status=row.status,
        worker_id=row.worker_id,
        last_heartbeat_time=row.last_heartbeat_time,
        metadata=_ANY.decode(row.metadata),
    )


def to_resources(row: ResourcesRow) -> ResourcesUpdate:
    """Return the resources as a record for the caller."""
    return ResourcesUpdate(
        resources_id=row.resources_id,
        version=row.version,
        create_time=row.create_time,
        update_time=row.update_time,
        resources=_RESOURCES.decode(row.resources),
    )


def to_worker(row: WorkerRow) -> Worker:
    """Return the worker as a record for the caller."""
    return Worker(
        worker_id=row.worker_id,
        status=row.status,
        heartbeat_stats=_ANY.decode(row.heartbeat_stats),
        last_heartbeat_time=row.last_heartbeat_time,
        last_dequeue_time=row.last_dequeue_time,
        last_busy_time=row.last_busy_time,
        last_idle_time=row.last_idle_time,
        current_rollout_id=row.current_rollout_id,
        current_attempt_id=row.current_attempt_id,
    )

"""What rests in a store, and what one transaction may read and write.

A row is scalar fields and MessagePack bytes, the same in every backend, so that nothing a caller holds is ever shared
with the store. Knows nothing of the state rules.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
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
from leyden.core.store.common.record_rows import RecordRows
from leyden.core.store.query import Query
from leyden.core.store.text import NO_CHARACTER

KEPT_SECONDS = 3600.0
"""For how long it is known what a named request made; nobody sends one again after so long."""
Changes = dict[str, Any]
"""New values by field, only those that change."""
AttemptKey = tuple[str, str]
"""Rollout id, attempt id."""
SpanKey = tuple[str, str, str]
"""Rollout id, attempt id, span id."""


class RolloutRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout at rest."""

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
    """How many attempts there are, which is the sequence id of the latest."""
    deadline: float | None = None
    """When the health check must look; it may turn out to be too early, never too late."""


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at rest."""

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
    """What decides how an attempt takes a span in."""

    sequence_id: int
    status: AttemptStatus
    attempts: int
    """Of its rollout, as are the fields below."""
    rollout_status: RolloutStatus
    span_counter: int
    """As in `Rows.span_counters`."""


class SpanRow(msgspec.Struct, frozen=True, kw_only=True):
    """A span at rest: the fields that are queried on, and the rest as bytes."""

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
    """One immutable version of resources at rest."""

    resources_id: str
    version: int
    create_time: float
    update_time: float
    resources: bytes


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at rest."""

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
    """One transaction: all of it happens, or none; nobody sees half of it.

    `rung` collects what to tell waiting callers after the commit.
    """

    def __init__(self, now: float) -> None:
        self.now = now
        """Unix time of the transaction."""
        self.rung: set[str] = set()

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """What `LightningStore.statistics` answers."""

    @abstractmethod
    def rollouts(self, rollout_ids: Sequence[str]) -> dict[str, RolloutRow]:
        """The rollouts among these ids that exist."""

    @abstractmethod
    def select_rollouts(self, query: Query) -> tuple[list[RolloutRow], int]:
        """A page, and the number of rows before paging; so do the other `select_*`."""

    @abstractmethod
    def insert_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        """Store new rollouts."""

    @abstractmethod
    def update_rollout(self, rollout_id: str, changes: Changes) -> None:
        """Write the changed fields, and only those; so does `update_attempt`."""

    @abstractmethod
    def overdue(self) -> list[RolloutRow]:
        """Rollouts whose deadline is not after `now`: by deadline, then in the order of creation."""

    @abstractmethod
    def next_deadline(self) -> float | None:
        """The earliest deadline."""

    @abstractmethod
    def push(self, rollout_ids: Sequence[str]) -> None:
        """Put rollouts at the end of the queue."""

    @abstractmethod
    def drop(self, rollout_id: str) -> None:
        """Take a rollout out of the queue, if it is there."""

    @abstractmethod
    def head(self, limit: int) -> list[str]:
        """The ids that have been in the queue for longest."""

    @abstractmethod
    def attempts(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, AttemptRow]:
        """The attempts among these that exist."""

    @abstractmethod
    def latest_attempts(self, rows: Sequence[RolloutRow]) -> dict[str, AttemptRow]:
        """The latest attempt of each rollout that has one, by rollout id."""

    @abstractmethod
    def attempts_of(self, rollout_id: str) -> list[AttemptRow]:
        """All attempts of a rollout, the first one first."""

    @abstractmethod
    def select_attempts(self, query: Query) -> tuple[list[AttemptRow], int]:
        """A page of attempts."""

    @abstractmethod
    def insert_attempt(self, row: AttemptRow) -> None:
        """Store a new attempt."""

    @abstractmethod
    def update_attempt(self, key: AttemptKey, changes: Changes) -> None:
        """Write the changed fields."""

    @abstractmethod
    def open_attempt_of(self, worker_id: str) -> AttemptRow | None:
        """The preparing or running attempt that the worker started last."""

    @abstractmethod
    def span_targets(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, SpanTarget]:
        """What spans of these attempts have to know; those that do not exist are left out."""

    @abstractmethod
    def beat(self, keys: Sequence[AttemptKey]) -> None:
        """Note that these attempts are alive now; one heard of later, by another's clock or by hand, keeps that."""

    @abstractmethod
    def span_counters(self, rollout_ids: Sequence[str]) -> dict[str, int]:
        """The highest span number of each of these rollouts that exists, whether given out or stored."""

    @abstractmethod
    def give_out(self, counters: Mapping[str, int]) -> None:
        """Note the highest span number given out for each rollout; a stored span needs no note."""

    @abstractmethod
    def stored_spans(self, keys: Sequence[SpanKey]) -> set[SpanKey]:
        """Those of `keys` that are stored already."""

    @abstractmethod
    def insert_spans(self, rows: Sequence[SpanRow]) -> None:
        """Store new spans."""

    @abstractmethod
    def delete_spans(self, rollout_id: str) -> int:
        """Remove a rollout's spans; returns how many there were. The caller has noted the highest number."""

    @abstractmethod
    def select_spans(self, query: Query) -> tuple[list[SpanRow], int]:
        """A page of spans; `query.within` names the rollout."""

    @abstractmethod
    def resources(self, resources_id: str | None, version: int | None = None) -> ResourcesRow | None:
        """A version, or the current one, of resources; without an id those stored last."""

    @abstractmethod
    def select_resources(self, query: Query) -> tuple[list[ResourcesRow], int]:
        """A page of current versions."""

    @abstractmethod
    def insert_resources(self, row: ResourcesRow) -> None:
        """Store a new version, which becomes the current one of its id and the latest of all."""

    @abstractmethod
    def answered(self, request_id: str) -> bytes | None:
        """What was noted of a request, if it was made."""

    @abstractmethod
    def note_answer(self, request_id: str, answer: bytes) -> None:
        """Note what a request made that was not made before; notes older than `KEPT_SECONDS` may go."""

    @abstractmethod
    def worker(self, worker_id: str) -> WorkerRow | None:
        """One worker."""

    @abstractmethod
    def put_worker(self, row: WorkerRow) -> None:
        """Store or replace a worker."""

    @abstractmethod
    def select_workers(self, query: Query) -> tuple[list[WorkerRow], int]:
        """A page of workers."""


def encode(value: object, what: str) -> bytes:
    """Return `value` as MessagePack; raises UsageError naming `what` when it holds something that cannot be stored."""
    try:
        return msgspec.msgpack.encode(value)
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} cannot be stored: {NO_CHARACTER}") from error
    except (TypeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{what} cannot be stored: {error}; use what JSON can hold") from error


EMPTY = msgspec.msgpack.encode({})
_CONFIG = msgspec.msgpack.Decoder(RolloutConfig)
_RESOURCES = msgspec.msgpack.Decoder(NamedResources)
_ANY = msgspec.msgpack.Decoder()


def config_of(row: RolloutRow) -> RolloutConfig:
    """The rollout's configuration."""
    return _CONFIG.decode(row.config)


def rollout_noun(row: RolloutRow, latest: AttemptRow | None) -> Rollout:
    """The rollout as readers see it, with its latest attempt if there is one."""
    if latest is not None:
        return attempted_noun(row, latest)
    return Rollout(**_rollout_fields(row))


def attempted_noun(row: RolloutRow, latest: AttemptRow) -> AttemptedRollout:
    """The rollout with its latest attempt."""
    return AttemptedRollout(**_rollout_fields(row), attempt=attempt_noun(latest))


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
    }


def attempt_noun(row: AttemptRow) -> Attempt:
    """The attempt as readers see it."""
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


def resources_noun(row: ResourcesRow) -> ResourcesUpdate:
    """The resources as readers see them."""
    return ResourcesUpdate(
        resources_id=row.resources_id,
        version=row.version,
        create_time=row.create_time,
        update_time=row.update_time,
        resources=_RESOURCES.decode(row.resources),
    )


def worker_noun(row: WorkerRow) -> Worker:
    """The worker as readers see it."""
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

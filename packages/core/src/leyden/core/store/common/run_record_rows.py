"""Stored rows of the records of runs: the runs, the metrics of their steps, and the versions of their policies.

The operations of a transaction are the same for all three kinds. The rules for changing the rows are in `run_records`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec.structs import asdict

from leyden.core.data.run import PolicyVersion, Run, RunStatus, StepMetrics
from leyden.core.store.query import Query

RecordKey = tuple[Any, ...]
"""Values of the fields in `RecordRow.KEY`: texts, and a number at the end of the key of a step or a version."""


class RecordRow(msgspec.Struct, frozen=True, kw_only=True):
    """Stored form of a record: fields for queries, and the rest as MessagePack."""

    KEY: ClassVar[tuple[str, ...]]
    """Fields that identify a record among all of its kind."""

    run_id: str

    @property
    def key(self) -> RecordKey:
        """Values of the fields in `KEY`."""
        return tuple(getattr(self, name) for name in self.KEY)


class RunRow(RecordRow, frozen=True, kw_only=True):
    """Stored form of a run."""

    KEY = ("run_id",)

    name: str
    experiment: str | None
    status: RunStatus
    config: bytes
    metadata: bytes
    start_time: float
    end_time: float | None
    update_time: float


class StepRow(RecordRow, frozen=True, kw_only=True):
    """Stored form of the metrics of a step."""

    KEY = ("run_id", "step")

    step: int
    time: float
    body: bytes
    """Values and notes."""


class VersionRow(RecordRow, frozen=True, kw_only=True):
    """Stored form of a policy version."""

    KEY = ("run_id", "policy", "version")

    policy: str
    version: int
    parent: int | None
    path: str | None
    note: str | None
    metrics: bytes
    metadata: bytes
    create_time: float
    update_time: float


BY_STEP: Sequence[type[RecordRow]] = (StepRow, VersionRow)
"""Kinds whose keys end in the number of a step."""
R = TypeVar("R", bound=RecordRow)


class RecordRows(ABC):
    """The part of `Rows` that holds records of runs.

    A writer of any record of a run first reads the run's row, and finally writes that row.
    """

    @abstractmethod
    def records(self, kind: type[R], keys: Sequence[RecordKey]) -> dict[RecordKey, R]:
        """Return the rows of those keys that exist. Until the commit, no other writer changes the runs among them."""

    @abstractmethod
    def insert_records(self, rows: Sequence[RecordRow]) -> None:
        """Store new rows, all of one kind."""

    @abstractmethod
    def replace_records(self, rows: Sequence[RecordRow]) -> None:
        """Replace existing rows, all of one kind."""

    @abstractmethod
    def select_records(self, kind: type[R], query: Query) -> tuple[list[R], int]:
        """Return a page of rows, and the number of rows before paging. Steps are selected within a run, by number."""

    @abstractmethod
    def forget_after(self, run_id: str, step: int) -> None:
        """Remove the metrics and versions of a run after `step`."""


_ANY = msgspec.msgpack.Decoder()
_BODY = msgspec.msgpack.Decoder(tuple[dict[str, float], dict[str, str]])
_NUMBERS = msgspec.msgpack.Decoder(dict[str, float])


def body_of(row: StepRow) -> tuple[dict[str, float], dict[str, str]]:
    """Return the values and notes of a step."""
    return _BODY.decode(row.body)


def fields_of(record: msgspec.Struct, **other: Any) -> dict[str, Any]:
    """Return the fields of a record or a row by name, some of them with other values."""
    return {**asdict(record), **other}


def to_run(row: RunRow) -> Run:
    """Return the run as a record for the caller."""
    return Run(**fields_of(row, config=_ANY.decode(row.config), metadata=_ANY.decode(row.metadata)))


def to_metrics(row: StepRow) -> StepMetrics:
    """Return the step's metrics as a record for the caller."""
    values, notes = body_of(row)
    return StepMetrics(step=row.step, time=row.time, values=values, notes=notes)


def to_policy_version(row: VersionRow) -> PolicyVersion:
    """Return the version as a record for the caller."""
    metrics, metadata = _NUMBERS.decode(row.metrics), _ANY.decode(row.metadata)
    return PolicyVersion(**fields_of(row, metrics=metrics, metadata=metadata))

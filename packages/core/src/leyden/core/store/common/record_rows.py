"""Rows of runs, metrics and policy versions, and the operations of a transaction on them.

The rules for changing runs are in `records`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from leyden.core.data.run import PolicyVersion, Run, RunStatus, StepMetrics
from leyden.core.store.query import Query

VersionKey = tuple[str, str, int]
"""Run id, policy name, version number."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """Stored form of a run."""

    run_id: str
    name: str
    experiment: str | None
    status: RunStatus
    config: bytes
    metadata: bytes
    start_time: float
    end_time: float | None
    update_time: float


class MetricsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Stored form of the metrics of a step."""

    run_id: str
    step: int
    time: float
    body: bytes
    """Values and notes as MessagePack."""


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Stored form of a policy version."""

    run_id: str
    policy: str
    version: int
    parent: int | None
    path: str | None
    note: str | None
    metrics: bytes
    metadata: bytes
    create_time: float
    update_time: float


class RecordRows(ABC):
    """The part of `Rows` that holds runs.

    A writer of any data of a run first reads the run's row, and finally writes that row.
    """

    @abstractmethod
    def run(self, run_id: str) -> RunRow | None:
        """Return one run's row, or None; later writes of the transaction depend on this row only."""

    @abstractmethod
    def insert_run(self, row: RunRow) -> None:
        """Store a new run."""

    @abstractmethod
    def replace_run(self, row: RunRow) -> None:
        """Replace the row of an existing run."""

    @abstractmethod
    def select_runs(self, query: Query) -> tuple[list[RunRow], int]:
        """Return a page of rows, and the number of rows before paging; the other `select_*` do the same."""

    @abstractmethod
    def metrics(self, run_id: str, steps: Sequence[int]) -> dict[int, MetricsRow]:
        """Return the stored rows of these steps of a run; the result may contain other steps."""

    @abstractmethod
    def insert_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """Store new steps, all of one run."""

    @abstractmethod
    def replace_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """Replace the rows of existing steps, all of one run."""

    @abstractmethod
    def select_metrics(self, query: Query) -> tuple[list[MetricsRow], int]:
        """Return a page of steps; `query.within` names the run."""

    @abstractmethod
    def policy_version(self, key: VersionKey) -> VersionRow | None:
        """Return one version's row, or None."""

    @abstractmethod
    def insert_policy_version(self, row: VersionRow) -> None:
        """Store a new version."""

    @abstractmethod
    def replace_policy_version(self, row: VersionRow) -> None:
        """Replace the row of an existing version."""

    @abstractmethod
    def select_policy_versions(self, query: Query) -> tuple[list[VersionRow], int]:
        """Return a page of versions; `query.within` may name the run."""

    @abstractmethod
    def forget_after(self, run_id: str, step: int) -> None:
        """Remove the metrics and versions of a run after `step`."""


_ANY = msgspec.msgpack.Decoder()
_BODY = msgspec.msgpack.Decoder(tuple[dict[str, float], dict[str, str]])
_NUMBERS = msgspec.msgpack.Decoder(dict[str, float])


def body_of(row: MetricsRow) -> tuple[dict[str, float], dict[str, str]]:
    """Return the values and notes of a step."""
    return _BODY.decode(row.body)


def to_run(row: RunRow) -> Run:
    """Return the run as a record for the caller."""
    return Run(**_fields(row, _ANY, "config", "metadata"))


def to_metrics(row: MetricsRow) -> StepMetrics:
    """Return the step's metrics as a record for the caller."""
    values, notes = body_of(row)
    return StepMetrics(step=row.step, time=row.time, values=values, notes=notes)


def to_policy_version(row: VersionRow) -> PolicyVersion:
    """Return the version as a record for the caller."""
    fields = _fields(row, _ANY, "metadata")
    fields["metrics"] = _NUMBERS.decode(row.metrics)
    return PolicyVersion(**fields)


def _fields(row: msgspec.Struct, decoder: msgspec.msgpack.Decoder[Any], *packed: str) -> dict[str, Any]:
    fields = msgspec.structs.asdict(row)
    return {name: decoder.decode(value) if name in packed else value for name, value in fields.items()}

"""Runs, their metrics and their policies' versions at rest, and what a transaction may read and write of them.

Knows nothing of what may become of a run: `records` does.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from leyden.core.data.run import PolicyVersion, Run, RunStatus, StepMetrics
from leyden.core.store.query import Query

VersionKey = tuple[str, str, int]
"""Run id, name of the policy, number."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run at rest."""

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
    """What was measured at a step, at rest."""

    run_id: str
    step: int
    time: float
    body: bytes
    """Values and notes."""


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a policy at rest."""

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
    """The part of `Rows` that holds runs. Who writes anything of a run reads its row before, and writes it after."""

    @abstractmethod
    def run(self, run_id: str) -> RunRow | None:
        """One run; what is written in the same transaction is decided on it alone."""

    @abstractmethod
    def insert_run(self, row: RunRow) -> None:
        """Store a new run."""

    @abstractmethod
    def replace_run(self, row: RunRow) -> None:
        """Write a run that is there."""

    @abstractmethod
    def select_runs(self, query: Query) -> tuple[list[RunRow], int]:
        """A page, and the number of rows before paging; so do the other `select_*`."""

    @abstractmethod
    def metrics(self, run_id: str, steps: Sequence[int]) -> dict[int, MetricsRow]:
        """What is stored of these steps of a run, and perhaps of others."""

    @abstractmethod
    def insert_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """Store steps of which nothing is stored, all of one run."""

    @abstractmethod
    def replace_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """Write steps that are there, all of one run."""

    @abstractmethod
    def select_metrics(self, query: Query) -> tuple[list[MetricsRow], int]:
        """A page of steps; `query.within` names the run."""

    @abstractmethod
    def policy_version(self, key: VersionKey) -> VersionRow | None:
        """One version."""

    @abstractmethod
    def insert_policy_version(self, row: VersionRow) -> None:
        """Store a new version."""

    @abstractmethod
    def replace_policy_version(self, row: VersionRow) -> None:
        """Write a version that is there."""

    @abstractmethod
    def select_policy_versions(self, query: Query) -> tuple[list[VersionRow], int]:
        """A page of versions; `query.within` may name the run."""

    @abstractmethod
    def forget_after(self, run_id: str, step: int) -> None:
        """Remove the metrics and versions of a run after `step`."""


_ANY = msgspec.msgpack.Decoder()
_BODY = msgspec.msgpack.Decoder(tuple[dict[str, float], dict[str, str]])
_NUMBERS = msgspec.msgpack.Decoder(dict[str, float])


def body_of(row: MetricsRow) -> tuple[dict[str, float], dict[str, str]]:
    """Values and notes of a step."""
    return _BODY.decode(row.body)


def run_noun(row: RunRow) -> Run:
    """The run as readers see it."""
    return Run(**_fields(row, _ANY, "config", "metadata"))


def metrics_noun(row: MetricsRow) -> StepMetrics:
    """The step as readers see it."""
    values, notes = body_of(row)
    return StepMetrics(step=row.step, time=row.time, values=values, notes=notes)


def policy_version_noun(row: VersionRow) -> PolicyVersion:
    """The version as readers see it."""
    fields = _fields(row, _ANY, "metadata")
    fields["metrics"] = _NUMBERS.decode(row.metrics)
    return PolicyVersion(**fields)


def _fields(row: msgspec.Struct, decoder: msgspec.msgpack.Decoder[Any], *packed: str) -> dict[str, Any]:
    fields = msgspec.structs.asdict(row)
    return {name: decoder.decode(value) if name in packed else value for name, value in fields.items()}

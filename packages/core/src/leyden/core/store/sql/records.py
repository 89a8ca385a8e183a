"""`SqlRecords`: runs, metrics and versions of policies in SQL tables. Knows nothing of files, threads or locks."""

import random
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict
from sqlalchemy import ClauseElement, ColumnElement, Float, Table, Text, Update, bindparam, delete, select, update

from leyden.core.store.common.record_rows import MetricsRow, RunRow, VersionKey, VersionRow
from leyden.core.store.common.rows import KEPT_SECONDS, Rows
from leyden.core.store.query import Query
from leyden.core.store.sql import schema

R = TypeVar("R", bound=msgspec.Struct)


def _columns(table: Table, row: type[msgspec.Struct]) -> list[Any]:
    return [table.c[name] for name in row.__struct_fields__]


def _replace(table: Table, row: type[msgspec.Struct], *where: ColumnElement[bool]) -> Update:
    """Write all fields; their parameters are named so that none stands for the column itself."""
    return update(table).where(*where).values({name: bindparam(f"new_{name}") for name in row.__struct_fields__})


_runs, _metrics, _versions = schema.runs.c, schema.step_metrics.c, schema.policy_versions.c
RUN, METRICS = _columns(schema.runs, RunRow), _columns(schema.step_metrics, MetricsRow)
VERSION = _columns(schema.policy_versions, VersionRow)
_KEY, _POLICY = bindparam("key", type_=Text), bindparam("policy_key", type_=Text)
_FIRST, _LAST = bindparam("first", type_=schema.Big), bindparam("last", type_=schema.Big)

_THIS_RUN = _runs.run_id == _KEY
RUN_BY_ID = select(*RUN).where(_THIS_RUN)
REPLACE_RUN = _replace(schema.runs, RunRow, _THIS_RUN)
STEPS_BETWEEN = select(*METRICS).where(_metrics.run_id == _KEY, _metrics.step >= _FIRST, _metrics.step <= _LAST)
REPLACE_STEP = _replace(schema.step_metrics, MetricsRow, _metrics.run_id == _KEY, _metrics.step == _FIRST)
_THIS_VERSION = (_versions.run_id == _KEY) & (_versions.policy == _POLICY) & (_versions.version == _FIRST)
VERSION_BY_KEY = select(*VERSION).where(_THIS_VERSION)
REPLACE_VERSION = _replace(schema.policy_versions, VersionRow, _THIS_VERSION)
FORGET = (
    delete(schema.step_metrics).where(_metrics.run_id == _KEY, _metrics.step > _LAST),
    delete(schema.policy_versions).where(_versions.run_id == _KEY, _versions.version > _LAST),
)


_FORGETTING = 1 / 256
"""How often what is too old is deleted: two that do so at once wait for one another."""
_TIME = bindparam("first", type_=Float)
ANSWER = select(schema.requests.c.answer).where(schema.requests.c.request_id == _KEY)
FORGET_ANSWERS = delete(schema.requests).where(schema.requests.c.time < _TIME)


class RequestRow(msgspec.Struct, frozen=True):
    """What a request made that its caller had named."""

    request_id: str
    time: float
    answer: bytes


class SqlRecords(Rows):
    """The part of `SqlRows` that holds runs, and what named requests made."""

    @abstractmethod
    def _straight(self, statement: ClauseElement, **parameters: Any) -> Any:
        """Run a statement that was compiled once."""

    @abstractmethod
    def _straight_rows(self, kind: type[R], statement: ClauseElement, **parameters: Any) -> list[R]:
        """Run one that gives rows."""

    @abstractmethod
    def _insert(self, table: Table, rows: Sequence[msgspec.Struct], **more: Any) -> None:
        """Store new rows."""

    @abstractmethod
    def _page(self, kind: type[R], columns: Sequence[Any], query: Query) -> tuple[list[R], int]:
        """Select a page."""

    def answered(self, request_id: str) -> bytes | None:
        """By the unique index."""
        found = self._straight(ANSWER, key=request_id).fetchone()
        return None if found is None else bytes(found[0])

    def note_answer(self, request_id: str, answer: bytes) -> None:
        """Insert; now and then, delete what is too old."""
        self._insert(schema.requests, [RequestRow(request_id, self.now, answer)])
        if random.random() < _FORGETTING:
            self._straight(FORGET_ANSWERS, first=self.now - KEPT_SECONDS)

    def run(self, run_id: str) -> RunRow | None:
        """By the unique index."""
        return next(iter(self._straight_rows(RunRow, RUN_BY_ID, key=run_id)), None)

    def insert_run(self, row: RunRow) -> None:
        """Insert."""
        self._insert(schema.runs, [row])

    def replace_run(self, row: RunRow) -> None:
        """By the unique index."""
        self._straight(REPLACE_RUN, key=row.run_id, **_renamed(row))

    def select_runs(self, query: Query) -> tuple[list[RunRow], int]:
        """One statement."""
        return self._page(RunRow, RUN, query)

    def metrics(self, run_id: str, steps: Sequence[int]) -> dict[int, MetricsRow]:
        """From the first of them to the last, by the unique index."""
        if not steps:
            return {}
        found = self._straight_rows(MetricsRow, STEPS_BETWEEN, key=run_id, first=min(steps), last=max(steps))
        return {row.step: row for row in found}

    def insert_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """Insert."""
        self._insert(schema.step_metrics, rows)

    def replace_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """By the unique index."""
        for row in rows:
            self._straight(REPLACE_STEP, key=row.run_id, first=row.step, **_renamed(row))

    def select_metrics(self, query: Query) -> tuple[list[MetricsRow], int]:
        """One statement."""
        return self._page(MetricsRow, METRICS, query)

    def policy_version(self, key: VersionKey) -> VersionRow | None:
        """By the unique index."""
        found = self._straight_rows(VersionRow, VERSION_BY_KEY, key=key[0], policy_key=key[1], first=key[2])
        return next(iter(found), None)

    def insert_policy_version(self, row: VersionRow) -> None:
        """Insert."""
        self._insert(schema.policy_versions, [row])

    def replace_policy_version(self, row: VersionRow) -> None:
        """By the unique index."""
        fields = _renamed(row)
        self._straight(REPLACE_VERSION, key=row.run_id, policy_key=row.policy, first=row.version, **fields)

    def select_policy_versions(self, query: Query) -> tuple[list[VersionRow], int]:
        """One statement."""
        return self._page(VersionRow, VERSION, query)

    def forget_after(self, run_id: str, step: int) -> None:
        """By the unique indexes."""
        for statement in FORGET:
            self._straight(statement, key=run_id, last=step)


def _renamed(row: msgspec.Struct) -> dict[str, Any]:
    return {f"new_{name}": value for name, value in asdict(row).items()}

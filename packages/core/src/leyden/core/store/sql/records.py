"""`SqlRecords`: rows of runs, metrics and policy versions in SQL tables."""

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
    """Return a statement that writes all fields; its parameters have names that differ from the columns'."""
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
"""Probability with which a write also deletes old results, since two such deletions at once wait for each other."""
_TIME = bindparam("first", type_=Float)
ANSWER = select(schema.requests.c.answer).where(schema.requests.c.request_id == _KEY)
FORGET_ANSWERS = delete(schema.requests).where(schema.requests.c.time < _TIME)


class RequestRow(msgspec.Struct, frozen=True):
    """Recorded result of a request with an id."""

    request_id: str
    time: float
    answer: bytes


class SqlRecords(Rows):
    """The part of `SqlRows` that holds runs, and the results of requests with an id."""

    @abstractmethod
    def _run_compiled(self, statement: ClauseElement, **parameters: Any) -> Any:
        """Run a statement that was compiled once, and return its cursor."""

    @abstractmethod
    def _compiled_rows(self, kind: type[R], statement: ClauseElement, **parameters: Any) -> list[R]:
        """Run such a statement and return its rows."""

    @abstractmethod
    def _insert(self, table: Table, rows: Sequence[msgspec.Struct], **more: Any) -> None:
        """Insert new rows."""

    @abstractmethod
    def _page(self, kind: type[R], columns: Sequence[Any], query: Query) -> tuple[list[R], int]:
        """Select a page, and return it with the number of rows before paging."""

    def recorded_answer(self, request_id: str) -> bytes | None:
        """Select by the unique index."""
        found = self._run_compiled(ANSWER, key=request_id).fetchone()
        return None if found is None else bytes(found[0])

    def record_answer(self, request_id: str, answer: bytes) -> None:
        """Insert the result; occasionally, delete old results."""
        self._insert(schema.requests, [RequestRow(request_id, self.now, answer)])
        if random.random() < _FORGETTING:
            self._run_compiled(FORGET_ANSWERS, first=self.now - KEPT_SECONDS)

    def run(self, run_id: str) -> RunRow | None:
        """Select by the unique index."""
        return next(iter(self._compiled_rows(RunRow, RUN_BY_ID, key=run_id)), None)

    def insert_run(self, row: RunRow) -> None:
        """Insert the row."""
        self._insert(schema.runs, [row])

    def replace_run(self, row: RunRow) -> None:
        """Update by the unique index."""
        self._run_compiled(REPLACE_RUN, key=row.run_id, **_renamed(row))

    def select_runs(self, query: Query) -> tuple[list[RunRow], int]:
        """Select the page with one statement, and count with another where the page is not all."""
        return self._page(RunRow, RUN, query)

    def metrics(self, run_id: str, steps: Sequence[int]) -> dict[int, MetricsRow]:
        """Select all steps from the first of these to the last, by the unique index."""
        if not steps:
            return {}
        found = self._compiled_rows(MetricsRow, STEPS_BETWEEN, key=run_id, first=min(steps), last=max(steps))
        return {row.step: row for row in found}

    def insert_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """Insert the rows."""
        self._insert(schema.step_metrics, rows)

    def replace_metrics(self, rows: Sequence[MetricsRow]) -> None:
        """Update each by the unique index."""
        for row in rows:
            self._run_compiled(REPLACE_STEP, key=row.run_id, first=row.step, **_renamed(row))

    def select_metrics(self, query: Query) -> tuple[list[MetricsRow], int]:
        """Select the page of steps."""
        return self._page(MetricsRow, METRICS, query)

    def policy_version(self, key: VersionKey) -> VersionRow | None:
        """Select by the unique index."""
        found = self._compiled_rows(VersionRow, VERSION_BY_KEY, key=key[0], policy_key=key[1], first=key[2])
        return next(iter(found), None)

    def insert_policy_version(self, row: VersionRow) -> None:
        """Insert the row."""
        self._insert(schema.policy_versions, [row])

    def replace_policy_version(self, row: VersionRow) -> None:
        """Update by the unique index."""
        fields = _renamed(row)
        self._run_compiled(REPLACE_VERSION, key=row.run_id, policy_key=row.policy, first=row.version, **fields)

    def select_policy_versions(self, query: Query) -> tuple[list[VersionRow], int]:
        """Select the page of versions."""
        return self._page(VersionRow, VERSION, query)

    def forget_after(self, run_id: str, step: int) -> None:
        """Delete by the unique indexes."""
        for statement in FORGET:
            self._run_compiled(statement, key=run_id, last=step)


def _renamed(row: msgspec.Struct) -> dict[str, Any]:
    return {f"new_{name}": value for name, value in asdict(row).items()}

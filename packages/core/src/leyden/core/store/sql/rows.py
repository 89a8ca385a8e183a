"""`SqlRows`: the rows of a store in SQL tables, within one transaction of one connection."""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict
from sqlalchemy import (
    ClauseElement,
    Column,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Table,
    and_,
    func,
    or_,
    select,
)

from leyden.core.data.rollout import FINISHED_ROLLOUT
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
from leyden.core.store.common.run_record_rows import RecordKey, RecordRow
from leyden.core.store.query import Condition, Place, Query
from leyden.core.store.sql import run_records, schema
from leyden.core.store.sql import statements as sql
from leyden.core.store.sql.dialects import among, holds

R = TypeVar("R", bound=msgspec.Struct)
Record = TypeVar("Record", bound=RecordRow)


def _renamed(changes: Changes) -> Changes:
    """Return changes under new names, since a parameter with a column's name would stand for the column itself."""
    return {f"new_{name}": value for name, value in changes.items()}


def structs_of(kind: type[R], rows: Iterable[Sequence[Any]]) -> list[R]:
    """Return structs made from table rows, whose columns are in the order of the fields."""
    names = kind.__struct_fields__
    return [kind(**dict(zip(names, row, strict=True))) for row in rows]


def _count(table: FromClause) -> Select[int]:
    return select(func.count()).select_from(table)


_HEARTBEAT_FIELDS = frozenset({"last_heartbeat_time", "deadline"})
"""Fields that change with every span and do not concern the status."""
_FORGETTING = 1 / 256
"""Probability with which a write also deletes old results, since two such deletions at once wait for each other."""


class SqlRows(Rows):
    """Rows in SQL tables. Table rows are inserted in the order of creation, so `id` gives that order."""

    _dialect = sql.SQLITE
    _head_of_queue: Select[str] = sql.HEAD_OF_QUEUE
    _record_by_key = run_records.BY_KEY

    def __init__(self, connection: Connection, driver: Any, now: float, *, assumes_new_spans: bool = False) -> None:
        """`driver` is the driver's own connection of `connection`.

        With `assumes_new_spans`, spans are assumed to be new; an insert of a stored one raises an error.
        """
        super().__init__(now)
        self._connection, self._driver, self._assumes_new_spans = connection, driver, assumes_new_spans
        self.changed: set[str] = set()
        """Rollouts that were changed, or whose attempts were, in other fields than `_HEARTBEAT_FIELDS`."""

    def _run_compiled(self, statement: ClauseElement, **parameters: Any) -> Any:
        """Run a statement that was compiled once, without SQLAlchemy's overhead for each run.

        For the few statements that every model call needs; none of their columns needs a conversion.
        """
        text, wanted = sql.compiled(statement, self._dialect)
        return self._driver.execute(text, [parameters.get(name, fixed) for name, fixed in wanted])

    def _compiled_rows(self, kind: type[R], statement: ClauseElement, **parameters: Any) -> list[R]:
        return structs_of(kind, self._run_compiled(statement, **parameters))

    def _by_keys(self, pair: tuple[ClauseElement, ClauseElement], keys: Sequence[RecordKey], **more: Any) -> Any:
        """Run the first statement for a single key, the usual case, which is cheaper than a list; else the second."""
        one, several = pair
        if len(keys) == 1:
            return self._run_compiled(one, **dict(zip(sql.KEY_NAMES, keys[0], strict=False)), **more)
        return self._run_compiled(several, keys=json.dumps(keys), **more)

    def _rows(self, kind: type[R], statement: Select[Any], **parameters: Any) -> list[R]:
        return [kind(**row) for row in self._connection.execute(statement, parameters).mappings()]

    def _insert(self, table: Table, rows: Sequence[msgspec.Struct], **more: Any) -> None:
        if not rows:
            return
        given = [{**asdict(row), **more} for row in rows]
        if self.given_positions is not None:
            given = [{**row, "id": number} for row, number in zip(given, self.given_positions, strict=False)]
        self._insert_all(table, tuple(given[0]), given)

    def _insert_all(self, table: Table, names: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> None:
        text, wanted = sql.compiled(sql.insert_into(table, names), self._dialect)
        self._driver.executemany(text, [[row[name] for name, _ in wanted] for row in rows])

    def _page(
        self, kind: type[R], columns: sql.Columns, query: Query, *extra: ColumnElement[bool]
    ) -> tuple[list[R], int]:
        table: Any = columns[0].table
        passing = [*extra, *_filters(table, query)]  # without any, SQLite counts rows by the sizes of pages
        statement = select(*columns).where(*passing).order_by(*_order(columns, query), table.c.id)
        if query.after is not None:
            statement = statement.where(_behind(table, query, query.after))
        if query.limit >= 0:
            statement = statement.limit(query.limit)
        rows = self._rows(kind, statement.offset(query.offset) if query.offset else statement)
        if query.limit < 0 and not query.offset and query.after is None:
            return rows, len(rows)
        return rows, self._connection.execute(_count(table).where(*passing)).scalar_one()

    def counts(self) -> dict[str, int]:
        """Count the rows of each table."""
        counted: dict[str, Select[int]] = {
            "total_rollouts": _count(schema.rollouts),
            "total_attempts": _count(schema.attempts),
            "total_spans": _count(schema.spans),
            "total_resources": _count(schema.resources).where(schema.resources.c.current),
            "total_workers": _count(schema.workers),
            "queue_length": _count(schema.queue),
        }
        return {name: self._connection.execute(statement).scalar_one() for name, statement in counted.items()}

    def positions(self, rows: Sequence[RolloutRow | AttemptRow | ResourcesRow | WorkerRow | RecordRow]) -> list[int]:
        """Select `id` by the unique indexes."""
        if not rows:
            return []
        keys = [tuple(getattr(row, name) for name in sql.KEY_FIELDS[type(row)]) for row in rows]
        found = self._run_compiled(sql.POSITIONS[type(rows[0])], keys=json.dumps(keys))
        by_key = {tuple(row[1:]): row[0] for row in found}
        return [by_key[key] for key in keys]

    def queue_head(self, queue: str, limit: int) -> list[tuple[int, str]]:
        """Select by position."""
        return [(row[0], row[1]) for row in self._run_compiled(sql.HEAD_WITH_POSITIONS, key=queue, limit=limit)]

    # --- Rollouts

    def rollouts(self, rollout_ids: Sequence[str]) -> dict[str, RolloutRow]:
        """Select by the unique index."""
        if not rollout_ids:
            return {}
        if len(rollout_ids) == 1:
            found = self._compiled_rows(RolloutRow, sql.ROLLOUT_BY_ID, key=rollout_ids[0])
        else:
            found = self._compiled_rows(RolloutRow, sql.ROLLOUTS_BY_ID, keys=json.dumps(rollout_ids))
        return {row.rollout_id: row for row in found}

    def select_rollouts(self, query: Query) -> tuple[list[RolloutRow], int]:
        """Select the page of rollouts."""
        return self._page(RolloutRow, sql.ROLLOUT, query)

    def insert_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        """Insert all with one statement and many parameters."""
        self._insert(schema.rollouts, rows, span_counter=0)

    def update_rollout(self, rollout_id: str, changes: Changes) -> None:
        """Update only the changed columns."""
        if not _HEARTBEAT_FIELDS.issuperset(changes):
            self.changed.add(rollout_id)
        if changes:
            self._run_compiled(sql.update_rollout(tuple(changes)), **_renamed(changes), key=rollout_id)

    def overdue(self) -> list[RolloutRow]:
        """Select by the partial index of deadlines."""
        return self._compiled_rows(RolloutRow, sql.OVERDUE, now=self.now)

    def next_deadline(self) -> float | None:
        """Select by the partial index of deadlines."""
        return self._run_compiled(sql.NEXT_DEADLINE).fetchone()[0]

    def push(self, rows: Sequence[RolloutRow]) -> None:
        """Insert after the last of each queue, or at the given positions; a single rollout with one statement."""
        if self.given_positions is not None:
            names = ("queue", "position", "rollout_id")
            numbers = zip(rows, self.given_positions, strict=False)
            places = [{"queue": row.queue, "position": n, "rollout_id": row.rollout_id} for row, n in numbers]
            self._insert_all(schema.queue, names, places)
            return
        if len(rows) == 1:
            self._run_compiled(sql.PUSH, key=rows[0].queue, second_key=rows[0].rollout_id)
            return
        groups: dict[str, list[str]] = {}
        for row in rows:
            groups.setdefault(row.queue, []).append(row.rollout_id)
        for queue, ids in groups.items():
            (last,) = self._run_compiled(sql.END_OF_QUEUE, key=queue).fetchone()
            places = [{"queue": queue, "position": n, "rollout_id": name} for n, name in enumerate(ids, last + 1)]
            self._insert_all(schema.queue, ("queue", "position", "rollout_id"), places)

    def drop(self, row: RolloutRow) -> None:
        """Delete from the queue."""
        self._run_compiled(sql.DROP_FROM_QUEUE, key=row.rollout_id)

    def head(self, queue: str, limit: int) -> list[str]:
        """Select by position."""
        return [rollout_id for (rollout_id,) in self._run_compiled(self._head_of_queue, key=queue, limit=limit)]

    # --- Attempts

    def attempts(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, AttemptRow]:
        """Select by the unique index."""
        rows = structs_of(AttemptRow, self._by_keys(sql.ATTEMPTS_BY_KEY, keys))
        found = {(row.rollout_id, row.attempt_id): row for row in rows}
        return {key: found[key] for key in keys if key in found}

    def latest_attempts(self, rows: Sequence[RolloutRow]) -> dict[str, AttemptRow]:
        """Select the attempts of all rollouts; for each, the last one stays."""
        ids = [row.rollout_id for row in rows if row.attempts]
        if not ids:
            return {}
        found = self._compiled_rows(AttemptRow, sql.ATTEMPTS_OF, keys=json.dumps(ids))
        return {row.rollout_id: row for row in found}

    def attempts_of(self, rollout_id: str) -> list[AttemptRow]:
        """Select by the unique index."""
        return self._compiled_rows(AttemptRow, sql.ATTEMPTS_OF, keys=json.dumps([rollout_id]))

    def select_attempts(self, query: Query) -> tuple[list[AttemptRow], int]:
        """Select the page of attempts."""
        return self._page(AttemptRow, sql.ATTEMPT, query)

    def insert_attempt(self, row: AttemptRow) -> None:
        """Insert the row."""
        self._insert(schema.attempts, [row])

    def update_attempt(self, key: AttemptKey, changes: Changes) -> None:
        """Update only the changed columns."""
        if not _HEARTBEAT_FIELDS.issuperset(changes):
            self.changed.add(key[0])
        if changes:
            self._run_compiled(sql.update_attempt(tuple(changes)), **_renamed(changes), key=key[0], second_key=key[1])

    def open_attempt_of(self, worker_id: str) -> AttemptRow | None:
        """Select by the index of workers' attempts."""
        return next(iter(self._compiled_rows(AttemptRow, sql.OPEN_ATTEMPT_OF, key=worker_id)), None)

    def rollout_and_latest_attempt(self, key: AttemptKey) -> tuple[RolloutRow, AttemptRow] | None:
        """Return a rollout and its latest attempt with one statement.

        Returns None where `key` is not the latest attempt, or the health check is due.
        """
        found = self._run_compiled(
            sql.ROLLOUT_AND_LATEST_ATTEMPT, **dict(zip(sql.KEY_NAMES, key, strict=False))
        ).fetchone()
        if found is None or (found[-1] is not None and found[-1] <= self.now):
            return None
        columns = len(RolloutRow.__struct_fields__)
        (row,), (attempt,) = structs_of(RolloutRow, [found[:columns]]), structs_of(AttemptRow, [found[columns:-1]])
        return (row, attempt) if attempt.sequence_id == row.attempts else None

    # --- Spans

    def span_targets(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, SpanTarget]:
        """Select all with one statement."""
        return {(row[0], row[1]): SpanTarget(*row[2:]) for row in self._by_keys(sql.TARGETS, keys)}

    def record_heartbeats(self, keys: Sequence[AttemptKey]) -> None:
        """Update all with one statement."""
        self._by_keys(sql.RECORD_HEARTBEATS, keys, now=self.now)

    def span_counters(self, rollout_ids: Sequence[str]) -> dict[str, int]:
        """Select with one statement, by the index of spans in order."""
        return dict(self._run_compiled(sql.SPAN_COUNTERS, keys=json.dumps(rollout_ids)).fetchall())

    def record_numbers(self, counters: Mapping[str, int]) -> None:
        """Update all with one statement."""
        self._run_compiled(sql.SET_COUNTERS, counters=json.dumps(counters))

    def stored_spans(self, keys: Sequence[SpanKey]) -> set[SpanKey]:
        """Select by the unique index, with one statement."""
        if self._assumes_new_spans:
            return set()
        wanted = [(rollout_id, span_id, attempt_id) for rollout_id, attempt_id, span_id in keys]
        return {(row[0], row[1], row[2]) for row in self._by_keys(sql.STORED_SPANS, wanted)}

    def insert_spans(self, rows: Sequence[SpanRow]) -> None:
        """Insert all with one statement and many parameters."""
        text, wanted = sql.compiled(sql.insert_into(schema.spans, SpanRow.__struct_fields__), self._dialect)
        self._driver.executemany(text, list(map(attrgetter(*(name for name, _ in wanted)), rows)))

    def delete_spans(self, rollout_id: str) -> int:
        """Delete by the index of spans in order."""
        count = self._run_compiled(sql.COUNT_SPANS, key=rollout_id).fetchone()[0]
        self._run_compiled(sql.DELETE_SPANS, key=rollout_id)
        return count

    def select_spans(self, query: Query) -> tuple[list[SpanRow], int]:
        """Select the page of spans; the statement for all spans of a rollout in order is compiled once."""
        rollout_id = query.within.get("rollout_id", "")
        if query == _spans_in_order(rollout_id):
            rows = self._compiled_rows(SpanRow, sql.SPANS_IN_ORDER, key=rollout_id)
            return rows, len(rows)
        return self._page(SpanRow, sql.SPAN, query)

    # --- Resources and workers

    def resources(self, resources_id: str | None, version: int | None = None) -> ResourcesRow | None:
        """Select by the unique index, or the newest row."""
        statement = sql.RESOURCES_LATEST
        if resources_id is not None:
            statement = sql.RESOURCES_BY_ID if version is None else sql.RESOURCES_OF_VERSION
        return next(iter(self._compiled_rows(ResourcesRow, statement, key=resources_id, version=version)), None)

    def select_resources(self, query: Query) -> tuple[list[ResourcesRow], int]:
        """Select the page of current versions."""
        return self._page(ResourcesRow, sql.RESOURCES, query, schema.resources.c.current)

    def insert_resources(self, row: ResourcesRow) -> None:
        """Insert the version, and mark the one before as not current."""
        self._run_compiled(sql.RETIRE_RESOURCES, key=row.resources_id)
        self._insert(schema.resources, [row], current=True)

    def worker(self, worker_id: str) -> WorkerRow | None:
        """Select by the unique index."""
        return next(iter(self._compiled_rows(WorkerRow, sql.WORKER_BY_ID, key=worker_id)), None)

    def put_worker(self, row: WorkerRow) -> None:
        """Update the row, or insert it where it does not exist."""
        changed = self._run_compiled(sql.PUT_WORKER, **_renamed(asdict(row)), key=row.worker_id)
        if not changed.rowcount:
            self._insert(schema.workers, [row])

    def select_workers(self, query: Query) -> tuple[list[WorkerRow], int]:
        """Select the page of workers."""
        return self._page(WorkerRow, sql.WORKER, query)

    # --- Records of runs, and results of requests with an id

    def records(self, kind: type[Record], keys: Sequence[RecordKey]) -> dict[RecordKey, Record]:
        """Select all with one statement, by the unique index."""
        found = structs_of(kind, self._by_keys(self._record_by_key[kind], keys)) if keys else []
        return {row.key: row for row in found}

    def insert_records(self, rows: Sequence[RecordRow]) -> None:
        """Insert the rows."""
        if rows:
            self._insert(run_records.TABLES[type(rows[0])], rows)

    def replace_records(self, rows: Sequence[RecordRow]) -> None:
        """Update each by the unique index."""
        for row in rows:
            self._run_compiled(run_records.REPLACE[type(row)], **_named(row.key), **_renamed(asdict(row)))

    def select_records(self, kind: type[Record], query: Query) -> tuple[list[Record], int]:
        """Select the page of the table."""
        return self._page(kind, run_records.COLUMNS[kind], query)

    def forget_after(self, run_id: str, step: int) -> None:
        """Delete by the unique indexes."""
        for statement in run_records.FORGET:
            self._run_compiled(statement, key=run_id, last=step)

    def recorded_answer(self, request_id: str) -> bytes | None:
        """Select by the unique index."""
        found = self._run_compiled(sql.ANSWER, key=request_id).fetchone()
        return None if found is None else bytes(found[0])

    def record_answer(self, request_id: str, answer: bytes) -> None:
        """Insert the result; occasionally, delete old results."""
        row = {"request_id": request_id, "time": self.now, "answer": answer}
        self._run_compiled(sql.insert_into(schema.requests, tuple(row)), **row)
        if random.random() < _FORGETTING:
            self._run_compiled(sql.FORGET_ANSWERS, before=self.now - KEPT_SECONDS)


def _named(key: RecordKey) -> dict[str, Any]:
    return dict(zip(sql.KEY_NAMES, key, strict=False))


def _spans_in_order(rollout_id: str) -> Query:
    return Query(within={"rollout_id": rollout_id}, sort_by="sequence_id")


def _filters(table: Any, query: Query) -> list[ColumnElement[bool]]:
    tests = [_test(table.c[condition.field], condition) for condition in query.conditions]
    within = [_is(table.c[name], value, query) for name, value in query.within.items()]
    if tests:
        within.append(or_(*tests) if query.logic == "or" else and_(*tests))
    return within


def _is(column: Column[Any], value: str, query: Query) -> ColumnElement[bool]:
    """Return a condition that uses an index, but for the queue of rollouts that another index finds sooner."""
    joined = query.logic == "and" or len(query.conditions) == 1
    found_sooner = column.name == "queue" and joined and any(map(_finds_few, query.conditions))
    return column.concat("") == value if found_sooner else column == value


def _finds_few(condition: Condition) -> bool:
    """Whether an index finds few rollouts by this condition: those that are named, or unfinished ones."""
    if condition.test != "one of":
        return False
    return condition.field == "rollout_id" or (
        condition.field == "status" and FINISHED_ROLLOUT.isdisjoint(condition.value)
    )


def _test(column: Column[Any], condition: Condition) -> ColumnElement[bool]:
    if condition.test == "equals":
        return column == condition.value
    if condition.test == "contains":
        return holds(column, str(condition.value))
    return among(column, json.dumps(sorted(condition.value)))


def _order(columns: sql.Columns, query: Query) -> list[ColumnElement[Any]]:
    if query.sort_by is None:
        return []
    column = next(column for column in columns if column.name == query.sort_by)
    descending = query.order == "desc"
    ordered: list[ColumnElement[Any]] = [column.desc() if descending else column]
    if isinstance(column, Column) and not column.nullable:  # an index in this order can be used
        return ordered
    return [column.is_(None).desc() if descending else column.is_(None), *ordered]


def _behind(table: Any, query: Query, place: Place) -> ColumnElement[bool]:
    """Return a condition: the row comes after `place` in the order of `_order`, and of `id` for ties."""
    behind_in_tie: ColumnElement[bool] = table.c.id > place.position
    if query.sort_by is None:
        return behind_in_tie
    column, descending = table.c[query.sort_by], query.order == "desc"
    if place.value is None:
        behind = and_(column.is_(None), behind_in_tie)
        return or_(behind, column.is_not(None)) if descending else behind
    behind = or_(
        column < place.value if descending else column > place.value, and_(column == place.value, behind_in_tie)
    )
    return behind if descending else or_(behind, column.is_(None))

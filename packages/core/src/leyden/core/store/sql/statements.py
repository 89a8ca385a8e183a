"""Statements of a SQL store, built once, since building a statement costs more than running it."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import (
    BindParameter,
    ClauseElement,
    Column,
    ColumnElement,
    Dialect,
    Float,
    Insert,
    Integer,
    Select,
    Table,
    Text,
    Update,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects import sqlite

from leyden.core.store.common.rows import AttemptRow, ResourcesRow, RolloutRow, SpanRow, WorkerRow
from leyden.core.store.common.run_record_rows import RunRow, VersionRow
from leyden.core.store.sql import schema
from leyden.core.store.sql.dialects import among, greatest, listed, tuples_among

Columns = Sequence[ColumnElement[Any]]


def _columns(table: Table, row: type[msgspec.Struct]) -> Sequence[Column[Any]]:
    return [table.c[name] for name in row.__struct_fields__]


def _new(names: Iterable[str]) -> dict[str, BindParameter[Any]]:
    return {name: bindparam(f"new_{name}") for name in names}


_rollouts, _attempts, _spans, _queue = schema.rollouts.c, schema.attempts.c, schema.spans.c, schema.queue.c
_resources, _workers = schema.resources.c, schema.workers.c
_others = schema.rollouts.alias("others").c
ROLLOUT = _columns(schema.rollouts, RolloutRow)
ATTEMPT = _columns(schema.attempts, AttemptRow)
SPAN, RESOURCES = _columns(schema.spans, SpanRow), _columns(schema.resources, ResourcesRow)
WORKER = _columns(schema.workers, WorkerRow)

KEY_NAMES = "key", "second_key", "third_key"
"""Parameters of a statement for one key. In a pair of statements, the other is for several keys, as JSON in `keys`."""
_KEY, _SECOND_KEY, _THIRD_KEY = (bindparam(name, type_=Text) for name in KEY_NAMES)
_KEYS = bindparam("keys", type_=Text)
ROLLOUT_BY_ID = select(*ROLLOUT).where(_rollouts.rollout_id == _KEY)
ROLLOUTS_BY_ID = select(*ROLLOUT).where(among(_rollouts.rollout_id, _KEYS))
OVERDUE = (
    select(*ROLLOUT)
    .where(_rollouts.deadline <= bindparam("now", type_=Float))
    .order_by(_rollouts.deadline, schema.rollouts.c.id)
)
DROP_FROM_QUEUE = delete(schema.queue).where(_queue.rollout_id == _KEY)
_IN_QUEUE = select(_queue.rollout_id, _queue.position).where(_queue.queue == _KEY).order_by(_queue.position)
HEAD_OF_QUEUE = _IN_QUEUE.with_only_columns(_queue.rollout_id).limit(bindparam("limit", type_=Integer))
HEAD_WITH_POSITIONS = _IN_QUEUE.with_only_columns(_queue.position, _queue.rollout_id).limit(
    bindparam("limit", type_=Integer)
)
END_OF_QUEUE = select(func.coalesce(func.max(_queue.position), 0)).where(_queue.queue == _KEY)
PUSH = (
    insert(schema.queue)
    .inline()
    .values(queue=_KEY, position=END_OF_QUEUE.scalar_subquery() + literal_column("1", Integer), rollout_id=_SECOND_KEY)
)
"""For SQLite: puts the rollout `second_key` at the end of the queue `key`."""
ATTEMPTS_OF = select(*ATTEMPT).where(among(_attempts.rollout_id, _KEYS)).order_by(_attempts.sequence_id)
OPEN_ATTEMPT_OF = (
    select(*ATTEMPT).where((_attempts.worker_id == _KEY) & schema.OPEN).order_by(_attempts.id.desc()).limit(1)
)
_EVERY_STORED_SPAN = select(_spans.rollout_id, _spans.attempt_id, _spans.span_id)
STORED_SPANS = (
    _EVERY_STORED_SPAN.where(
        (_spans.rollout_id == _KEY) & (_spans.span_id == _SECOND_KEY) & (_spans.attempt_id == _THIRD_KEY)
    ),
    _EVERY_STORED_SPAN.where(tuples_among(_spans.rollout_id, _spans.span_id, _spans.attempt_id)),
)
COUNT_SPANS = select(func.count()).select_from(schema.spans).where(_spans.rollout_id == _KEY)
DELETE_SPANS = delete(schema.spans).where(_spans.rollout_id == _KEY)
SPANS_IN_ORDER = select(*SPAN).where(_spans.rollout_id == _KEY).order_by(_spans.sequence_id, schema.spans.c.id)
_THIS_ATTEMPT = (_attempts.rollout_id == _KEY) & (_attempts.attempt_id == _SECOND_KEY)
_THESE_ATTEMPTS = tuples_among(_attempts.rollout_id, _attempts.attempt_id)
ATTEMPTS_BY_KEY = select(*ATTEMPT).where(_THIS_ATTEMPT), select(*ATTEMPT).where(_THESE_ATTEMPTS)
# The earliest deadline is selected as the first in order. For an aggregate, a planner that expects few deadlines would
# read them all.
_NEXT_OF_ALL = (
    select(_others.deadline)
    .where(_others.deadline.is_not(None))
    .order_by(_others.deadline)
    .limit(literal_column("1", Integer))
    .correlate(None)
    .scalar_subquery()
)
NEXT_DEADLINE = select(_NEXT_OF_ALL)
ROLLOUT_AND_LATEST_ATTEMPT = (
    select(*ROLLOUT, *ATTEMPT, _NEXT_OF_ALL.label("due"))
    .join_from(schema.attempts, schema.rollouts, _attempts.rollout_id == _rollouts.rollout_id)
    .where(_THIS_ATTEMPT)
)
"""A rollout, one of its attempts, and the next deadline of all: needed at the first call of every new attempt."""
_LAST_SPAN = select(func.max(_spans.sequence_id)).where(_spans.rollout_id == _rollouts.rollout_id).scalar_subquery()
_SPAN_COUNTER = greatest(_rollouts.span_counter, func.coalesce(_LAST_SPAN, 0))
SPAN_COUNTERS = select(_rollouts.rollout_id, _SPAN_COUNTER).where(among(_rollouts.rollout_id, _KEYS))
_EVERY_TARGET = select(
    _attempts.rollout_id,
    _attempts.attempt_id,
    _attempts.sequence_id,
    _attempts.status,
    _rollouts.attempts,
    _rollouts.status,
    _SPAN_COUNTER,
).join_from(schema.attempts, schema.rollouts, _attempts.rollout_id == _rollouts.rollout_id)
TARGETS = _EVERY_TARGET.where(_THIS_ATTEMPT), _EVERY_TARGET.where(_THESE_ATTEMPTS)
_NOW = bindparam("now", type_=Float)
_RECORD_HEARTBEATS = update(schema.attempts).values(
    last_heartbeat_time=greatest(func.coalesce(_attempts.last_heartbeat_time, _NOW), _NOW)
)
RECORD_HEARTBEATS = _RECORD_HEARTBEATS.where(_THIS_ATTEMPT), _RECORD_HEARTBEATS.where(_THESE_ATTEMPTS)
_COUNTERS = func.json_each(bindparam("counters", type_=Text)).table_valued("key", "value")
SET_COUNTERS = (
    update(schema.rollouts).where(_rollouts.rollout_id == _COUNTERS.c.key).values(span_counter=_COUNTERS.c.value)
)
RESOURCES_LATEST = select(*RESOURCES).order_by(_resources.id.desc()).limit(1)
RESOURCES_BY_ID = RESOURCES_LATEST.where(_resources.resources_id == _KEY)
RESOURCES_OF_VERSION = RESOURCES_BY_ID.where(_resources.version == bindparam("version", type_=Integer))
RETIRE_RESOURCES = (
    update(schema.resources)
    .where((_resources.resources_id == _KEY) & _resources.current)
    .values(current=literal_column("false"))
)


def _positions(table: Table, names: Sequence[str], *extra: ColumnElement[bool]) -> Select[Any]:
    wanted = listed(*(table.c[name] for name in names))
    joined = and_(*extra, *(table.c[name] == wanted.c[name] for name in names))
    return select(table.c.id, *(table.c[name] for name in names)).join_from(wanted, table, joined)


KEY_FIELDS: Mapping[type[msgspec.Struct], Sequence[str]] = {
    RolloutRow: ("rollout_id",),
    AttemptRow: ("rollout_id", "attempt_id"),
    ResourcesRow: ("resources_id",),
    WorkerRow: ("worker_id",),
    RunRow: RunRow.KEY,
    VersionRow: VersionRow.KEY,
}
"""By kind of row, the fields that identify a row; of resources, the current version."""
POSITIONS: Mapping[type[msgspec.Struct], Select[Any]] = {
    RolloutRow: _positions(schema.rollouts, KEY_FIELDS[RolloutRow]),
    AttemptRow: _positions(schema.attempts, KEY_FIELDS[AttemptRow]),
    ResourcesRow: _positions(schema.resources, KEY_FIELDS[ResourcesRow], _resources.current),
    WorkerRow: _positions(schema.workers, KEY_FIELDS[WorkerRow]),
    RunRow: _positions(schema.runs, KEY_FIELDS[RunRow]),
    VersionRow: _positions(schema.policy_versions, KEY_FIELDS[VersionRow]),
}
"""By kind of row: the positions of rows, each before the fields that identify it."""
WORKER_BY_ID = select(*WORKER).where(_workers.worker_id == _KEY)
PUT_WORKER = update(schema.workers).where(_workers.worker_id == _KEY).values(_new(WorkerRow.__struct_fields__))
ANSWER = select(schema.requests.c.answer).where(schema.requests.c.request_id == _KEY)
FORGET_ANSWERS = delete(schema.requests).where(schema.requests.c.time < bindparam("before", type_=Float))

SQLITE: Dialect = sqlite.dialect()
"""Shared by all stores, so that cached compiled statements do not keep a closed store's engine alive."""


@cache
def compiled(statement: ClauseElement, dialect: Dialect) -> tuple[str, list[tuple[str, Any]]]:
    """Return a statement as text for the driver, with its parameters in order: names, and values that are fixed."""
    compiled: Any = statement.compile(dialect=dialect)
    names: list[str] = compiled.positiontup
    return str(compiled), [(name, compiled.params[name]) for name in names]


@cache
def insert_into(table: Table, names: tuple[str, ...]) -> Insert:
    """Return a statement that inserts a row of these fields."""
    return insert(table).inline().values({name: bindparam(name) for name in names})


@cache
def update_rollout(names: tuple[str, ...]) -> Update:
    """Return a statement that updates these fields of one rollout."""
    return update(schema.rollouts).where(_rollouts.rollout_id == _KEY).values(_new(names))


@cache
def update_attempt(names: tuple[str, ...]) -> Update:
    """Return a statement that updates these fields of one attempt."""
    return update(schema.attempts).where(_THIS_ATTEMPT).values(_new(names))

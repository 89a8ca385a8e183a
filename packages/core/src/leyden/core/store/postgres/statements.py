"""Statements that only a PostgreSQL store needs: locks, and rows in bulk."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Dialect,
    Float,
    Integer,
    LargeBinary,
    Table,
    Text,
    bindparam,
    cast,
    func,
    insert,
    literal_column,
    select,
    tuple_,
    type_coerce,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, psycopg
from sqlalchemy.dialects.postgresql import insert as insert_or_else
from sqlalchemy.types import TypeEngine

from leyden.core.data.rollout import QUEUED
from leyden.core.store.common.rows import AttemptKey, SpanRow, WorkerRow
from leyden.core.store.common.run_record_rows import RunRow
from leyden.core.store.sql import schema
from leyden.core.store.sql import statements as sql
from leyden.core.store.sql.dialects import among
from leyden.core.store.sql.run_records import BY_KEY

DIALECT: Dialect = psycopg.dialect(paramstyle="format")
"""Shared by all stores, so that cached compiled statements do not keep a closed store's engine alive."""
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE"
"""Each statement reads what was committed when the statement began."""
BEGIN_TO_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
"""All statements of the transaction read the same snapshot."""

SPAN_FIELDS = SpanRow.__struct_fields__
_rollouts, _queue = schema.rollouts.c, schema.queue.c
_KEY, _KEYS = bindparam("key", type_=Text), bindparam("keys", type_=Text)


def _locked(statement: Any, table: Table = schema.rollouts, *, skip: bool = False) -> Any:
    """Add a lock for updates that do not change keys, which is sufficient for rollouts and runs."""
    return statement.with_for_update(of=table, key_share=True, skip_locked=skip)


_EVERY_LOCK = select(literal_column("1", Integer)).select_from(schema.rollouts)
_ONE, _SEVERAL = _rollouts.rollout_id == _KEY, among(_rollouts.rollout_id, _KEYS)
ROLLOUTS = (
    _locked(select(*sql.ROLLOUT).where(_ONE)),
    _locked(select(*sql.ROLLOUT).where(_SEVERAL).order_by(_rollouts.rollout_id)),
)
LOCK_ROLLOUTS = _locked(_EVERY_LOCK.where(_ONE)), _locked(_EVERY_LOCK.where(_SEVERAL).order_by(_rollouts.rollout_id))
"""Locks are taken in the order of ids, so that transactions never deadlock."""
OVERDUE = _locked(sql.OVERDUE, skip=True)
_IS_QUEUED = " ".join(f"WHEN '{status}' THEN true" for status in sorted(QUEUED))
# A concurrent claim has changed a rollout's status, but this snapshot may still show its place in the queue. The status
# is tested in a form that no index supports and that the planner estimates as true for half of the rows. With
# statistics from an empty queue, the planner would otherwise start from the few queued rollouts that it expects, and
# read and sort all of them.
#
# The rollouts of one queue are selected as a range of the primary key. For a test whether the name is equal, a planner
# without statistics expects few rows, and would read and sort the whole queue.
_PLACE = tuple_(_queue.queue, _queue.position)
_LAST = literal_column(str((1 << 63) - 1), BigInteger)
_IN_QUEUE = (tuple_(_KEY, literal_column("0", BigInteger)) <= _PLACE) & (tuple_(_KEY, _LAST) >= _PLACE)
_LIMIT = bindparam("limit", type_=Integer)
HEAD = _locked(
    select(*sql.ROLLOUT)
    .join_from(schema.queue, schema.rollouts, _queue.rollout_id == _rollouts.rollout_id)
    .where(_IN_QUEUE, literal_column(f"CASE rollouts.status {_IS_QUEUED} END"))
    .order_by(_queue.queue, _queue.position)
    .limit(_LIMIT),
    skip=True,
)
HEAD_OF_QUEUE = select(_queue.rollout_id).where(_IN_QUEUE).order_by(_queue.queue, _queue.position).limit(_LIMIT)
_run, _runs = BY_KEY[RunRow]
RECORD_BY_KEY = {
    **BY_KEY,
    RunRow: (_locked(_run, schema.runs), _locked(_runs.order_by(schema.runs.c.run_id), schema.runs)),
}
"""For a writing transaction, which locks runs."""
LOCK_WORKER = select(func.pg_advisory_xact_lock(func.hashtextextended(_KEY, literal_column("1", Integer))))
"""A lock by name, since the row may not exist yet."""
_listed = func.jsonb_array_elements(cast(_KEYS, JSONB)).table_valued("value", with_ordinality="place").render_derived()
_pair = type_coerce(_listed.c.value, JSONB)
SET_COUNTER = update(schema.rollouts).where(_ONE).values(span_counter=bindparam("number", type_=BigInteger))
_names = [_pair[literal_column("0")].astext, _pair[literal_column("1")].astext]
PUSH = insert(schema.queue).inline().from_select(["rollout_id", "queue"], select(*_names).order_by(_listed.c.place))
"""Queues rollouts; each of the `keys` is a rollout id with the name of its queue."""
_positions = bindparam("positions", type_=Text)
_numbers = (
    func.jsonb_array_elements_text(cast(_positions, JSONB))
    .table_valued("value", with_ordinality="place")
    .render_derived("numbers")
)
PUSH_NUMBERED = (
    insert(schema.queue)
    .inline()
    .from_select(
        ["rollout_id", "queue", "position"],
        select(*_names, cast(_numbers.c.value, BigInteger)).join_from(
            _listed, _numbers, _listed.c.place == _numbers.c.place
        ),
    )
)
"""For a store that is a shard, which gives the positions."""
_put = insert_or_else(schema.workers).inline().values({name: bindparam(name) for name in WorkerRow.__struct_fields__})
PUT_WORKER = _put.on_conflict_do_update(
    index_elements=["worker_id"],
    set_={name: _put.excluded[name] for name in WorkerRow.__struct_fields__ if name != "worker_id"},
)
_put_numbered = _put.values(id=bindparam("id", type_=BigInteger))
PUT_NUMBERED_WORKER = _put_numbered.on_conflict_do_update(
    index_elements=["worker_id"],
    set_={name: _put_numbered.excluded[name] for name in WorkerRow.__struct_fields__ if name != "worker_id"},
)
_one_span, _several_spans = sql.STORED_SPANS
NUMBERS = (
    _one_span.add_columns(schema.spans.c.sequence_id),
    _several_spans.add_columns(schema.spans.c.sequence_id),
)
NOTIFY = select(func.pg_notify(_KEY, bindparam("payload", type_=Text)))

_SPAN_TYPES = *["text"] * 2, *["int4"] * 2, *["text"] * 4, *["float8"] * 2, "bytea"
ADD_SPANS = f"SELECT leyden_add_spans(%b::float8, {', '.join(f'%b::{name}[]' for name in _SPAN_TYPES)})"
"""Calls the function of the migrations that stores spans in the usual case, which is a transaction by itself."""
ADD_ONE_SPAN = f"SELECT leyden_add_spans(%b::float8, {', '.join(f'ARRAY[%b::{name}]' for name in _SPAN_TYPES)})"
"""The same for one span; the driver encodes the single values in half of the time."""

_TYPES: Mapping[type[TypeEngine[Any]], str] = {
    BigInteger: "int8",
    Boolean: "bool",
    Float: "float8",
    Integer: "int4",
    LargeBinary: "bytea",
    Text: "text",
}


@cache
def copy_into(table: Table, names: tuple[str, ...]) -> tuple[str, list[str]]:
    """Return a COPY statement for rows of these fields, and PostgreSQL's types of the fields."""
    types = [_TYPES[type(table.c[name].type)] for name in names]
    return f"COPY {table.name} ({', '.join(names)}) FROM STDIN (FORMAT BINARY)", types


def add_spans(now: float, rows: Sequence[SpanRow]) -> tuple[str, list[Any], list[tuple[int, int]]]:
    """Return the statement that adds spans, its parameters, and for each span the index of its attempt and its rank.

    Indexes count from 0; ranks among the spans of the same rollout count from 1.
    """
    indexes: dict[AttemptKey, int] = {}
    seen = Counter[str]()
    ranks: list[tuple[int, int]] = []
    for row in rows:
        seen[row.rollout_id] += 1
        ranks.append((indexes.setdefault((row.rollout_id, row.attempt_id), len(indexes)), seen[row.rollout_id]))
    of_attempts = [[key[n] for key in indexes] for n in (0, 1)]
    of_spans = [[index + 1 for index, _ in ranks], [rank for _, rank in ranks]]
    fields = ((r.trace_id, r.span_id, r.parent_id, r.name, r.start_time, r.end_time, r.body) for r in rows)
    columns = [*of_attempts, *of_spans, *map(list, zip(*fields, strict=True))]
    if len(rows) == 1:
        return ADD_ONE_SPAN, [now, *(value for (value,) in columns)], ranks
    return ADD_SPANS, [now, *columns], ranks

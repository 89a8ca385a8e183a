"""What PostgreSQL reads for a statement, whose plan it made while the tables were small and keeps."""

import asyncio
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from leyden.core.data.rollout import Attempt, EnqueueRollout
from leyden.core.store.postgres.database import PLANNED_SECONDS
from leyden.core.store.postgres.raw_connection import SpanConnection
from leyden.core.store.postgres.store import PostgresStore
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.store_contract.shared import span_of, taken

_ADD_ONE = (
    "SELECT leyden_add_span(extract(epoch FROM now())::float8, %s, %s, 't', 's', 'p', 'search', 1.0, 2.0, 'b'::bytea)"
)
_ADD = (
    "SELECT leyden_add_spans(extract(epoch FROM now())::float8, %s, %s, %s::int[], %s::int[], %s, %s, %s, %s,"
    " %s::float8[], %s::float8[], %s::bytea[])"
)
_READ = (
    "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables WHERE relname IN ('rollouts', 'attempts')"
)


@pytest.fixture
def line(postgres: PostgresServer, shared_database: str) -> Generator["psycopg.Connection[Any]"]:
    """A connection with the settings of an event loop's own."""
    postgres.empty(shared_database)
    connection = psycopg.connect(postgres.uri_of(shared_database), autocommit=True)
    connection.prepare_threshold = 0
    yield connection
    connection.close()


def add(line: "psycopg.Connection[Any]", attempts: Sequence[Attempt]) -> None:
    """Store a span of each."""
    count = len(attempts)
    ids = [attempt.rollout_id for attempt in attempts], [attempt.attempt_id for attempt in attempts]
    which, ranks = list(range(1, count + 1)), [1] * count
    texts = [["t"] * count, [f"s{n}" for n in range(count)], ["p"] * count, ["search"] * count]
    found = line.execute(_ADD, [*ids, which, ranks, *texts, [1.0] * count, [2.0] * count, [b"b"] * count]).fetchone()
    assert found is not None and found[0] is not None


def add_one_by_one(line: "psycopg.Connection[Any]", attempts: Sequence[Attempt]) -> None:
    """The same, a statement each."""
    for attempt in attempts:
        found = line.execute(_ADD_ONE, [attempt.rollout_id, attempt.attempt_id]).fetchone()
        assert found is not None and found[0] is not None


def rows_read(line: "psycopg.Connection[Any]") -> int:
    """Of rollouts and attempts, by this connection."""
    (count,) = line.execute(_READ).fetchone() or (None,)
    assert count is not None
    return int(count)


async def claimed(store: PostgresStore, count: int) -> list[Attempt]:
    await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(count)])
    return [rollout.attempt for rollout in await store.dequeue_many_rollouts(limit=count)]


@pytest.mark.parametrize("how", [add, add_one_by_one])
@pytest.mark.parametrize("analyzed", [None, 0, 1, 3, 8])
@pytest.mark.parametrize("words", ["ANALYZE", "VACUUM ANALYZE"])
async def test_spans_that_begin_attempts_read_of_no_others(
    postgres: PostgresServer,
    shared_database: str,
    line: "psycopg.Connection[Any]",
    how: Callable[["psycopg.Connection[Any]", Sequence[Attempt]], None],
    analyzed: int | None,
    words: str,
) -> None:
    """Whenever the server looked at the tables: it makes its plans by what it saw, and does so when it likes."""
    store = await PostgresStore.open(postgres.uri_of(shared_database))
    SpanConnection(line)  # sets it up
    line.pgconn.nonblocking = 0
    for number in range(9):  # after five, a plan is kept
        if number == analyzed:
            line.execute(words.encode())
        how(line, await claimed(store, 3))
    await claimed(store, 400)
    attempts = await claimed(store, 3)
    with line.transaction():
        before = rows_read(line)
        how(line, attempts)
        assert 3 <= rows_read(line) - before < 30
    await store.close()


# --- Whatever else comes with every rollout

MOST = 100
"""Rows that a part of a plan reads; there are thousands. The longest attempt here has 34 spans."""


@pytest.mark.parametrize("looked", ["when there is nothing", "when there is little", "when there is much"])
async def test_hot_paths_read_what_they_are_about(postgres: PostgresServer, looked: str) -> None:
    """Whenever the server looked at the tables last."""
    database = postgres.create()
    with postgres.connect(database) as connection:
        for setting in (
            SQL("session_preload_libraries = 'auto_explain'"),
            SQL("auto_explain.log_min_duration = 0"),
            SQL("auto_explain.log_analyze = on"),
            SQL("auto_explain.log_timing = off"),
            SQL("auto_explain.log_nested_statements = on"),
        ):
            connection.execute(SQL("ALTER DATABASE {} SET {}").format(Identifier(database), setting))
    store = await PostgresStore.open(postgres.uri_of(database))
    queued = [EnqueueRollout(input=n, rollout_id=f"r{n}") for n in range(1008)]
    with postgres.connect(database) as connection:
        for number in range(8):  # often enough for every statement to be prepared, and for the server to keep a plan
            if (number, looked) in {(0, "when there is nothing"), (1, "when there is little")}:
                connection.execute("VACUUM ANALYZE")
            if number == 0:
                await store.enqueue_many_rollouts(queued[:8])
            await walk(store)
        await store.enqueue_many_rollouts(queued[8:])
        connection.execute(MANY)
        if looked == "when there is much":
            connection.execute("ANALYZE")
    await asyncio.sleep(1.1 * PLANNED_SECONDS)
    before = len(postgres.log())
    for _ in range(8):
        await walk(store)
    await store.close()
    plans = [entry for entry in re.split(r"\n(?=\S)", postgres.log()[before:]) if "Query Text: " in entry]
    assert len(plans) > 300 and all(any(part in plan for plan in plans) for part in SPANS_COME)
    plan = max(plans, key=rows_of)
    assert 30 <= rows_of(plan) < MOST, plan


def rows_of(plan: str) -> int:
    """How many rows the part of a plan that read most of them gave on or left out, by all its turns."""
    most, turns = 0, 1
    for line in plan.splitlines():
        if found := re.search(r"\(actual rows=([\d.]+) loops=(\d+)\)", line):
            turns = int(found[2])
            most = max(most, round(float(found[1]) * turns))  # 1.00 since PostgreSQL 18
        elif found := re.search(r"Rows Removed by .*: (\d+)", line):
            most = max(most, int(found[1]) * turns)
    return most


SPANS_COME = ("SET status=", "array_agg((", "INSERT INTO spans (")
"""Of statements with which spans are stored: by the rules, and within the functions on the server."""
MANY = """
INSERT INTO rollouts (rollout_id, input, start_time, status, config, metadata, attempts, span_counter, deadline)
    SELECT 'o' || n, '', 1, 'succeeded', '', '', 1, 0, nullif(n % 3, 0) * 1e12 FROM generate_series(1, 20000) n;
INSERT INTO attempts (rollout_id, attempt_id, sequence_id, start_time, status, worker_id, metadata)
    SELECT 'o' || n, 'o' || n || '-a1', 1, 1, 'succeeded', 'w' || n % 3, '' FROM generate_series(1, 20000) n;
INSERT INTO spans (rollout_id, attempt_id, sequence_id, trace_id, span_id, name, start_time, body)
    SELECT 'o' || n % 20000 + 1, 'o' || n % 20000 + 1 || '-a1', n, 't', 's' || n, 'chat', 1, ''
    FROM generate_series(1, 60000) n;
"""


async def walk(store: PostgresStore) -> None:
    """All that comes with every rollout."""
    got = taken(await store.dequeue_rollout("w0"))
    await store.add_many_spans([span_of(got.attempt, f"{n:x}") for n in range(3)])
    await store.add_many_spans([span_of(got.attempt, f"a{n:x}") for n in range(30)])
    await store.add_span(span_of(got.attempt, "b"))
    await store.get_many_span_sequence_ids([(got.rollout_id, "latest"), ("r7", "latest")])
    await store.find_attempt(got.rollout_id, got.attempt.attempt_id)
    await store.query_spans(got.rollout_id, "latest")
    await store.query_spans(got.rollout_id)
    await store.query_spans(got.rollout_id, name="chat", limit=2)
    await store.update_attempt(got.rollout_id, "latest", status="succeeded")
    await store.wait_for_rollouts(rollout_ids=[got.rollout_id, "r3"], timeout=0)
    await store.query_rollouts(rollout_id_in=["r1", "r2"])
    await store.query_attempts(got.rollout_id)
    await store.update_worker("w0")

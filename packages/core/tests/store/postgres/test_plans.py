"""What PostgreSQL reads for a statement, whose plan it made while the tables were small and keeps."""

import asyncio
import re
from typing import Any

import pytest
from psycopg.sql import SQL, Identifier

from leyden.core.data.rollout import EnqueueRollout
from leyden.core.store.postgres import statements
from leyden.core.store.postgres.database import PLANNED_SECONDS
from leyden.core.store.postgres.store import PostgresStore
from leyden.core.store.sql.statements import compiled
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.store_contract.shared import span_of, taken

MOST = 100
"""Rows that a part of a plan reads; there are thousands. The longest attempt here has 34 spans."""


@pytest.mark.parametrize("looked", ["when there is nothing", "when there is little", "when there is much", "never"])
async def test_hot_paths_read_what_they_are_about(postgres: PostgresServer, looked: str) -> None:
    """Whenever the server looked at the tables last."""
    database = explained_database(postgres)
    store = await PostgresStore.open(postgres.uri_of(database))
    queued = [EnqueueRollout(input=n, rollout_id=f"r{n}", queue="mine") for n in range(1008)]
    queued += [EnqueueRollout(input=n, rollout_id=f"f{n}", queue="few") for n in range(8)]
    with postgres.connect(database) as connection:
        for number in range(8):  # often enough for every statement to be prepared, and for the server to keep a plan
            if (number, looked) in {(0, "when there is nothing"), (1, "when there is little")}:
                connection.execute("VACUUM ANALYZE")
            if number == 0:
                await store.enqueue_many_rollouts(queued[:8])
            await walk(store)
        connection.execute(MANY)
        await store.enqueue_many_rollouts(queued[8:])
        if looked == "when there is much":
            connection.execute("ANALYZE")
    await asyncio.sleep(1.1 * PLANNED_SECONDS)
    before = len(postgres.log())
    for _ in range(8):
        await walk(store)
    await store.close()
    plans = plans_of(postgres.log()[before:])
    assert len(plans) > 300 and all(any(part in plan for plan in plans) for part in SPANS_COME)
    plan = max(plans, key=rows_of)
    assert 30 <= rows_of(plan) < MOST, plan


@pytest.mark.parametrize("queue", [None, "mine"])
async def test_the_newest_rollouts_are_read_without_the_older_ones(postgres: PostgresServer, queue: str | None) -> None:
    database = explained_database(postgres)
    store = await PostgresStore.open(postgres.uri_of(database))
    with postgres.connect(database) as connection:
        connection.execute(MANY)
        await store.enqueue_many_rollouts([EnqueueRollout(input=n, queue="mine") for n in range(60)])
        connection.execute("ANALYZE")
    before = len(postgres.log())
    page = await store.query_rollouts(queue=queue, sort_by="start_time", sort_order="desc", limit=50)
    await store.close()
    assert [rollout.queue for rollout in page] == ["mine"] * 50
    (plan,) = [plan for plan in plans_of(postgres.log()[before:]) if "ORDER BY rollouts.start_time" in plan]
    assert 50 <= rows_of(plan) < MOST, plan


def explained_database(postgres: PostgresServer) -> str:
    """Return a new database whose server logs the plan of each statement."""
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
    return database


def plans_of(log: str) -> list[str]:
    """Return the plans in a part of the server's log."""
    return [entry for entry in re.split(r"\n(?=\S)", log) if "Query Text: " in entry]


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
"""Parts of statements with which spans are stored: by the rules, and within the function on the server."""
MANY = """
INSERT INTO rollouts (rollout_id, input, start_time, status, config, metadata, attempts, span_counter, deadline)
    SELECT 'o' || n, '', 1, 'succeeded', '', '', 1, 0, nullif(n % 3, 0) * 1e12 FROM generate_series(1, 20000) n;
INSERT INTO rollouts (rollout_id, input, start_time, status, config, metadata, attempts, span_counter, queue)
    SELECT 'q' || n, '', 1, 'queuing', '', '', 0, 0, 'other' FROM generate_series(1, 20000) n;
INSERT INTO queue (rollout_id, queue) SELECT 'q' || n, 'other' FROM generate_series(1, 20000) n;
INSERT INTO attempts (rollout_id, attempt_id, sequence_id, start_time, status, worker_id, metadata)
    SELECT 'o' || n, 'o' || n || '-a1', 1, 1, 'succeeded', 'w' || n % 3, '' FROM generate_series(1, 20000) n;
INSERT INTO spans (rollout_id, attempt_id, sequence_id, trace_id, span_id, name, start_time, body)
    SELECT 'o' || n % 20000 + 1, 'o' || n % 20000 + 1 || '-a1', n, 't', 's' || n, 'chat', 1, ''
    FROM generate_series(1, 60000) n;
"""


async def walk(store: PostgresStore) -> None:
    """All that comes with every rollout."""
    got = taken(await store.dequeue_rollout("w0", queue="mine"))
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
    await store.query_rollouts(rollout_id_in=["r1", "r2"], queue="mine")
    await store.query_rollouts(queue="few", limit=5)
    await store.query_attempts(got.rollout_id)
    await store.update_worker("w0")


async def test_a_claim_sorts_no_queue_of_which_the_server_knows_nothing(postgres: PostgresServer) -> None:
    database = postgres.create()
    store = await PostgresStore.open(postgres.uri_of(database))
    await store.enqueue_many_rollouts([EnqueueRollout(input=n, queue="mine") for n in range(600)])
    await store.close()
    for statement in (statements.HEAD, statements.HEAD_OF_QUEUE):
        text, wanted = compiled(statement, statements.DIALECT)
        values: dict[str, Any] = {"key": "mine", "limit": 1}
        with postgres.connect(database) as connection:
            connection.execute("SET enable_seqscan = off")  # as in a store's own sessions
            plan = connection.execute(f"EXPLAIN {text}".encode(), [values.get(name, fixed) for name, fixed in wanted])
            lines = "\n".join(line for (line,) in plan)
        assert "Index Scan using queue_pkey" in lines or "Index Only Scan using queue_pkey" in lines, lines
        assert "Sort" not in lines, lines

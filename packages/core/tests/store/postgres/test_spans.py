"""Spans of several callers in PostgreSQL: transactions that they share, special cases, and lost connections."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout, RolloutConfig
from leyden.core.data.span import Span
from leyden.core.errors import StoreError, UsageError
from leyden.core.store.postgres.database import Database
from leyden.core.store.postgres.rows import PostgresRows
from leyden.core.store.postgres.store import PostgresStore
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.store_contract.shared import claimed, span_of, taken

PATIENCE = 20.0
"""Seconds for what takes milliseconds, on a very busy machine."""


@pytest.fixture
def uri(postgres: PostgresServer, shared_database: str) -> str:
    postgres.empty(shared_database)
    return postgres.uri_of(shared_database)


@pytest.fixture
async def store(uri: str) -> AsyncGenerator[PostgresStore]:
    store = await PostgresStore.open(uri)
    yield store
    await store.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For each change of the database: `statement` for one that is a transaction by itself, else `transaction`."""
    found: list[str] = []
    begin, run_statement = PostgresRows.begin, Database.run_statement

    def noted_transaction(rows: PostgresRows) -> None:
        found.append("transaction")
        begin(rows)

    def noted_statement(database: Database, statement: str, values: Sequence[Any]) -> Any:
        found.append("statement")
        return run_statement(database, statement, values)

    monkeypatch.setattr(PostgresRows, "begin", noted_transaction)
    monkeypatch.setattr(Database, "run_statement", noted_statement)
    return found


async def names(store: PostgresStore, got: AttemptedRollout) -> list[str]:
    return [span.span_id.lstrip("0") for span in await store.query_spans(got.rollout_id)]


def taken_span(span: Span | None) -> Span:
    assert span is not None, "it was taken for one that is stored already"
    return span


async def test_the_first_span_sets_an_attempt_to_running(store: PostgresStore) -> None:
    await store.enqueue_many_rollouts([EnqueueRollout(input=n, config=RolloutConfig()) for n in range(3)])
    one, *several = await store.dequeue_many_rollouts(limit=3, worker_id="w")
    assert await store.find_attempt(one.rollout_id, one.attempt.attempt_id) is not None  # which is cached
    await store.add_span(span_of(one.attempt, "a"))
    await store.add_many_spans([span_of(got.attempt, "a") for got in several])
    found = await store.find_attempt(one.rollout_id, one.attempt.attempt_id)
    assert found is not None and (found[0].status, found[1].status) == ("running", "running")
    for got in (one, *several):
        (attempt,) = await store.query_attempts(got.rollout_id)
        assert attempt.status == "running" and attempt.last_heartbeat_time is not None
    assert {rollout.status for rollout in await store.query_rollouts()} == {"running"}
    worker = await store.get_worker_by_id("w")
    assert worker is not None and (worker.status, worker.current_rollout_id) == ("busy", several[-1].rollout_id)


async def test_spans_in_the_usual_case_take_one_statement(store: PostgresStore, sent: list[str]) -> None:
    got, other = await claimed(store), await claimed(store)
    sent.clear()
    assert taken_span(await store.add_span(span_of(got.attempt, "a"))).sequence_id == 1
    several = [span_of(got.attempt, "b"), span_of(other.attempt, "a"), span_of(got.attempt, "c")]
    assert [span.sequence_id for span in await store.add_many_spans(several)] == [2, 1, 3]
    assert sent == ["statement", "statement"]
    assert await store.add_span(span_of(got.attempt, "a")) is None
    assert sent == ["statement"] * 3 + ["transaction"]


async def test_callers_share_statements(store: PostgresStore, sent: list[str]) -> None:
    got = await claimed(store)
    sent.clear()

    async def write(name: str) -> list[int]:
        return [taken_span(await store.add_span(span_of(got.attempt, f"{name}{n}"))).sequence_id for n in range(10)]

    numbers = [number for some in await asyncio.gather(*map(write, "abcdef12")) for number in some]
    assert sorted(numbers) == list(range(1, 81))
    assert len(sent) < 60, "each of 80 spans has a statement of its own"


async def test_what_is_read_is_what_was_given(store: PostgresStore) -> None:
    got = await claimed(store)
    full = span_of(got.attempt, "a", name="Zürich 東京")
    bare = replace(span_of(got.attempt, "b"), parent_id=None, end_time=None, attributes={"n": 1, "all": ["x", ""]})
    child = replace(span_of(got.attempt, "c"), parent_id=full.span_id, attributes={"bytes": b"\x00\xff" * 400_000})
    await store.add_span(bare)
    await store.add_many_spans([full, child, replace(bare, span_id="d" * 16)])
    given = [bare, full, child, replace(bare, span_id="d" * 16)]
    assert list(await store.query_spans(got.rollout_id)) == [
        replace(span, sequence_id=1 + n) for n, span in enumerate(given)
    ]


# --- Special cases


async def test_what_is_special_is_left_to_the_rules(store: PostgresStore) -> None:
    got = await claimed(store)
    assert await store.add_span(span_of(got.attempt, "a")) is not None
    assert await store.add_span(span_of(got.attempt, "a")) is None
    assert len(await store.add_many_spans([span_of(got.attempt, name) for name in "aba"])) == 1
    assert taken_span(await store.add_span(span_of(got.attempt, "high", sequence_id=70_000))).sequence_id == 70_000
    assert taken_span(await store.add_span(span_of(got.attempt, "c"))).sequence_id == 70_001
    with pytest.raises(UsageError, match="NUL"):
        await store.add_span(span_of(got.attempt, "\x00"))
    assert taken_span(await store.add_span(span_of(got.attempt, "f", name="\ud800"))).name == "\ufffd"
    await store.update_attempt(got.rollout_id, "latest", status="succeeded")
    assert await store.add_span(span_of(got.attempt, "late")) is not None
    assert await names(store, got) == ["a", "b", "high", "c", "f", "late"]
    assert (await store.query_attempts(got.rollout_id)).items[0].status == "succeeded"


async def test_spans_of_a_queued_retry_and_of_the_attempt_before_it_move_no_more_than_they_should(
    store: PostgresStore,
) -> None:
    config = RolloutConfig(max_attempts=2, retry_condition=("failed",))
    first = await claimed(store, config)
    await store.add_span(span_of(first.attempt, "a"))
    await store.update_attempt(first.rollout_id, "latest", status="failed")
    second = taken(await store.dequeue_rollout())
    await store.add_span(span_of(first.attempt, "late"))
    (rollout,) = await store.query_rollouts(rollout_id_in=[first.rollout_id])
    assert (rollout.status, [a.status for a in await store.query_attempts(first.rollout_id)]) == (
        "preparing",
        ["failed", "preparing"],
    )
    stored = taken_span(await store.add_span(span_of(second.attempt, "a")))
    (rollout,) = await store.query_rollouts(rollout_id_in=[first.rollout_id])
    assert (stored.sequence_id, rollout.status) == (3, "running")


async def test_a_rollout_that_another_holds_keeps_no_others_waiting(store: PostgresStore, uri: str) -> None:
    free, held = await claimed(store), await claimed(store)
    with psycopg.connect(uri) as other:
        other.execute("SELECT FROM rollouts WHERE rollout_id = %s FOR UPDATE", [held.rollout_id])
        waiting = asyncio.create_task(store.add_span(span_of(held.attempt, "a")))
        async with asyncio.timeout(PATIENCE / 2):
            while not is_waiting(uri):
                await asyncio.sleep(0.01)
            for n in range(5):
                assert await store.add_span(span_of(free.attempt, f"a{n}")) is not None
        assert not waiting.done()
        other.rollback()
    assert taken_span(await waiting).sequence_id == 1


def is_waiting(uri: str) -> bool:
    """Whether a transaction waits for a lock."""
    with psycopg.connect(uri) as connection:
        question = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return connection.execute(question).fetchone() is not None


# --- Connections that are lost, and event loops that end


async def test_a_span_that_fails_while_it_is_committed_is_not_acknowledged(postgres: PostgresServer) -> None:
    database = postgres.create()
    store = await PostgresStore.open(postgres.uri_of(database))
    got = await claimed(store)
    with postgres.connect(database) as other:
        other.execute(FAIL_AT_COMMIT.encode())
    for count in (1, 3):
        with pytest.raises(StoreError, match="the disk is full"):
            await store.add_many_spans([span_of(got.attempt, f"a{n}") for n in range(count)])
    assert await names(store, got) == []
    await store.close()


FAIL_AT_COMMIT = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'the disk is full'; END $$;
CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON spans DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION fail();
"""


async def test_a_cancelled_caller_hinders_nobody(store: PostgresStore) -> None:
    got = await claimed(store)
    calls = [asyncio.create_task(store.add_span(span_of(got.attempt, f"a{n}"))) for n in range(8)]
    await asyncio.sleep(0)
    calls[3].cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(done[3], asyncio.CancelledError) and sum(isinstance(span, Span) for span in done) == 7


async def test_who_stores_while_the_store_closes_is_told_what_came_of_it(uri: str) -> None:
    store = await PostgresStore.open(uri)
    got = await claimed(store)
    calls = [asyncio.create_task(store.add_span(span_of(got.attempt, f"a{n}"))) for n in range(20)]
    await asyncio.sleep(0)
    late = asyncio.create_task(store.add_span(span_of(got.attempt, "late")))
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        await store.close()
        done = await asyncio.gather(*calls, late, return_exceptions=True)
    stored = {span.span_id.lstrip("0") for span in done if isinstance(span, Span)}
    assert all(isinstance(each, Span) or "closed" in str(each) for each in done)
    again = await PostgresStore.open(uri)
    assert stored == set(await names(again, got))
    await again.close()


def test_several_event_loops_store_at_once_and_one_closes_the_store(uri: str) -> None:
    store = asyncio.run(PostgresStore.open(uri))
    got = asyncio.run(claimed(store))
    numbers: list[int] = []

    async def write(name: str) -> None:
        for n in range(20):
            numbers.append(taken_span(await store.add_span(span_of(got.attempt, f"{name}{n}"))).sequence_id)
            await asyncio.sleep(0.005)

    threads = [threading.Thread(target=asyncio.run, args=(write(name),)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(numbers) == list(range(1, 121))
    asyncio.run(store.close())

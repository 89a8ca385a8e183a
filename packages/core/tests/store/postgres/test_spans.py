"""How spans reach PostgreSQL from an event loop: by a statement on the loop's own connection, and otherwise."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence

import psycopg
import pytest
from msgspec.structs import replace

from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout, RolloutConfig
from leyden.core.data.span import Span
from leyden.core.errors import StoreError, UsageError
from leyden.core.store.common.rows import SpanRow
from leyden.core.store.postgres.raw_connection import Answer, SpanConnection
from leyden.core.store.postgres.rows import PostgresRows
from leyden.core.store.postgres.store import PostgresStore
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.store_contract.shared import claimed, span_of, taken

PATIENCE = 20.0
"""Seconds for what takes milliseconds, on a very busy machine."""
OURS = "query LIKE '%leyden_add_span%' AND pid <> pg_backend_pid() AND datname = current_database()"
"""Which connections are event loops' own."""


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
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many spans each statement of an event loop's own connection has taken to the server."""
    counts: list[int] = []
    send = SpanConnection.send

    def noted(line: SpanConnection, rows: Sequence[SpanRow], now: float, told: Callable[[Answer], None]) -> None:
        send(line, rows, now, told)
        counts.append(len(rows))

    monkeypatch.setattr(SpanConnection, "send", noted)
    return counts


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of the thread of each transaction of several statements."""
    names: list[str] = []
    begin = PostgresRows.begin

    def noted(rows: PostgresRows) -> None:
        names.append(threading.current_thread().name)
        begin(rows)

    monkeypatch.setattr(PostgresRows, "begin", noted)
    return names


async def connect(store: PostgresStore, sent: list[int]) -> AttemptedRollout:
    """Store spans until the event loop has a connection, then forget how; returns the rollout that they are of."""
    got = await claimed(store)
    async with asyncio.timeout(PATIENCE):
        for n in range(10_000):
            if sent:
                break
            await store.add_span(span_of(got.attempt, f"dead{n}"))
            await asyncio.sleep(0.005)
    sent.clear()
    return got


async def names(store: PostgresStore, got: AttemptedRollout) -> list[str]:
    """The ids of a rollout's spans but those of `connect`."""
    ids = [span.span_id.lstrip("0") for span in await store.query_spans(got.rollout_id)]
    return [name for name in ids if not name.startswith("dead")]


# --- What goes by a statement


async def test_a_lone_callers_spans_go_by_a_statement_each_and_nothing_else(
    store: PostgresStore, sent: list[int], transactions: list[str]
) -> None:
    got = await connect(store, sent)
    transactions.clear()
    numbers = [taken_span(await store.add_span(span_of(got.attempt, f"a{n}"))).sequence_id for n in range(5)]
    assert (sent, transactions) == ([1] * 5, [])
    assert numbers == list(range(numbers[0], numbers[0] + 5))


def taken_span(span: Span | None) -> Span:
    assert span is not None, "it was taken for one that is stored already"
    return span


async def test_the_first_span_makes_an_attempt_run_as_any_other_is_stored(
    store: PostgresStore, sent: list[int], transactions: list[str]
) -> None:
    await connect(store, sent)
    await store.enqueue_many_rollouts([EnqueueRollout(input=n, config=RolloutConfig()) for n in range(3)])
    one, *several = await store.dequeue_many_rollouts(limit=3, worker_id="w")
    assert await store.find_attempt(one.rollout_id, one.attempt.attempt_id) is not None  # and remembers it
    transactions.clear()
    await store.add_span(span_of(one.attempt, "a"))
    await store.add_many_spans([span_of(got.attempt, "a") for got in several])
    assert (sent, transactions) == ([1, 2], [])
    found = await store.find_attempt(one.rollout_id, one.attempt.attempt_id)
    assert found is not None and (found[0].status, found[1].status) == ("running", "running")
    for got in (one, *several):
        (attempt,) = await store.query_attempts(got.rollout_id)
        assert attempt.status == "running" and attempt.last_heartbeat_time is not None
    assert {rollout.status for rollout in await store.query_rollouts()} == {"running"}
    worker = await store.get_worker_by_id("w")
    assert worker is not None and (worker.status, worker.current_rollout_id) == ("busy", several[-1].rollout_id)


async def test_what_is_asked_while_a_statement_is_under_way_goes_with_the_next(
    store: PostgresStore, sent: list[int]
) -> None:
    got = await connect(store, sent)

    async def write(name: str) -> list[int]:
        return [taken_span(await store.add_span(span_of(got.attempt, f"{name}{n}"))).sequence_id for n in range(10)]

    numbers = [number for some in await asyncio.gather(*map(write, "abcdef12")) for number in some]
    assert len(set(numbers)) == 80 == sum(sent)
    assert len(sent) < 40


async def test_large_spans_of_several_callers_need_not_wait_for_one_another(
    store: PostgresStore, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    got = await connect(store, sent)
    both, send = [False], SpanConnection.send
    lines: set[SpanConnection] = set()

    def noted(line: SpanConnection, rows: Sequence[SpanRow], now: float, told: Callable[[Answer], None]) -> None:
        send(line, rows, now, told)
        lines.add(line)
        both[0] |= sum(each.is_busy for each in lines) == 2

    monkeypatch.setattr(SpanConnection, "send", noted)

    async def write(name: str) -> None:
        for n in range(200):
            if both[0]:
                return
            span = span_of(got.attempt, f"{name}{n}")
            assert await store.add_span(replace(span, attributes={"text": "x" * 60_000})) is not None

    await asyncio.gather(*map(write, "abcd"))
    assert both[0] and max(sent) == 1


async def test_what_is_sent_is_what_was_given(store: PostgresStore, sent: list[int]) -> None:
    got = await connect(store, sent)
    full = span_of(got.attempt, "a", name="Zürich 東京")
    bare = replace(span_of(got.attempt, "b"), parent_id=None, end_time=None, attributes={"n": 1, "all": ["x", ""]})
    child = replace(span_of(got.attempt, "c"), parent_id=full.span_id, attributes={"bytes": b"\x00\xff" * 400_000})
    await store.add_span(bare)
    await store.add_many_spans([full, child, replace(bare, span_id="d" * 16)])
    assert sent == [1, 3]
    stored = [
        span for span in await store.query_spans(got.rollout_id) if not span.span_id.lstrip("0").startswith("dead")
    ]
    given = [bare, full, child, replace(bare, span_id="d" * 16)]
    first = stored[0].sequence_id
    assert stored == [replace(span, sequence_id=first + n) for n, span in enumerate(given)]


# --- What does not


async def test_what_is_special_is_left_to_the_rules(store: PostgresStore, sent: list[int]) -> None:
    got = await connect(store, sent)
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
    store: PostgresStore, sent: list[int]
) -> None:
    await connect(store, sent)
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


async def test_a_rollout_that_another_holds_keeps_no_others_waiting(
    store: PostgresStore, sent: list[int], uri: str
) -> None:
    free, held = await connect(store, sent), await claimed(store)
    with psycopg.connect(uri) as other:
        other.execute("SELECT FROM rollouts WHERE rollout_id = %s FOR UPDATE", [held.rollout_id])
        waiting = asyncio.create_task(store.add_span(span_of(held.attempt, "a")))
        async with asyncio.timeout(PATIENCE / 2):
            for n in range(5):
                assert await store.add_span(span_of(free.attempt, f"a{n}")) is not None
        assert not waiting.done()
        other.rollback()
    assert taken_span(await waiting).sequence_id == 1


# --- Connections that are lost, and event loops that end


async def test_a_committed_span_whose_answer_is_lost_is_found(
    uri: str, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, read = [0], SpanConnection._read  # pyright: ignore[reportPrivateUsage] (what the network does)

    def reading(line: SpanConnection) -> None:
        if lost[0] and line.is_busy:
            lost[0] -= 1
            line.close()
        else:
            read(line)

    monkeypatch.setattr(SpanConnection, "_read", reading)
    store = await PostgresStore.open(uri)
    got = await connect(store, sent)
    for count in (1, 3):
        lost[0], before = 1, len(await store.query_spans(got.rollout_id))
        stored = await store.add_many_spans([span_of(got.attempt, f"{count}{n}") for n in range(count)])
        assert lost[0] == 0
        assert [span.sequence_id for span in stored] == list(range(before + 1, before + 1 + count))
        assert len(await store.query_spans(got.rollout_id)) == before + count
        await connect_again(store, got, sent)
    await store.close()


async def test_a_span_that_fails_while_it_is_committed_is_not_acknowledged(
    postgres: PostgresServer, sent: list[int]
) -> None:
    database = postgres.create()
    store = await PostgresStore.open(postgres.uri_of(database))
    got = await connect(store, sent)
    with postgres.connect(database) as other:
        other.execute(FAIL_AT_COMMIT.encode())
    for count in (1, 3):
        with pytest.raises(StoreError, match="the disk is full"):
            await store.add_many_spans([span_of(got.attempt, f"a{n}") for n in range(count)])
    assert sent == [1, 3] and await names(store, got) == []
    await store.close()


FAIL_AT_COMMIT = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'the disk is full'; END $$;
CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON spans DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION fail();
"""


async def connect_again(store: PostgresStore, got: AttemptedRollout, sent: list[int]) -> None:
    sent.clear()
    async with asyncio.timeout(PATIENCE):
        while not sent:
            await store.add_span(span_of(got.attempt, f"dead{time.monotonic_ns()}"[-16:]))
            await asyncio.sleep(0.01)


async def test_a_connection_that_is_closed_while_nobody_uses_it_is_made_again(
    store: PostgresStore, sent: list[int], postgres: PostgresServer, shared_database: str
) -> None:
    got = await connect(store, sent)
    with postgres.connect(shared_database) as other:
        other.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}".encode())
    assert await store.add_span(span_of(got.attempt, "a")) is not None
    await connect_again(store, got, sent)
    assert "a" in await names(store, got)


async def test_a_cancelled_caller_hinders_nobody(store: PostgresStore, sent: list[int]) -> None:
    got = await connect(store, sent)
    calls = [asyncio.create_task(store.add_span(span_of(got.attempt, f"a{n}"))) for n in range(8)]
    await asyncio.sleep(0)
    calls[3].cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(done[3], asyncio.CancelledError) and sum(isinstance(span, Span) for span in done) == 7


async def test_who_stores_while_the_store_closes_is_told_what_came_of_it(uri: str, sent: list[int]) -> None:
    store = await PostgresStore.open(uri)
    got = await connect(store, sent)
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


def test_event_loops_that_end_leave_no_connection_behind(
    uri: str, sent: list[int], postgres: PostgresServer, shared_database: str
) -> None:
    store = asyncio.run(PostgresStore.open(uri))
    for _ in range(6):
        asyncio.run(connect(store, sent))
    with postgres.connect(shared_database) as other:
        question = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%leyden_add_span%' AND pid <> pg_backend_pid()"
        )
        (count,) = other.execute(question).fetchone() or (None,)
    assert count is not None and count <= 4
    asyncio.run(store.close())


def test_several_event_loops_store_at_once_and_one_closes_the_store(uri: str, sent: list[int]) -> None:
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
    assert sorted(numbers) == list(range(1, 121)) and sum(sent) > 0
    asyncio.run(store.close())

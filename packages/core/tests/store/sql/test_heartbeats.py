"""Each span is a heartbeat of its attempt: what is read, also from SQL stores that kept it with the span."""

import sqlite3
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from leyden.core.data.rollout import Attempt, AttemptedRollout, RolloutConfig
from leyden.core.store.base import LightningStore
from leyden.core.store.common.rows import SpanRow
from leyden.core.store.common.span_codec import RecentCalls
from leyden.core.store.open import open_store
from leyden.core.store.sql import migrations
from leyden.core.store.sql.rows import SqlRows
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.store_contract.shared import counts_of, span_of, taken


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return postgres.uri_of(postgres.create())


@pytest.fixture
async def store(uri: str, clock: Clock) -> AsyncGenerator[LightningStore]:
    store = await open_store(uri, clock=clock)
    yield store
    await store.close()


async def running(store: LightningStore, **config: Any) -> AttemptedRollout:
    """Claim a rollout whose attempt has stored two spans."""
    await store.enqueue_rollout(1, config=RolloutConfig(**config))
    got = taken(await store.dequeue_rollout("w"))
    for n in range(2):
        assert await store.add_span(span_of(got.attempt, f"b{n}")) is not None
    return got


async def last_heartbeat(store: LightningStore, got: AttemptedRollout) -> float | None:
    """When an attempt was heard of, as every question answers it."""
    (by_query,) = (await store.query_attempts(got.rollout_id, sort_by="last_heartbeat_time")).items
    latest = await store.get_latest_attempt(got.rollout_id)
    assert latest == by_query
    (rollout,) = (await store.query_rollouts(rollout_id_in=[got.rollout_id])).items
    assert isinstance(rollout, AttemptedRollout) and rollout.attempt == by_query
    return by_query.last_heartbeat_time


async def test_each_span_is_a_heartbeat_and_none_takes_a_later_one_back(store: LightningStore, clock: Clock) -> None:
    got = await running(store)
    for n, (now, last) in enumerate([(1001.0, 1001.0), (1005.0, 1005.0), (1003.0, 1005.0), (1004.0, 1005.0)]):
        clock.now = now
        assert await store.add_span(span_of(got.attempt, f"c{n}")) is not None
        assert await last_heartbeat(store, got) == last
    assert [span.sequence_id for span in await store.query_spans(got.rollout_id)] == [1, 2, 3, 4, 5, 6]
    clock.now = 1007.0
    assert await store.add_span(span_of(got.attempt, "low", sequence_id=2)) is not None
    assert await last_heartbeat(store, got) == 1007.0


async def test_a_heartbeat_by_hand_counts_even_where_it_is_earlier(store: LightningStore, clock: Clock) -> None:
    got = await running(store)
    clock.now = 1005.0
    await store.add_span(span_of(got.attempt, "c"))
    await store.update_attempt(got.rollout_id, "latest", last_heartbeat_time=1002.0)
    assert await last_heartbeat(store, got) == 1002.0
    await store.update_attempt(got.rollout_id, "latest", last_heartbeat_time=1009.0)
    await store.add_span(span_of(got.attempt, "d"))
    assert await last_heartbeat(store, got) == 1009.0


async def test_the_heartbeat_stays_when_the_attempt_ends_and_when_its_spans_go(
    store: LightningStore, clock: Clock
) -> None:
    ended, cancelled = await running(store), await running(store)
    clock.now = 1005.0
    for got in (ended, cancelled):
        await store.add_span(span_of(got.attempt, "c"))
    await store.update_attempt(ended.rollout_id, "latest", status="succeeded")
    await store.update_rollout(cancelled.rollout_id, status="cancelled")
    clock.now = 1006.0
    for got in (ended, cancelled):
        assert await last_heartbeat(store, got) == 1005.0
        assert await store.drop_spans(got.rollout_id) == 3
        assert await last_heartbeat(store, got) == 1005.0


async def test_an_attempt_falls_silent_only_so_long_after_its_last_span(store: LightningStore, clock: Clock) -> None:
    got = await running(store, unresponsive_seconds=5)
    for n, now in enumerate([1004.0, 1008.0, 1012.0]):
        clock.now = now
        await store.add_span(span_of(got.attempt, f"c{n}"))
    clock.now = 1016.9
    assert (await store.query_attempts(got.rollout_id)).items[0].status == "running"
    clock.now = 1017.0
    (attempt,) = (await store.query_attempts(got.rollout_id)).items
    assert (attempt.status, attempt.last_heartbeat_time) == ("unresponsive", 1012.0)
    clock.now = 1018.0
    assert await store.add_span(span_of(got.attempt, "d")) is not None
    assert await last_heartbeat(store, got) == 1018.0
    assert (await store.query_attempts(got.rollout_id)).items[0].status == "running"


async def test_spans_that_are_there_among_new_ones_leave_nothing_of_a_first_try(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    insert = SqlRows.insert_spans

    def noted(rows: SqlRows, new: Sequence[SpanRow]) -> None:
        tries.append(len(new))
        insert(rows, new)

    monkeypatch.setattr(SqlRows, "insert_spans", noted)
    store = await open_store(f"sqlite:///{tmp_path}/store.db", clock=clock)
    got = await running(store)
    before, tries[:] = await counts_of(store), []
    clock.now = 1005.0
    added = await store.add_many_spans([span_of(got.attempt, name) for name in ("b0", "b1", "b0", "c")])
    assert [(span.span_id[-1], span.sequence_id) for span in added] == [("c", 3)] and tries == [3, 1]
    clock.now = 1006.0
    assert await store.add_many_spans([span_of(got.attempt, name) for name in ("b1", "c")]) == []
    assert await last_heartbeat(store, got) == 1005.0
    assert await counts_of(store) == {**before, "total_spans": 3}
    await store.close()


# --- Stores of earlier versions


async def keeps_what_it_had(uri: str, clock: Clock, got: AttemptedRollout, last: float = 1000.0) -> None:
    store = await open_store(uri, clock=clock)
    assert await last_heartbeat(store, got) == last
    assert len(await store.query_spans(got.rollout_id)) == 2
    clock.now = 1005.0
    stored = await store.add_span(span_of(got.attempt, "after"))
    assert stored is not None and stored.sequence_id == 3
    assert await last_heartbeat(store, got) == 1005.0
    await store.close()


async def test_a_file_of_the_first_version_is_migrated(tmp_path: Path, clock: Clock) -> None:
    uri = f"sqlite:///{tmp_path}/store.db"
    store = await open_store(uri, clock=clock)
    got = await running(store)
    await store.close()
    with sqlite3.connect(tmp_path / "store.db") as older:
        older.execute("UPDATE attempts SET last_heartbeat_time = 1000")
        older.execute("PRAGMA user_version=1")
    older.close()
    await keeps_what_it_had(uri, clock, got)


@pytest.mark.parametrize(("recorded", "of_span", "last"), [(1000, 1003, 1003), (1004, 1003, 1004), (1004, None, 1004)])
async def test_a_file_in_which_spans_are_heartbeats_keeps_the_latest(
    tmp_path: Path, clock: Clock, recorded: float, of_span: float | None, last: float
) -> None:
    uri = f"sqlite:///{tmp_path}/store.db"
    store = await open_store(uri, clock=clock)
    got = await running(store)
    await store.close()
    with sqlite3.connect(tmp_path / "store.db") as older:
        older.execute("UPDATE attempts SET last_heartbeat_time = ?", [recorded])
        older.execute("ALTER TABLE spans ADD COLUMN heartbeat_time FLOAT")
        older.execute("UPDATE spans SET heartbeat_time = ? WHERE sequence_id = 2", [of_span])
        older.execute("PRAGMA user_version=7")
    older.close()
    await keeps_what_it_had(uri, clock, got, last)


FIRST = """
INSERT INTO rollouts (rollout_id, input, start_time, status, config, metadata, attempts, span_counter)
    VALUES ('r', E'\\\\x01', 1000, 'running', E'\\\\x80', E'\\\\x80', 1, 0);
INSERT INTO attempts (rollout_id, attempt_id, sequence_id, start_time, status, last_heartbeat_time, metadata)
    VALUES ('r', 'r-a1', 1, 1000, 'running', 1000, E'\\\\x80');
"""
SPAN = """
INSERT INTO spans (rollout_id, attempt_id, sequence_id, trace_id, span_id, name, start_time, body)
    VALUES ('r', 'r-a1', :number, 't', :span, 'chat', 1, :body)
"""


@pytest.mark.parametrize(("version", "of_span", "last"), [("1", None, 1000), ("7", 1003, 1003), ("7", 998, 1000)])
async def test_an_older_database_keeps_the_latest_heartbeat(
    postgres: PostgresServer, clock: Clock, version: str, of_span: float | None, last: float
) -> None:
    attempt = Attempt(rollout_id="r", attempt_id="r-a1", sequence_id=1, start_time=1000.0, status="running")
    uri = postgres.uri_of(postgres.create())
    engine = create_engine(uri.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        migrations.upgrade(connection, version)
        connection.execute(text(FIRST))
        body = RecentCalls().rows([(span_of(attempt), False)])[0].body
        for n in (1, 2):
            connection.execute(text(SPAN), {"number": n, "span": span_of(attempt, f"b{n}").span_id, "body": body})
        if of_span is not None:
            connection.execute(text("UPDATE spans SET heartbeat_time = :at WHERE sequence_id = 2"), {"at": of_span})
    engine.dispose()
    got = AttemptedRollout(rollout_id="r", input=1, start_time=1000.0, attempt=attempt)
    await keeps_what_it_had(uri, clock, got, last)

"""What a store in PostgreSQL promises beyond the contract: several writers at once, no scans, clear errors."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from leyden.core.data.rollout import EnqueueRollout, RolloutConfig
from leyden.core.errors import StoreError
from leyden.core.store.postgres import rows
from leyden.core.store.postgres.store import PostgresStore
from leyden.core.store.sql import migrations, schema
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.store_contract.shared import RETRY, claimed, queue_length, span_of, taken

PROMPT = 5.0
"""Seconds for what takes milliseconds, on a very busy machine; no store here looks for itself that soon."""


@pytest.fixture
def uri(postgres: PostgresServer, shared_database: str) -> str:
    postgres.empty(shared_database)
    return postgres.uri_of(shared_database)


@asynccontextmanager
async def two(uri: str, clock: Callable[[], float] | None = None) -> AsyncGenerator[tuple[PostgresStore, ...]]:
    """Two stores over one database, as two processes have."""
    stores = [await PostgresStore.open(uri, clock or time.time, recheck=60) for _ in range(2)]
    yield tuple(stores)
    for store in stores:
        await store.close()


async def over(
    stores: tuple[PostgresStore, ...], calls: int, call: Callable[[PostgresStore, int], Awaitable[Any]]
) -> list[Any]:
    """Make calls at once, on each store in turn."""
    return await asyncio.gather(*(call(stores[n % len(stores)], n) for n in range(calls)))


# --- Several at once


async def test_a_claim_waits_for_the_only_rollout_that_another_holds_without_claiming_it(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(uri) as (store, _):
        rollout = await store.enqueue_rollout(1)
        with psycopg.connect(uri) as other:

            def let_go(seconds: float) -> None:
                del seconds
                other.rollback()

            other.execute("SELECT FROM rollouts FOR UPDATE")
            monkeypatch.setattr(rows, "HELD_SECONDS", 0.0)
            assert await store.dequeue_rollout() is None  # who holds it may hold it for long
            monkeypatch.setattr(rows, "HELD_SECONDS", PROMPT)
            ours = SimpleNamespace(monotonic=time.monotonic, sleep=let_go)  # other threads of the process sleep, too
            monkeypatch.setattr(rows, "time", ours)
            assert taken(await store.dequeue_rollout()).rollout_id == rollout.rollout_id


async def test_each_rollout_is_claimed_once(uri: str) -> None:
    async with two(uri) as stores:
        queued = await stores[0].enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(60)])
        claims = await over(stores, 40, lambda store, n: store.dequeue_many_rollouts(limit=2, worker_id=f"w{n % 3}"))
        ids = [claim.rollout_id for some in claims for claim in some]
        assert sorted(ids) == sorted(rollout.rollout_id for rollout in queued)
        assert await queue_length(stores[1]) == 0


async def test_numbers_of_spans_are_unique_and_without_gaps(uri: str) -> None:
    async with two(uri) as stores:
        got = await claimed(stores[0])

        async def write(store: PostgresStore, n: int) -> list[int]:
            spans = await store.add_many_spans([span_of(got.attempt, f"{n:x}{m}") for m in range(1 + 3 * (n % 5))])
            return [await store.get_next_span_sequence_id(got.rollout_id, "latest"), *(s.sequence_id for s in spans)]

        numbers = [number for some in await over(stores, 40, write) for number in some]
        assert sorted(numbers) == list(range(1, len(numbers) + 1))
        page = await stores[1].query_spans(got.rollout_id)
        assert len(page) == len(numbers) - 40


async def test_a_span_that_comes_twice_at_once_is_stored_once(uri: str) -> None:
    async with two(uri) as stores:
        got = await claimed(stores[0])
        added = await over(stores, 20, lambda store, n: store.add_span(span_of(got.attempt, f"{n % 5}")))
        assert sum(span is not None for span in added) == 5 == len(await stores[0].query_spans(got.rollout_id))


async def test_rollouts_and_resources_of_one_name_are_made_once(uri: str) -> None:
    async with two(uri) as stores:
        requests = [EnqueueRollout(input=1, rollout_id=name) for name in ("b", "a")]
        await over(stores, 12, lambda store, n: store.enqueue_many_rollouts(requests[:: 1 if n % 2 else -1]))
        assert await queue_length(stores[0]) == 2
        made = await over(stores, 12, lambda store, n: store.update_resources("x", {}))
        assert sorted(update.version for update in made) == list(range(1, 13))
        (current,) = await stores[0].query_resources()
        assert current.version == 12 == (await stores[1].get_resources_by_id("x") or current).version


async def test_a_worker_that_ends_everything_at_once_is_idle(uri: str) -> None:
    async with two(uri) as stores:
        for _ in range(10):
            await stores[0].enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(2)])
            ids = [claim.rollout_id for claim in await stores[0].dequeue_many_rollouts(limit=2, worker_id="w")]
            await over(stores, 2, lambda s, n, ids=ids: s.update_attempt(ids[n], "latest", status="succeeded"))
            worker = await stores[1].get_worker_by_id("w")
            assert worker is not None and (worker.status, worker.current_rollout_id) == ("idle", None)


async def test_what_is_overdue_is_tried_again_once(uri: str) -> None:
    now = [1000.0]
    config = RolloutConfig(timeout_seconds=5, max_attempts=2, retry_condition=("timeout",))
    async with two(uri, lambda: now[0]) as stores:
        await stores[0].enqueue_many_rollouts([EnqueueRollout(input=n, config=config) for n in range(20)])
        await stores[0].dequeue_many_rollouts(limit=20)
        now[0] += 6
        await over(stores, 8, lambda store, n: store.statistics())
        assert await queue_length(stores[0]) == 20
        claims = await over(stores, 30, lambda store, n: store.dequeue_rollout())
        assert sorted(claim.attempt.sequence_id for claim in claims if claim) == [2] * 20


async def test_a_cancelled_rollout_is_cancelled_or_claimed_first(uri: str) -> None:
    async with two(uri) as stores:
        queued = await stores[0].enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(30)])

        async def either(store: PostgresStore, n: int) -> object:
            if n % 2:
                return await store.dequeue_rollout()
            return await store.update_rollout(queued[n].rollout_id, status="cancelled")

        await over(stores, 30, either)
        page = await stores[0].query_rollouts()
        assert await queue_length(stores[0]) == sum(rollout.status == "queuing" for rollout in page)
        assert {rollout.status for rollout in page} <= {"queuing", "preparing", "cancelled"}


async def test_spans_and_ends_at_once_leave_no_attempt_open(uri: str) -> None:
    async with two(uri) as stores:
        await stores[0].enqueue_many_rollouts([EnqueueRollout(input=n, config=RETRY) for n in range(10)])
        claims = await stores[0].dequeue_many_rollouts(limit=10, worker_id="w")

        async def either(store: PostgresStore, n: int) -> object:
            attempt = claims[n % 10].attempt
            if n < 20:
                return await store.add_span(span_of(attempt, f"{n:x}"))
            return await store.update_attempt(attempt.rollout_id, attempt.attempt_id, status="succeeded")

        await over(stores, 30, either)
        assert {rollout.status for rollout in await stores[1].query_rollouts()} == {"succeeded"}
        assert (await stores[1].statistics())["total_spans"] == 20


# --- Waiting


async def test_what_is_written_elsewhere_wakes_who_waits(uri: str) -> None:
    async with two(uri) as (here, there):
        waiter = asyncio.create_task(here.dequeue_many_rollouts(timeout=50))
        await asyncio.sleep(0.3)
        queued = await there.enqueue_rollout(1)
        async with asyncio.timeout(PROMPT):
            assert [claim.rollout_id for claim in await waiter] == [queued.rollout_id]
        waiting = asyncio.create_task(here.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=50))
        await asyncio.sleep(0.05)
        await there.update_attempt(queued.rollout_id, "latest", status="succeeded")
        async with asyncio.timeout(PROMPT):
            assert [rollout.status for rollout in await waiting] == ["succeeded"]


async def test_a_deadline_set_elsewhere_is_known_to_who_waits(uri: str) -> None:
    async with two(uri) as (here, there):
        queued = await there.enqueue_rollout(1, config=RolloutConfig(timeout_seconds=0.3))
        waiting = asyncio.create_task(here.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=50))
        await asyncio.sleep(0.3)
        taken(await there.dequeue_rollout())
        async with asyncio.timeout(PROMPT):
            assert [rollout.status for rollout in await waiting] == ["failed"]


async def test_more_topics_than_can_be_told_wake_everyone(uri: str) -> None:
    now, config = [1000.0], RolloutConfig(timeout_seconds=5)
    async with two(uri, lambda: now[0]) as (here, there):
        queued = await there.enqueue_many_rollouts([EnqueueRollout(input=n, config=config) for n in range(400)])
        await there.dequeue_many_rollouts(limit=400)
        ids = [rollout.rollout_id for rollout in queued]
        waiting = asyncio.create_task(here.wait_for_rollouts(rollout_ids=ids, timeout=50))
        await asyncio.sleep(0.3)
        now[0] += 6
        await there.statistics()
        async with asyncio.timeout(PROMPT):
            assert len(await waiting) == 400


async def test_what_somebody_else_tells_makes_who_waits_look(
    uri: str, postgres: PostgresServer, shared_database: str
) -> None:
    async with two(uri) as (here, there):
        waiter = asyncio.create_task(here.dequeue_many_rollouts(timeout=50))
        await asyncio.sleep(0.3)
        with postgres.connect(shared_database) as other:
            other.execute("NOTIFY leyden_store, 'not our words'")
        await asyncio.sleep(0.1)
        assert not waiter.done()
        queued = await there.enqueue_rollout(1)
        async with asyncio.timeout(PROMPT):
            assert [claim.rollout_id for claim in await waiter] == [queued.rollout_id]


async def test_who_waits_is_told_when_the_store_closes(uri: str) -> None:
    store = await PostgresStore.open(uri, recheck=60)
    waiter = asyncio.create_task(store.dequeue_many_rollouts(timeout=30))
    await asyncio.sleep(0.1)
    await store.close()
    async with asyncio.timeout(PROMPT):
        with pytest.raises(StoreError, match="closed"):
            await waiter


# --- Statements


async def test_a_span_that_cannot_be_stored_harms_no_other(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leyden.core.store.common.span_entry.storable", list)  # which refuses such an id before
    store = await PostgresStore.open(uri)
    got = await claimed(store)
    too_long_for_an_index = secrets.token_hex(10_000)
    ids = {"chat": "1", "no": too_long_for_an_index, "tool": "2"}
    spans = [span_of(got.attempt, span_id, name=name) for name, span_id in ids.items()]
    results = await asyncio.gather(*(store.add_span(span) for span in spans), return_exceptions=True)
    assert isinstance(results[1], StoreError) and "index row" in str(results[1])
    assert [span.name for span in await store.query_spans(got.rollout_id)] == ["chat", "tool"]
    await store.close()


# --- The tables


async def test_several_may_make_the_tables_at_once(postgres: PostgresServer) -> None:
    uri = postgres.uri_of(postgres.create())
    stores = await asyncio.gather(*(PostgresStore.open(uri) for _ in range(6)))
    await asyncio.gather(*(store.enqueue_rollout(n) for n, store in enumerate(stores)))
    assert await queue_length(stores[0]) == 6
    await asyncio.gather(*(store.close() for store in stores))


async def test_the_migrations_lead_to_the_tables_that_the_statements_are_for(uri: str) -> None:
    await (await PostgresStore.open(uri)).close()
    engine = create_engine(uri.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        opts: dict[str, Any] = {"version_table": migrations.TABLE, "include_object": not_for_sqlite_alone}
        context = MigrationContext.configure(connection, opts=opts)
        assert context.get_current_revision() == str(schema.VERSION) == str(migrations.version(connection))
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


def not_for_sqlite_alone(_thing: object, name: str | None, *_more: object) -> bool:
    return name not in ("attempts_of_worker", "queue_in_order")

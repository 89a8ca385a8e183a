"""A store in PostgreSQL when things go wrong: what the user gave, lost connections, a server that is killed."""

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import psycopg
import pytest
from psycopg.sql import SQL
from sqlalchemy import event

from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout
from leyden.core.data.run import Run
from leyden.core.errors import StoreError, UsageError
from leyden.core.store.open import open_store
from leyden.core.store.postgres.database import CommitUnknown, Database
from leyden.core.store.postgres.opening import parsed, prepare
from leyden.core.store.postgres.rows import PostgresRows
from leyden.core.store.postgres.store import PostgresStore
from leyden.core.store.text import check_login
from leyden.core.testing.servers import postgres_server
from leyden.core.testing.servers.postgres_server import QUOTED, PostgresServer
from leyden.core.testing.store_contract.shared import claimed, queue_length, span_of

LOSE_ONCE = """
CREATE SEQUENCE losses;
CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('losses') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
    RETURN NEW;
END $$;
"""


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.create()


@pytest.fixture(scope="module")
def mortal() -> Generator[PostgresServer]:
    """A server to be killed, which therefore waits for the disk."""
    if (reason := postgres_server.missing()) is not None:
        pytest.skip(reason)
    with PostgresServer(durable=True) as server:
        yield server


def run(server: PostgresServer, database: str, *statements: str) -> None:
    with server.connect(database) as connection:
        for statement in statements:
            connection.execute(statement.encode())


# --- What the user gave


async def refused(uri: str, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        await open_store(uri)
    error: BaseException | None = caught.value
    while error is not None:
        assert (
            QUOTED not in str(error) and "p@ss" not in str(error) and "pass" not in str(error).replace("password", "")
        )
        error = error.__cause__


async def test_uris_that_lead_nowhere_are_refused_in_one_line(postgres: PostgresServer) -> None:
    right = postgres.uri_of("postgres")
    await refused(right.replace(f":{postgres.port}/", ":1/"), "no server listens there")
    await refused(right.replace("127.0.0.1", "nowhere.invalid"), "no such host")
    await refused(right.replace(QUOTED, "wrong"), "the user or the password is wrong")
    await refused(right.replace("/postgres", "/elsewhere"), "no database elsewhere; create it")


@pytest.mark.parametrize(
    "uri",
    ["postgresql://u:pass@host:port/d", "postgresql://u:pass@host", "postgresql://"],
)
async def test_uris_that_cannot_be_read_are_refused_without_showing_a_password(uri: str) -> None:
    await refused(uri, "postgresql://HOST:PORT/DATABASE")


@pytest.mark.parametrize("scheme", ["postgresql", "redis", "rediss"])
@pytest.mark.parametrize(
    ("login", "says"),
    [
        ("u:p@ss", "write @ as %40"),
        (":p@ss/w%1", "write / as %2F and @ as %40"),
        ("u:pass/word", "write / as %2F"),
        ("u:pass#word", "write # as %23"),
        ("u:pass?word", r"write \? as %3F"),
    ],
)
async def test_a_login_that_must_be_escaped_is_refused_without_showing_it(scheme: str, login: str, says: str) -> None:
    await refused(f"{scheme}://{login}@127.0.0.1:1/0", f"^the user name or the password .* must be escaped: {says}$")


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql:///runs?host=/run/db&user=me@here",
        "postgresql://me%40here:p%2Fw@db/runs?options=-c%20a%3Db",
        "redis://:p%40ss%2Fw@cache:6379/0?namespace=a",
        "redis+unix:///run/redis.sock?db=3",
    ],
)
def test_an_escaped_login_is_accepted(uri: str) -> None:
    check_login(uri)


async def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "leyden.core.store.postgres.opening", None)
    await refused("postgresql://u:pass@host:1/d", r"pip install 'leyden-core\[postgresql\]'")


async def test_databases_that_are_no_store_are_refused(postgres: PostgresServer, database: str) -> None:
    run(postgres, database, "CREATE TABLE somebody_elses (id int)")
    await refused(postgres.uri_of(database), "not a store of Leyden; use one that is empty")
    newer = postgres.create()
    await (await open_store(postgres.uri_of(newer))).close()
    run(postgres, newer, "UPDATE leyden_version SET version_num = '99'")
    await refused(postgres.uri_of(newer), "written by a newer version of Leyden")


async def test_who_may_not_make_tables_is_told(postgres: PostgresServer, database: str) -> None:
    run(postgres, database, f"CREATE ROLE guest LOGIN PASSWORD '{postgres_server.PASSWORD}'")
    await refused(postgres.uri_of(database).replace("leyden:", "guest:"), "make it the owner of the database")


async def test_a_store_never_shows_its_password(postgres: PostgresServer, database: str) -> None:
    store = await PostgresStore.open(postgres.uri_of(database), patience=0.1)
    assert QUOTED not in repr(store) and postgres_server.PASSWORD not in repr(store) and "leyden:***@" in repr(store)
    run(postgres, database, "DROP TABLE queue")
    with pytest.raises(StoreError, match=r'leyden:\*\*\*@.*relation "queue" does not exist'):
        await store.enqueue_rollout(1)
    await store.close()


async def test_a_server_that_does_not_wait_for_its_disk_is_not_called_durable(
    postgres: PostgresServer, mortal: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    for server, durable in ((postgres, False), (mortal, True)):
        store = await open_store(server.uri_of(server.create()))
        assert store.capabilities["durable"] is durable
        await store.close()
    assert "fsync=off" in caplog.text


# --- Lost connections


async def test_a_connection_lost_before_the_end_is_no_loss(postgres: PostgresServer, database: str) -> None:
    store = await PostgresStore.open(postgres.uri_of(database))
    trigger = "CREATE TRIGGER lose AFTER INSERT ON rollouts FOR EACH ROW EXECUTE FUNCTION lose()"
    run(postgres, database, LOSE_ONCE, trigger)
    many = [EnqueueRollout(input=n) for n in range(20)]  # copied in, which ends before the transaction does
    queued = await store.enqueue_many_rollouts(many)
    assert [rollout.rollout_id for rollout in await store.query_rollouts()] == [made.rollout_id for made in queued]
    assert await queue_length(store) == 20
    await store.close()


def lose_at_commit(postgres: PostgresServer, database: str, event: str) -> None:
    """Lose the connection of the next transaction with an event such as `INSERT ON queue` while it is committed."""
    trigger = f"CREATE CONSTRAINT TRIGGER lose AFTER {event} DEFERRABLE INITIALLY DEFERRED"
    run(postgres, database, LOSE_ONCE, f"{trigger} FOR EACH ROW EXECUTE FUNCTION lose()")


async def test_a_connection_lost_while_committing_is_said_or_mended(postgres: PostgresServer, database: str) -> None:
    store = await PostgresStore.open(postgres.uri_of(database))
    lose_at_commit(postgres, database, "INSERT ON queue")
    said = False
    try:  # it is mended where the server's word that it ends this is read: then nothing is kept
        await store.enqueue_rollout(1)
    except StoreError as error:
        said = "it is unknown whether the data was stored" in str(error)
        assert said
    assert await queue_length(store) == (0 if said else 1)
    await store.close()


Call: TypeAlias = Callable[[PostgresStore, AttemptedRollout], Awaitable[Any]]
REPEATED: dict[str, Call] = {
    "INSERT ON rollouts": lambda store, _: store.enqueue_rollout(1, rollout_id="r"),
    "INSERT ON attempts": lambda store, _: store.start_rollout(1, request_id="q"),
    "UPDATE ON attempts": lambda store, got: store.update_attempt(got.rollout_id, "latest", status="succeeded"),
    "UPDATE ON rollouts": lambda store, got: store.update_rollout(got.rollout_id, metadata={"a": 1}),
    "INSERT ON resources": lambda store, _: store.add_resources({}, request_id="q"),
    "INSERT ON workers": lambda store, _: store.update_worker("new"),
    "INSERT ON runs": lambda store, _: store.add_run(Run(run_id="run", name="n")),
}
"""Calls with the same effect when they are made twice, by what they do in a table."""


@pytest.mark.parametrize("event", REPEATED)
@pytest.mark.parametrize("is_committed", [False, True])
async def test_what_may_be_made_twice_is_made_again_when_its_commit_is_lost(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch, event: str, is_committed: bool
) -> None:
    store, call = await PostgresStore.open(postgres.uri_of(database)), REPEATED[event]
    got = await claimed(store)
    if is_committed:
        lose_answers_of(monkeypatch, 1)
    else:
        lose_at_commit(postgres, database, event)
    made = await call(store, got)
    assert made == await call(store, got) or event.startswith(("UPDATE", "INSERT ON workers"))
    rollouts = 2 if event in ("INSERT ON rollouts", "INSERT ON attempts") else 1
    assert len(await store.query_rollouts()) == rollouts
    await store.close()


async def test_what_may_not_be_made_twice_is_not_made_again(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await PostgresStore.open(postgres.uri_of(database))
    rollout = await store.enqueue_rollout(1)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.start_rollout(1),
        lambda: store.enqueue_rollout(1),
        lambda: store.dequeue_rollout("w"),
        lambda: store.update_rollout(rollout.rollout_id, status="requeuing"),
        lambda: store.add_resources({}),
    ]
    for call in calls:
        lose_answers_of(monkeypatch, 1)
        with pytest.raises(CommitUnknown):
            await call()
    assert len(await store.query_rollouts()) == 3
    await store.close()


async def test_a_server_that_loses_every_commit_is_not_tried_for_ever(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await PostgresStore.open(postgres.uri_of(database))
    lose_answers_of(monkeypatch, 99)
    with pytest.raises(CommitUnknown):
        await store.update_worker("new")
    await store.close()


def lose_answers_of(monkeypatch: pytest.MonkeyPatch, commits: int) -> None:
    """Let so many transactions that write be committed, and their callers not know it."""
    commit, left = Database.run, [commits]

    def run_and_lose(self: Database, *given: Any, writes: bool) -> Any:
        done = commit(self, *given, writes=writes)
        if writes and left[0]:
            left[0] -= 1
            raise CommitUnknown("db")
        return done

    monkeypatch.setattr(Database, "run", run_and_lose)


@pytest.mark.parametrize("moment", ["AFTER INSERT", "BEFORE INSERT"])
@pytest.mark.parametrize("count", [1, 3])
async def test_a_span_whose_connection_is_lost_is_stored_once_and_said_to_be(
    postgres: PostgresServer, database: str, moment: str, count: int
) -> None:
    store = await PostgresStore.open(postgres.uri_of(database))
    got, before = await claimed(store), 2
    for n in range(before):
        assert await store.add_span(span_of(got.attempt, f"a{n}")) is not None
    deferred = "DEFERRABLE INITIALLY DEFERRED" if moment == "AFTER INSERT" else ""
    kind = "CONSTRAINT TRIGGER" if deferred else "TRIGGER"
    trigger = f"CREATE {kind} lose {moment} ON spans {deferred} FOR EACH ROW EXECUTE FUNCTION lose()"
    run(postgres, database, LOSE_ONCE, trigger)
    stored = await store.add_many_spans([span_of(got.attempt, f"c{n}") for n in range(count)])
    assert [span.sequence_id for span in stored] == list(range(before + 1, before + 1 + count))
    assert await store.add_many_spans([span_of(got.attempt, "c0")]) == []
    assert len(await store.query_spans(got.rollout_id)) == before + count
    await store.close()


async def test_who_listens_connects_again_and_looks_for_what_was_missed(
    postgres: PostgresServer, database: str
) -> None:
    here = await PostgresStore.open(postgres.uri_of(database), recheck=60)
    there = await PostgresStore.open(postgres.uri_of(database))
    waiter = asyncio.create_task(here.dequeue_many_rollouts(timeout=50))
    for _ in range(2):
        async with asyncio.timeout(20):
            while not hung_up(postgres, database):
                await asyncio.sleep(0.02)
    queued = await there.enqueue_rollout(1)
    async with asyncio.timeout(20):
        assert [claim.rollout_id for claim in await waiter] == [queued.rollout_id]
    await here.close()
    await there.close()


def hung_up(server: PostgresServer, database: str) -> bool:
    """Close the connection that listens; whether there was one."""
    with server.connect(database) as connection:
        found = connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            " AND datname = current_database()"
        )
        return found.fetchone() is not None


async def test_a_row_that_another_holds_is_waited_for(postgres: PostgresServer, database: str) -> None:
    store = await PostgresStore.open(postgres.uri_of(database))
    got = await claimed(store)
    with postgres.connect(database) as other, other.transaction():
        other.execute("SELECT FROM rollouts FOR UPDATE")
        adding = asyncio.create_task(store.add_span(span_of(got.attempt)))
        await asyncio.sleep(0.2)
        assert not adding.done() and len(await store.query_spans(got.rollout_id)) == 0
        assert await store.dequeue_rollout() is None
    assert (await adding) is not None
    await store.close()


async def test_a_row_that_is_never_let_go_is_a_store_error(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leyden.core.store.postgres.database.LOCK_SECONDS", 0.1)
    store = await PostgresStore.open(postgres.uri_of(database))
    got = await claimed(store)
    with postgres.connect(database) as other, other.transaction():
        other.execute("SELECT FROM rollouts FOR UPDATE")
        with pytest.raises(StoreError, match="lock timeout"):
            await store.update_attempt(got.rollout_id, "latest", status="succeeded")
    assert (await store.update_attempt(got.rollout_id, "latest", status="succeeded")).status == "succeeded"
    await store.close()


async def test_a_span_whose_rollout_is_never_let_go_waits_for_one_limit_only(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leyden.core.store.postgres.database.LOCK_SECONDS", 0.1)
    begun: list[PostgresRows] = []
    begin = PostgresRows.begin

    def noted(rows: PostgresRows) -> None:
        begun.append(rows)
        begin(rows)

    store = await PostgresStore.open(postgres.uri_of(database))
    got = await claimed(store)
    with postgres.connect(database) as other, other.transaction():
        other.execute("SELECT FROM rollouts FOR UPDATE")
        monkeypatch.setattr(PostgresRows, "begin", noted)
        with pytest.raises(StoreError, match="lock timeout"):
            await store.add_span(span_of(got.attempt))
        assert begun == [], "the transaction of several statements would wait for the same lock again"
    assert await store.add_span(span_of(got.attempt)) is not None
    await store.close()


async def test_two_that_wait_for_each_other_both_succeed(postgres: PostgresServer, database: str) -> None:
    run(postgres, database, "ALTER SYSTEM SET deadlock_timeout = '1s'", "SELECT pg_reload_conf()")
    store = await PostgresStore.open(postgres.uri_of(database))
    await store.enqueue_rollout(1, rollout_id="a")
    await store.enqueue_rollout(1, rollout_id="b")
    numbers: list[asyncio.Task[list[int]]] = []
    with postgres.connect(database) as other, other.transaction():
        other.execute("SET LOCAL deadlock_timeout = '60s'")  # the store's own session is the one that finds it
        other.execute("SELECT FROM rollouts WHERE rollout_id = 'b' FOR UPDATE")
        numbers.append(asyncio.create_task(store.get_many_span_sequence_ids([("a", "x"), ("b", "x")])))
        async with asyncio.timeout(20):
            while not waits(postgres, database):
                await asyncio.sleep(0.01)
        await asyncio.to_thread(other.execute, "SELECT FROM rollouts WHERE rollout_id = 'a' FOR UPDATE")
    assert await numbers[0] == [1, 1]
    run(postgres, database, "ALTER SYSTEM RESET deadlock_timeout", "SELECT pg_reload_conf()")
    await store.close()


def waits(server: PostgresServer, database: str) -> bool:
    with server.connect(database) as connection:
        words = SQL("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = {}")
        return connection.execute(words.format(database)).fetchone() is not None


# --- A server that is killed


async def test_calls_wait_for_a_server_that_comes_back(mortal: PostgresServer) -> None:
    store = await PostgresStore.open(mortal.uri_of(mortal.create()), patience=60)
    got = await claimed(store)
    await store.add_span(span_of(got.attempt, "a"))
    mortal.kill()
    calls = [asyncio.create_task(store.add_span(span_of(got.attempt, f"b{n}"))) for n in range(3)]
    reading = asyncio.create_task(store.get_rollout_by_id(got.rollout_id))
    await asyncio.sleep(0.3)
    assert not any(call.done() for call in [*calls, reading])
    await asyncio.to_thread(mortal.start)
    assert all(await asyncio.gather(*calls)) and await reading is not None
    assert sorted(s.sequence_id for s in await store.query_spans(got.rollout_id)) == [1, 2, 3, 4]
    await store.close()


async def test_calls_fail_when_the_server_stays_away(mortal: PostgresServer) -> None:
    store = await PostgresStore.open(mortal.uri_of(mortal.create()), patience=0.3)
    got = await claimed(store)
    mortal.kill()
    try:
        for call in (store.enqueue_rollout(1), store.add_span(span_of(got.attempt)), store.statistics()):
            with pytest.raises(StoreError, match=r"\*\*\*@.*onnection"):
                await call
    finally:
        await asyncio.to_thread(mortal.start)
    assert await store.add_span(span_of(got.attempt)) is not None
    assert (await store.statistics())["total_rollouts"] == 1
    await store.close()


def test_a_connection_in_use_while_others_are_lost_is_closed_when_it_comes_back(
    postgres: PostgresServer, database: str
) -> None:
    """It would be left to Python's collector, open: the pool that it came from is no more."""
    connections = Database(parsed(postgres.uri_of(database)), 2, time.time)
    drivers: list[Any] = []

    def made(driver: Any, record: Any) -> None:
        drivers.append(driver)

    event.listen(connections.engine, "connect", made)
    prepare(connections)
    lost: list[PostgresRows] = []
    is_held, was_lost = threading.Event(), threading.Event()

    def hold(rows: PostgresRows) -> None:
        is_held.set()
        assert was_lost.wait(20)

    def lose_once(rows: PostgresRows) -> None:
        if not lost:
            lost.append(rows)
            raise psycopg.OperationalError("the connection is lost")

    with ThreadPoolExecutor(1) as thread:
        held = thread.submit(connections.run, hold, lambda rows: None, writes=False)
        assert is_held.wait(20)
        connections.run(lose_once, lambda rows: None, writes=False)
        was_lost.set()
        held.result()
    connections.close()

    assert lost and len(drivers) >= 3
    assert all(driver.closed for driver in drivers)


async def test_a_server_that_is_killed_leaves_one_line_in_the_log(
    mortal: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = await PostgresStore.open(mortal.uri_of(mortal.create()), patience=0.0)
    await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(3)])
    await asyncio.gather(*(store.query_rollouts() for _ in range(4)))
    time.sleep(1.1)  # the plans of the connections are discarded by the next call, before its transaction
    mortal.kill()
    for call in (store.query_rollouts, lambda: store.update_worker("w")):
        with pytest.raises(StoreError):
            await call()
    mortal.start()
    assert len(await store.query_rollouts()) == 3
    await store.close()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []

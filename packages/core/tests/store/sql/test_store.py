"""What a SQLite store promises beyond the contract: durability, several processes, files, plans."""

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from leyden.core.data.rollout import EnqueueRollout, RolloutConfig
from leyden.core.errors import StoreError, UsageError
from leyden.core.store.open import open_store
from leyden.core.store.sql import schema
from leyden.core.store.sql.store import SqlStore
from leyden.core.testing.store_contract.shared import claimed, queue_length, span_of, taken

ACKNOWLEDGE = """
import asyncio, sys
from leyden.core.store.open import open_store
from leyden.core.testing.store_contract.shared import span_of, taken

async def write(store, n):
    rollout = await store.enqueue_rollout(n)
    print("rollout", rollout.rollout_id, flush=True)
    got = taken(await store.dequeue_rollout())
    print("attempt", got.rollout_id, got.attempt.attempt_id, flush=True)
    for m in range(5):
        await store.add_span(span_of(got.attempt, f"{n:x}0{m}"))
        print("span", got.rollout_id, f"{n:x}0{m}".zfill(16), flush=True)

async def main():
    store = await open_store(sys.argv[1])
    await asyncio.gather(*(write(store, n) for n in range(int(sys.argv[2]))))

asyncio.run(main())
"""

CLAIM = """
import asyncio, sys
from leyden.core.store.open import open_store

async def main():
    store = await open_store(sys.argv[1])
    print("open", flush=True)
    sys.stdin.readline()
    while (claims := await store.dequeue_many_rollouts(limit=3, worker_id=sys.argv[2])):
        for claim in claims:
            print(claim.rollout_id, flush=True)
            await store.update_attempt(claim.rollout_id, "latest", status="succeeded")
    await store.close()

asyncio.run(main())
"""


@contextmanager
def watched() -> Generator[list[str]]:
    """Collect the statements that SQLite runs for stores that are opened inside the block, values filled in."""
    statements: list[str] = []

    def note(connection: sqlite3.Connection, _record: object) -> None:
        connection.set_trace_callback(statements.append)

    event.listen(Engine, "connect", note)
    yield statements
    event.remove(Engine, "connect", note)


def process(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.integration
async def test_everything_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/store.db"
    writer = process(ACKNOWLEDGE, uri, "200")
    assert writer.stdout is not None
    acknowledged = [writer.stdout.readline() for _ in range(60)]
    writer.send_signal(signal.SIGKILL)
    rest = writer.stdout.read()  # `communicate` would miss what `readline` has read ahead
    writer.communicate()
    assert writer.returncode == -signal.SIGKILL
    acknowledged += [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    store = await open_store(uri)
    kinds: Counter[str] = Counter()
    for kind, rollout_id, *more in (line.split() for line in acknowledged):
        kinds[kind] += 1
        assert await store.get_rollout_by_id(rollout_id) is not None
        if kind == "attempt":
            assert [attempt.attempt_id for attempt in await store.query_attempts(rollout_id)] == more
        if kind == "span":
            assert len(await store.query_spans(rollout_id, span_id=more[0])) == 1
    assert sum(kinds.values()) >= 60 and kinds["rollout"] > 0
    assert (await store.enqueue_rollout("usable")).status == "queuing"
    await store.close()


@pytest.mark.integration
async def test_several_processes_claim_each_rollout_once(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/store.db"
    workers = [process(CLAIM, uri, f"w{n}") for n in range(3)]
    store = await open_store(uri)
    queued = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(60)])
    for worker in workers:
        assert worker.stdout is not None and worker.stdin is not None
        assert worker.stdout.readline() == "open\n"
        worker.stdin.write("go\n")
        worker.stdin.flush()
    async with asyncio.timeout(60):
        ids = [rollout.rollout_id for rollout in queued]
        finished = await store.wait_for_rollouts(rollout_ids=ids)
    claims = [line for worker in workers for line in worker.communicate()[0].splitlines()]
    assert sorted(claims) == sorted(ids) == sorted(rollout.rollout_id for rollout in finished)
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    statistics = await store.statistics()
    assert (statistics["total_attempts"], statistics["total_workers"]) == (60, 3)
    await store.close()


async def test_what_another_process_writes_is_noticed(tmp_path: Path) -> None:
    here, there = await SqlStore.open(tmp_path / "s.db", recheck=0.05), await SqlStore.open(tmp_path / "s.db")
    waiter = asyncio.create_task(here.dequeue_many_rollouts(timeout=30))
    await asyncio.sleep(0.05)
    queued = await there.enqueue_rollout(1)
    async with asyncio.timeout(20):
        assert [claim.rollout_id for claim in await waiter] == [queued.rollout_id]
    await here.close()
    await there.close()


async def test_several_may_create_the_file_at_once(tmp_path: Path) -> None:
    stores = await asyncio.gather(*(SqlStore.open(tmp_path / "store.db") for _ in range(6)))
    await asyncio.gather(*(store.enqueue_rollout(n) for n, store in enumerate(stores)))
    assert await queue_length(stores[0]) == 6
    await asyncio.gather(*(store.close() for store in stores))


async def test_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = await SqlStore.open(tmp_path / "store.db")
        await claimed(store)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        await store.close()
    finally:
        os.umask(before)
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


@pytest.mark.integration
async def test_a_process_that_opens_a_store_twice_keeps_its_locks(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    store = await open_store(f"sqlite:///{file}")
    second = await open_store(f"sqlite:///{file}")
    await second.close()
    # the last connection to close removes the log; another process is the last only if this one's locks are gone
    code = f"import sqlite3; c = sqlite3.connect({str(file)!r}); c.execute('SELECT * FROM sqlite_master'); c.close()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert file.with_name("store.db-wal").exists()
    got = await claimed(store)
    await store.close()
    again = await open_store(f"sqlite:///{file}")
    assert await again.get_rollout_by_id(got.rollout_id) is not None
    await again.close()


async def test_a_store_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = await open_store("sqlite:///run.db")
    assert store.capabilities["durable"]
    got = await claimed(store)
    stored = await store.add_span(span_of(got.attempt))
    before = await store.get_rollout_by_id(got.rollout_id)
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.statistics()
    again = await open_store(f"sqlite:///{tmp_path}/run.db")
    assert await again.get_rollout_by_id(got.rollout_id) == before
    assert list(await again.query_spans(got.rollout_id)) == [stored]
    await again.close()


async def test_a_waiting_caller_is_told_when_the_store_closes(tmp_path: Path) -> None:
    store = await SqlStore.open(tmp_path / "store.db", recheck=60)
    waiter = asyncio.create_task(store.dequeue_many_rollouts(timeout=30))
    await asyncio.sleep(0.05)
    await store.close()
    async with asyncio.timeout(20):
        with pytest.raises(StoreError, match="closed"):
            await waiter


@pytest.mark.integration
def test_sqlalchemy_is_loaded_only_by_who_opens_sqlite() -> None:
    code = """
import asyncio, sys
from leyden.core.store import open
from leyden.core.store.http import client, server
asyncio.run(open.open_store("memory://"))
assert "sqlalchemy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "uri", ["nothing", "mysql://host", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://store.db"]
)
async def test_other_uris_are_refused_with_what_is_supported(uri: str) -> None:
    with pytest.raises(UsageError, match="supported are memory://"):
        await open_store(uri)


async def test_files_that_are_no_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory"):
        await SqlStore.open(tmp_path / "missing" / "store.db")
    (tmp_path / "text.db").write_text("not a database, but long enough to have a header" * 30)
    with pytest.raises(UsageError, match="not a database"):
        await SqlStore.open(tmp_path / "text.db")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE somebody_elses (id)")
    other.close()
    with pytest.raises(UsageError, match="not a store of Leyden"):
        await SqlStore.open(tmp_path / "other.db")
    await (await SqlStore.open(tmp_path / "newer.db")).close()
    with sqlite3.connect(tmp_path / "newer.db") as newer:
        newer.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(UsageError, match="newer version of Leyden"):
        await SqlStore.open(tmp_path / "newer.db")


@pytest.mark.parametrize("version", [0, schema.VERSION, 99])
async def test_what_is_no_store_is_left_as_it_was(
    version: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program's database, or a folder, keeps its permissions, its journal and its bytes."""
    file, folder = tmp_path / "foreign.db", tmp_path / "folder"
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE somebody_elses (id)")
        other.execute(f"PRAGMA user_version={version}")
    other.close()
    folder.mkdir()
    file.chmod(0o644)
    folder.chmod(0o755)
    before = file.read_bytes()
    with pytest.raises(UsageError, match="not a store of Leyden"):
        await SqlStore.open(file)
    with pytest.raises(UsageError, match=r"cannot open the store .*/folder: it is a folder"):
        await SqlStore.open(folder)
    assert (file.read_bytes(), caplog.messages) == (before, [])
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {
        "foreign.db": 0o644,
        "folder": 0o755,
    }


async def test_a_locked_database_is_a_store_error_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leyden.core.store.sql.store._BUSY_SECONDS", 0.05)
    store = await SqlStore.open(tmp_path / "store.db")
    got = await claimed(store)
    blocker = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        await store.enqueue_rollout(1)
    with pytest.raises(StoreError, match="locked"):
        await store.add_span(span_of(got.attempt))
    assert await store.get_rollout_by_id(got.rollout_id) is not None
    blocker.execute("ROLLBACK")
    blocker.close()
    assert await store.add_span(span_of(got.attempt)) is not None
    assert (await store.statistics())["total_rollouts"] == 1
    await store.close()


async def test_concurrent_spans_share_transactions(tmp_path: Path) -> None:
    with watched() as statements:
        store = await SqlStore.open(tmp_path / "store.db")
        got = await claimed(store)
        begun = statements.count("BEGIN IMMEDIATE")
        await asyncio.gather(*(store.add_span(span_of(got.attempt, f"{n:x}")) for n in range(100)))
    assert 0 < statements.count("BEGIN IMMEDIATE") - begun < 50
    assert (await store.statistics())["total_spans"] == 100
    await store.close()


async def test_a_change_of_state_waits_for_another_process_and_is_not_lost(tmp_path: Path) -> None:
    store = await SqlStore.open(tmp_path / "store.db")
    got = await claimed(store)
    blocker = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    ending = asyncio.create_task(store.update_attempt(got.rollout_id, "latest", status="succeeded"))
    await asyncio.sleep(0)
    assert (await store.query_attempts(got.rollout_id)).items[0].status == "preparing"
    assert not ending.done()
    blocker.execute("ROLLBACK")
    blocker.close()
    assert (await ending).status == "succeeded"
    await store.close()


async def test_the_log_of_many_changes_of_state_is_brought_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leyden.core.store.sql.store._CHECKPOINT_BYTES", 4 << 20)
    store = await SqlStore.open(tmp_path / "store.db")
    got = await claimed(store)
    for n in range(2500):
        await store.update_attempt(got.rollout_id, "latest", metadata={"n": n})
    size = (tmp_path / "store.db-wal").stat().st_size
    await store.close()
    assert size < 8 << 20


async def test_a_cancelled_caller_leaves_no_half_transaction(tmp_path: Path) -> None:
    store = await SqlStore.open(tmp_path / "store.db")
    for n in range(20):
        requests = [EnqueueRollout(input=m) for m in range(50)]
        task = asyncio.create_task(store.enqueue_many_rollouts(requests))
        await asyncio.sleep(0.001 * (n % 5))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    statistics = await store.statistics()
    assert statistics["total_rollouts"] == statistics["queue_length"]
    assert statistics["total_rollouts"] % 50 == 0
    await store.close()


async def test_hot_paths_never_scan(tmp_path: Path) -> None:
    with watched() as statements:
        store = await SqlStore.open(tmp_path / "store.db")
        await store.enqueue_many_rollouts([EnqueueRollout(input=n, rollout_id=f"r{n}") for n in range(5)])
        statements.clear()
        got = taken(await store.dequeue_rollout("w"))
        await store.add_many_spans([span_of(got.attempt, f"{n:x}") for n in range(3)])
        await store.find_attempt(got.rollout_id, got.attempt.attempt_id)
        await store.query_spans(got.rollout_id, "latest")
        await store.query_spans(got.rollout_id)
        await store.update_attempt(got.rollout_id, "latest", status="succeeded")
        await store.wait_for_rollouts(rollout_ids=[got.rollout_id, "r3"], timeout=0)
        await store.query_rollouts(rollout_id_in=["r1", "r2"])
        await store.query_rollouts(queue="run", limit=2)
        await store.get_latest_resources()
    await store.close()
    plans = sqlite3.connect(tmp_path / "store.db")
    read = [sql for sql in statements if sql.startswith(("SELECT", "UPDATE", "DELETE"))]
    scans = {
        (sql, step[3])
        for sql in read
        for step in plans.execute(f"EXPLAIN QUERY PLAN {sql}")
        if step[3].startswith("SCAN") and "VIRTUAL TABLE" not in step[3] and "CONSTANT ROW" not in step[3]
    }
    plans.close()
    assert len(read) > 30 and any("last_heartbeat_time" in sql for sql in read if sql.startswith("UPDATE"))
    assert [scan for scan in scans if "ORDER BY resources.id DESC" not in scan[0]] == []


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ({"sort_by": "start_time", "sort_order": "desc"}, "SCAN rollouts USING INDEX rollouts_by_start"),
        ({"sort_by": "start_time", "sort_order": "desc", "queue": "run"}, "USING INDEX rollouts_of_queue_by_start"),
        ({"status_in": ["running"], "sort_by": "start_time"}, "USING INDEX ix_rollouts_status"),
        ({"status_in": ["preparing", "running"], "queue": "run"}, "USING INDEX ix_rollouts_status"),
    ],
)
async def test_no_query_of_the_newest_or_of_the_running_reads_all_rollouts(
    tmp_path: Path, query: dict[str, Any], index: str
) -> None:
    with watched() as statements:
        store = await SqlStore.open(tmp_path / "store.db")
        statements.clear()
        await store.query_rollouts(**query, limit=50)
    await store.close()
    (page,) = [sql for sql in statements if sql.startswith("SELECT rollouts.rollout_id") and "LIMIT 50" in sql]
    plans = sqlite3.connect(tmp_path / "store.db")
    plan = " / ".join(step[3] for step in plans.execute(f"EXPLAIN QUERY PLAN {page}"))
    plans.close()
    assert index in plan


async def test_one_queue_among_others_is_read_by_its_index(tmp_path: Path) -> None:
    with watched() as statements:
        store = await SqlStore.open(tmp_path / "store.db")
        await store.enqueue_rollout(1, rollout_id="r1", queue="run")
        statements.clear()
        await store.query_rollouts(queue="run", limit=5)
        await store.query_rollouts(queue="run", limit=5, offset=5, status_in=["queuing", "failed"])
        await store.query_rollouts(queue="run", rollout_id_in=["r1"])
        await store.dequeue_rollout(queue="run")
    await store.close()
    pages = [sql for sql in statements if "ORDER BY rollouts.id" in sql]
    (head,) = [sql for sql in statements if "ORDER BY queue.position" in sql]
    plans = sqlite3.connect(tmp_path / "store.db")
    found = [" / ".join(step[3] for step in plans.execute(f"EXPLAIN QUERY PLAN {sql}")) for sql in (*pages, head)]
    plans.close()
    first, by_status, by_id, of_head = found
    assert first == "SEARCH rollouts USING INDEX rollouts_of_queue (queue=?)"
    assert by_status.startswith("SEARCH rollouts USING INDEX rollouts_of_queue (queue=?)")
    assert "sqlite_autoindex_rollouts_1 (rollout_id=?)" in by_id
    assert of_head == "SEARCH queue USING PRIMARY KEY (queue=?)"


async def test_attempts_that_end_together_leave_their_worker_idle(tmp_path: Path) -> None:
    store = await SqlStore.open(tmp_path / "store.db")
    await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(6)])
    claimed = await store.dequeue_many_rollouts(limit=6, worker_id="w")
    ended = await asyncio.gather(
        *(store.update_attempt(one.rollout_id, one.attempt.attempt_id, status="succeeded") for one in claimed)
    )
    assert [attempt.status for attempt in ended] == ["succeeded"] * 6
    worker = await store.get_worker_by_id("w")
    assert worker is not None and (worker.status, worker.current_attempt_id) == ("idle", None)
    await store.close()


async def test_one_that_may_not_end_so_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    store = await SqlStore.open(tmp_path / "store.db")
    await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(3)])
    first, second, third = await store.dequeue_many_rollouts(limit=3, worker_id="w")
    await store.update_attempt(second.rollout_id, second.attempt.attempt_id, status="failed")

    ended = await asyncio.gather(
        *(
            store.update_attempt(one.rollout_id, one.attempt.attempt_id, status="succeeded")
            for one in (first, second, third)
        ),
        return_exceptions=True,
    )

    assert [getattr(one, "status", type(one).__name__) for one in ended] == ["succeeded", "IllegalMove", "succeeded"]
    await store.close()


async def test_an_attempt_is_looked_up_in_one_statement(tmp_path: Path) -> None:
    now = 1000.0
    limits = RolloutConfig(timeout_seconds=5, max_attempts=2, retry_condition=("timeout",))
    with watched() as statements:
        store = await SqlStore.open(tmp_path / "store.db", lambda: now, 0.0)
        await store.enqueue_many_rollouts([EnqueueRollout(input={"a": 1}, config=limits)])
        got = taken(await store.dequeue_rollout("w"))
        key = got.rollout_id, got.attempt.attempt_id
        statements.clear()
        found = await store.find_attempt(*key)
    assert found is not None and (found[0].input, found[1].status) == ({"a": 1}, "preparing")
    assert len(statements) == 1

    now = 1006.0  # what is overdue is seen to first
    assert (found := await store.find_attempt(*key)) is not None and found[1].status == "timeout"
    again = taken(await store.dequeue_rollout("w"))
    assert again.rollout_id == key[0]
    assert (found := await store.find_attempt(*key)) is not None
    assert (found[1].status, found[0].status) == ("timeout", "preparing")  # one that is not the latest
    assert await store.find_attempt(key[0], "unknown") is None
    await store.close()

"""Where spans are stored: on the caller's own thread, unless that would keep its event loop waiting."""

import asyncio
import itertools
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from leyden.core.data.rollout import Attempt, AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.errors import StoreError, UsageError
from leyden.core.store.common import group_commit, span_ingest
from leyden.core.store.common.group_commit import Answer, GroupCommit
from leyden.core.store.common.rows import Rows
from leyden.core.store.common.span_codec import RecentCalls
from leyden.core.store.common.writing_thread import WritingThread
from leyden.core.store.sql.store import SqlStore
from leyden.core.testing.store_contract.shared import claimed, span_of

HERE = threading.current_thread().name


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqlStore]:
    store = await SqlStore.open(tmp_path / "store.db")
    yield store
    await store.close()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of the thread of each transaction in which spans are stored."""
    names: list[str] = []
    add = span_ingest.add_spans

    def noted(
        rows: Rows, batches: Sequence[Sequence[Span]], latest: RecentCalls, size: int | None = None
    ) -> list[Answer]:
        names.append(threading.current_thread().name)
        return add(rows, batches, latest, size)

    monkeypatch.setattr(span_ingest, "add_spans", noted)
    return names


async def count(store: SqlStore, got: AttemptedRollout) -> int:
    return len(await store.query_spans(got.rollout_id))


async def test_a_lone_callers_spans_are_stored_on_its_own_thread(store: SqlStore, threads: list[str]) -> None:
    got = await claimed(store)
    for n in range(5):
        await store.add_span(span_of(got.attempt, f"{n:x}"))
    assert threads == [HERE] * 5
    assert await count(store, got) == 5


async def test_all_that_come_in_one_turn_share_a_transaction(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    committed: Any = getattr(SqlStore, "_committed")  # noqa: B009  (private, and patched below)

    def noted(*given: Any, **named: Any) -> Any:
        threads.append(threading.current_thread().name)
        return committed(*given, **named)

    got = await claimed(store)
    monkeypatch.setattr(SqlStore, "_committed", noted)
    await asyncio.gather(*(store.add_span(span_of(got.attempt, f"{n:x}")) for n in range(50)))
    assert threads == [HERE]
    assert await count(store, got) == 50


async def test_who_has_been_alone_does_not_wait_for_the_turn_to_end_and_a_crowd_does_again(
    store: SqlStore, threads: list[str]
) -> None:
    got = await claimed(store)
    turns = [0]

    def turn() -> None:
        turns[0] += 1
        asyncio.get_running_loop().call_soon(turn)

    turn()
    for n in range(30):
        await store.add_span(span_of(got.attempt, f"a{n:x}"))
    assert turns[0] < 30  # one each, where every caller waits for its turn to end
    threads.clear()
    for crowd in range(20):
        await asyncio.gather(*(store.add_span(span_of(got.attempt, f"{crowd + 11:x}{n:x}")) for n in range(10)))
    assert len(threads) < 20 + 30  # some callers of the first crowds were still taken to be alone
    assert await count(store, got) == 230


async def test_a_large_batch_does_not_keep_the_event_loop(store: SqlStore, threads: list[str]) -> None:
    got = await claimed(store)
    await store.add_many_spans([span_of(got.attempt, f"{n:x}") for n in range(500)])
    assert len(threads) == 1 and threads[0] != HERE
    assert await count(store, got) == 500


async def test_another_writer_is_waited_for_without_keeping_the_event_loop(store: SqlStore, tmp_path: Path) -> None:
    got = await claimed(store)
    await store.add_span(span_of(got.attempt, "1"))
    blocker = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    adding = asyncio.create_task(store.add_span(span_of(got.attempt, "2")))
    async with asyncio.timeout(20):
        await asyncio.sleep(0.1)
    assert not adding.done()
    blocker.execute("ROLLBACK")
    blocker.close()
    async with asyncio.timeout(15):
        assert await adding is not None
    assert await count(store, got) == 2


async def test_spans_never_overtake_what_was_asked_for_before(store: SqlStore) -> None:
    got = await claimed(store)
    numbers = asyncio.create_task(store.get_many_span_sequence_ids([(got.rollout_id, got.attempt.attempt_id)] * 3))
    await asyncio.sleep(0)
    stored = await store.add_span(span_of(got.attempt, "1"))
    assert await numbers == [1, 2, 3]
    assert stored is not None and stored.sequence_id == 4


async def test_the_log_of_writes_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are made though none is made on the caller's thread."""
    monkeypatch.setattr("leyden.core.store.sql.store._CHECKPOINT_BYTES", 1 << 20)
    store = await SqlStore.open(tmp_path / "store.db")
    got = await claimed(store)
    large, written, log, ids = "x" * 10_000, 0, 0, itertools.count()
    give_up = time.monotonic() + 100  # a checkpoint waits for the disk, which may be busy with other work
    while written <= 3 * log + (10 << 20) and time.monotonic() < give_up:
        for n in itertools.islice(ids, 200):
            await store.add_span(replace(span_of(got.attempt, f"{n:x}"), attributes={"text": large}))
            written += len(large)
        log = (tmp_path / "store.db-wal").stat().st_size
    assert 0 < 3 * log < written, "without checkpoints the log holds all that was written"
    await store.close()


async def test_a_wrong_span_is_refused_alone(store: SqlStore) -> None:
    got = await claimed(store)
    adding = [store.add_span(span_of(got.attempt, f"{n:x}")) for n in range(3)]
    wrong = store.add_span(replace(span_of(got.attempt, "9"), span_id="\ud800"))
    answers = await asyncio.gather(adding[0], wrong, *adding[1:], return_exceptions=True)
    assert [isinstance(answer, UsageError) for answer in answers] == [False, True, False, False]
    assert await count(store, got) == 3


async def test_several_event_loops_write_at_once(store: SqlStore) -> None:
    got = await claimed(store)

    async def write(name: int) -> None:
        for n in range(50):
            await store.add_span(span_of(got.attempt, f"{name:x}0{n:02x}"))

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, write(name)) for name in range(1, 5)))
    stored = await store.query_spans(got.rollout_id)
    assert sorted(span.sequence_id for span in stored) == list(range(1, 201))


async def test_whoever_waits_while_the_store_closes_is_told(store: SqlStore) -> None:
    got = await claimed(store)
    adding = asyncio.create_task(store.add_span(span_of(got.attempt, "1")))
    await asyncio.sleep(0)
    await store.close()
    async with asyncio.timeout(20):
        (answer,) = await asyncio.gather(adding, return_exceptions=True)
    assert isinstance(answer, Span | StoreError)


async def test_whoever_waits_is_told_also_when_a_checkpoint_is_due(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = await claimed(store)
    monkeypatch.setattr("leyden.core.store.sql.store._CHECKPOINT_BYTES", 0)
    waiting = store._spans.add([span_of(got.attempt, "1")])  # pyright: ignore[reportPrivateUsage]  # asked for in time
    await store.close()
    async with asyncio.timeout(20):
        with pytest.raises(StoreError, match="closed"):
            await waiting


def commits(submit: Callable[[Callable[[], None]], object]) -> GroupCommit:
    def store(batches: Sequence[Sequence[Span]]) -> list[Answer]:
        return [list(batch) for batch in batches]

    return GroupCommit(store, lambda _batches, _size: None, submit)


async def test_a_thread_that_is_gone_is_an_error_and_not_a_wait() -> None:
    def gone(_function: Callable[[], None]) -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    async with asyncio.timeout(20):
        with pytest.raises(StoreError, match="closed"):
            await commits(gone).add([])


async def test_a_loop_that_ended_early_leaves_nobody_waiting() -> None:
    group = commits(lambda function: function())
    ended = asyncio.new_event_loop()

    async def leave() -> None:
        # The loop stops at the end of this very turn, before it comes to what `add` called for.
        _tasks.append(asyncio.ensure_future(group.add([])))

    _tasks: list[asyncio.Future[list[Span]]] = []
    await asyncio.to_thread(ended.run_until_complete, leave())
    ended.close()
    async with asyncio.timeout(20):
        assert await group.add([]) == []


class Noting:
    """A group whose thread takes a moment for each transaction, of which the names of the spans are noted."""

    def __init__(self) -> None:
        self.transactions: list[list[str]] = []
        self.began = threading.Event()
        self.takes = 0.01
        self.thread = WritingThread()
        self.group = GroupCommit(self._store, lambda _batches, _size: None, self.thread.submit)

    def _store(self, batches: Sequence[Sequence[Span]]) -> list[Answer]:
        self.began.set()
        time.sleep(self.takes)
        self.transactions.append([span.name for batch in batches for span in batch])
        return [list(batch) for batch in batches]

    async def add(self, name: str, size: int = 0) -> None:
        attempt = Attempt(rollout_id="ro", attempt_id="at", sequence_id=1, start_time=0.0, status="running")
        await self.group.add([replace(span_of(attempt, name=name), attributes={"text": "x" * size})])


@pytest.fixture
def noting() -> Generator[Noting]:
    noting = Noting()
    yield noting
    noting.thread.shutdown()


async def test_a_crowd_that_is_whole_waits_for_nobody(noting: Noting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "_GATHER_SECONDS", 60.0)

    async def write(name: str) -> None:
        for _ in range(5):
            await noting.add(name)

    async with asyncio.timeout(20):
        await asyncio.gather(*(write(name) for name in "abcdefgh"))
    assert [sorted(names) for names in noting.transactions] == [list("abcdefgh")] * 5


async def test_a_crowd_that_came_apart_is_gathered_again(noting: Noting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "_GATHER_SECONDS", 1.0)

    noting.takes = 0.3

    async def write(name: str, is_late: bool) -> None:
        if is_late:
            await asyncio.to_thread(noting.began.wait)
        for _ in range(4):
            await noting.add(name)

    await asyncio.gather(*(write(name, is_late=name in "cd") for name in "abcd"))
    first, *others, last = [sorted(names) for names in noting.transactions]
    assert (first, others, last) == (["a", "b"], [list("abcd")] * 3, ["c", "d"])


async def test_large_spans_are_divided_among_transactions(noting: Noting) -> None:
    told: list[tuple[str, int]] = []

    async def write(name: str) -> None:
        await noting.add(name, 600_000)
        told.append((name, len(noting.transactions)))

    await asyncio.gather(*(write(name) for name in "abcde"))
    assert noting.transactions == [["a", "b"], ["c", "d"], ["e"]]
    assert told[0] == ("a", 1), "the first ones are answered before the last ones are stored"


async def test_a_span_that_is_refused_begins_no_attempt(store: SqlStore) -> None:
    first, second = await claimed(store), await claimed(store)
    bad = replace(span_of(first.attempt, "a"), span_id="\ud800")

    done = await asyncio.gather(
        store.add_span(bad), store.add_span(span_of(second.attempt, "b")), return_exceptions=True
    )

    assert isinstance(done[0], UsageError)
    found = [await store.get_latest_attempt(one.rollout_id) for one in (first, second)]
    assert [attempt.status if attempt else None for attempt in found] == ["preparing", "running"]
    beats = [attempt.last_heartbeat_time if attempt else None for attempt in found]
    assert beats[0] is None and beats[1] is not None

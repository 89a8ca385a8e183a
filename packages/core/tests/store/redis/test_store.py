"""What a store in Redis promises beyond the contract: several processes, news, lost answers, few questions."""

import asyncio
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace
from redis.exceptions import ConnectionError

from leyden.core.data.rollout import EnqueueRollout, RolloutConfig
from leyden.core.errors import StoreError
from leyden.core.store.redis import scripts
from leyden.core.store.redis.connection import PATIENCE, RedisLink
from leyden.core.store.redis.notifier import Listener
from leyden.core.store.redis.store import RedisStore
from leyden.core.testing.servers.redis_server import NO_REDIS, PROGRAM, RedisServer
from leyden.core.testing.store_contract.shared import claimed, counts_of, queue_length, span_of, taken

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=NO_REDIS)

LONG = 60.0
"""Seconds of recheck: whoever is told nothing waits past the end of its test."""
CLAIM = """
import asyncio, sys
from leyden.core.store.open import open_store

async def claim(store, name):
    while claims := await store.dequeue_many_rollouts(limit=2, worker_id=name, timeout=2):
        for claim in claims:
            print(claim.rollout_id, flush=True)
            await store.update_attempt(claim.rollout_id, "latest", status="succeeded")

async def main():
    store = await open_store(sys.argv[1])
    print("open", flush=True)
    sys.stdin.readline()
    await asyncio.gather(*(claim(store, f"{sys.argv[2]}-{n}") for n in range(2)))
    await store.close()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def redis() -> Generator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def uri(redis: RedisServer) -> str:
    return redis.uri(uuid4().hex)


@pytest.fixture
async def two(uri: str) -> AsyncGenerator[tuple[RedisStore, RedisStore]]:
    first, second = await RedisStore.open(uri, recheck=LONG), await RedisStore.open(uri, recheck=LONG)
    yield first, second
    await first.close()
    await second.close()


async def test_two_stores_agree_at_every_step(two: tuple[RedisStore, RedisStore]) -> None:
    first, second = two
    for n in range(6):
        here, there = (first, second) if n % 2 else (second, first)
        got = await claimed(here, RolloutConfig(max_attempts=2, retry_condition=("failed",)))
        await there.add_span(span_of(got.attempt, "a"))
        await here.add_span(span_of(got.attempt, "b"))
        assert await there.add_span(span_of(got.attempt, "b")) is None
        await there.update_attempt(got.rollout_id, "latest", status=("succeeded", "failed")[n % 2])
        if n % 2:
            again = taken(await here.dequeue_rollout("w"))
            await there.add_span(span_of(again.attempt, "a"))
        for store in two:
            assert [span.sequence_id for span in await store.query_spans(got.rollout_id)] == [1, 2, 3][: 2 + n % 2]
        assert await first.query_rollouts() == await second.query_rollouts()
        assert await first.query_attempts(got.rollout_id) == await second.query_attempts(got.rollout_id)
        assert await first.query_workers() == await second.query_workers()
        assert await counts_of(first) == await counts_of(second)


async def test_a_retry_that_another_store_has_queued_meanwhile_is_left_alone(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    first, second = [await RedisStore.open(uri, lambda: clock[0]) for _ in range(2)]
    config = RolloutConfig(timeout_seconds=5, unresponsive_seconds=2, max_attempts=3, retry_condition=("unresponsive",))
    got = await claimed(first, config)
    link, clock[0] = link_of(first), 1003.0
    run = link.run

    def interrupted(script: str, *arguments: bytes | str) -> Any:
        answer = run(script, *arguments)
        if (
            isinstance(arguments[-1], bytes) and b"ZRANGEBYSCORE" in arguments[-1]
        ):  # what is overdue was asked for, and is not yet read
            second._run_health_check_now()  # pyright: ignore[reportPrivateUsage] - another store's health check, just then
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(link, "run", interrupted)
        assert [rollout.status for rollout in await first.query_rollouts()] == ["requeuing"]
    clock[0] = 1006.0
    assert [rollout.status for rollout in await first.query_rollouts()] == ["requeuing"]
    assert taken(await second.dequeue_rollout()).rollout_id == got.rollout_id
    await first.close()
    await second.close()


async def test_many_spans_of_one_attempt_through_two_stores_get_a_number_each(
    two: tuple[RedisStore, RedisStore],
) -> None:
    attempt = (await claimed(two[0])).attempt
    await asyncio.gather(*(two[n % 2].add_span(span_of(attempt, f"{n:x}")) for n in range(60)))
    found = await two[0].query_spans(attempt.rollout_id)
    assert [span.sequence_id for span in found] == list(range(1, 61))
    assert await two[1].get_next_span_sequence_id(attempt.rollout_id, attempt.attempt_id) == 61


def finish_claims(uri: str, processes: int, wanted: set[str]) -> None:
    """Let processes claim everything, and hold them to what they printed."""
    command = [sys.executable, "-c", CLAIM, uri]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, f"w{n}"], **pipes) for n in range(processes)]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "open\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    claims = [line for worker in workers for line in worker.communicate()[0].splitlines()]
    assert [worker.returncode for worker in workers] == [0] * processes
    assert Counter(claims) == Counter(wanted)


async def test_processes_claim_each_rollout_once(uri: str) -> None:
    await claim_all(uri, 3, 60)


@pytest.mark.long
async def test_eight_processes_claim_a_thousand_rollouts_each(uri: str) -> None:
    await claim_all(uri, 8, 8000)


async def claim_all(uri: str, processes: int, number: int) -> None:
    store = await RedisStore.open(uri)
    queued = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(number)])
    ids = {rollout.rollout_id for rollout in queued}
    await asyncio.to_thread(finish_claims, uri, processes, ids)
    assert len(await store.wait_for_rollouts(rollout_ids=sorted(ids), timeout=0)) == number
    statistics = await store.statistics()
    assert (statistics["queue_length"], statistics["total_attempts"]) == (0, number)
    await store.close()


async def test_a_rollout_held_by_one_who_died_is_claimed_by_another(
    two: tuple[RedisStore, RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    await two[0].enqueue_rollout(1)
    link = link_of(two[0])
    with monkeypatch.context() as patched:
        patched.setattr(link, "run", dies_before("COMMIT", link))
        with pytest.raises(StoreError, match="died"):
            await two[0].dequeue_rollout()
    assert await two[1].dequeue_rollout() is None  # it is left to the other for a moment
    async with asyncio.timeout(20):
        while (got := await two[1].dequeue_rollout()) is None:
            await asyncio.sleep(0.05)
    assert got.attempt.sequence_id == 1 and await queue_length(two[0]) == 0


def link_of(store: RedisStore) -> RedisLink:
    """Return the connection that writes."""
    return store._write_link  # pyright: ignore[reportPrivateUsage] - there is no other way to lose it


def dies_before(script: str, link: RedisLink) -> Any:
    run = link.run

    def dying(text: str, *arguments: bytes | str) -> Any:
        if text == getattr(scripts, script):
            raise StoreError("the client died")
        return run(text, *arguments)

    return dying


async def test_who_waits_is_woken_by_another_store_at_once(two: tuple[RedisStore, RedisStore]) -> None:
    first, second = two
    async with asyncio.timeout(20):
        waiting = asyncio.create_task(first.dequeue_many_rollouts(timeout=LONG))
        await asyncio.sleep(0)
        rollout = await second.enqueue_rollout(1)
        (got,) = await waiting
        assert got.rollout_id == rollout.rollout_id
        finishing = asyncio.create_task(second.wait_for_rollouts(rollout_ids=[got.rollout_id]))
        await asyncio.sleep(0)
        await first.update_attempt(got.rollout_id, "latest", status="succeeded")
        assert [found.status for found in await finishing] == ["succeeded"]


async def test_a_missed_wake_up_is_made_good_by_looking_again(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore(listener: Listener, answer: object) -> None:
        del listener, answer

    monkeypatch.setattr(Listener, "_on_message", ignore)
    listening, other = await RedisStore.open(uri, recheck=0.05), await RedisStore.open(uri)
    async with asyncio.timeout(20):
        waiting = asyncio.create_task(listening.dequeue_many_rollouts(timeout=LONG))
        await asyncio.sleep(0.01)
        await other.enqueue_rollout(1)
        assert len(await waiting) == 1
    await listening.close()
    await other.close()


async def test_an_answer_that_was_lost_is_asked_for_again_and_nothing_is_done_twice(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await RedisStore.open(uri)
    attempt = (await claimed(store)).attempt
    link = link_of(store)
    call_once, run_soon, lost = link.call_once, link.run_soon, 0

    def late(*arguments: Any) -> None:
        run_soon(*arguments)
        link.drop()

    def losing(*arguments: bytes | str) -> Any:
        nonlocal lost
        answer = call_once(*arguments)
        if arguments[0] == "EVALSHA" and lost < 3:
            lost += 1
            raise ConnectionError("the answer was lost")
        return answer

    monkeypatch.setattr(link, "run_soon", late)
    monkeypatch.setattr(link, "call_once", losing)
    stored = await store.add_span(span_of(attempt, "a"))
    assert stored is not None and stored.sequence_id == 1 and lost == 3
    assert await store.get_next_span_sequence_id(attempt.rollout_id, attempt.attempt_id) == 2
    store._near_from = 0.0  # pyright: ignore[reportPrivateUsage] - it takes Redis to be far for a second now
    finished = await store.update_attempt(attempt.rollout_id, "latest", status="succeeded")
    assert finished.status == "succeeded" and await count(store) == 1
    assert (await store.statistics())["total_spans"] == 1
    await store.close()


async def test_spans_in_a_row_cost_one_question_each(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leyden.core.store.redis.store._SOON_SECONDS", 10.0)  # a busy machine answers late: asked again
    store = await RedisStore.open(uri)
    attempt = (await claimed(store)).attempt
    link = link_of(store)
    call_once, run_soon, asked = link.call_once, link.run_soon, Counter[str]()

    def counting(*arguments: bytes | str) -> Any:
        asked[str(arguments[0])] += 1
        return call_once(*arguments)

    def counting_soon(seconds: float, script: str, *arguments: bytes | str) -> Any:
        asked["EVALSHA"] += 1
        return run_soon(seconds, script, *arguments)

    await store.add_span(span_of(attempt, "a"))
    monkeypatch.setattr(link, "call_once", counting)
    monkeypatch.setattr(link, "run_soon", counting_soon)
    for n in range(10):
        await store.add_many_spans([span_of(attempt, f"{n:x}{m:x}") for m in range(5)])
    assert asked["EVALSHA"] == 10
    await store.close()


async def work_on_one(store: RedisStore) -> None:
    """Do what comes with every rollout."""
    rollout = await store.enqueue_rollout(1)
    got = taken(await store.dequeue_rollout("w"))
    await store.add_many_spans([span_of(got.attempt, f"{n:x}") for n in range(5)])
    await store.update_attempt(got.rollout_id, "latest", status="succeeded")
    await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=0)
    await store.query_spans(got.rollout_id, got.attempt.attempt_id)
    await store.query_rollouts(limit=3)
    await store.query_rollouts(status_in=["queuing", "succeeded"], limit=2)
    named = await store.enqueue_rollout(1, queue=uuid4().hex)
    await store.query_rollouts(queue=named.queue)
    await store.query_rollouts(queue=named.queue, status_in=["queuing", "succeeded"], limit=2)
    taken(await store.dequeue_rollout("w", queue=named.queue))
    await store.statistics()


async def commands_for_one(store: RedisStore) -> Counter[str]:
    """Return how often Redis ran each command meanwhile, in scripts or not."""
    link = link_of(store)
    for _ in range(3):
        await work_on_one(store)
    link.call("CONFIG", "RESETSTAT")
    await work_on_one(store)
    lines = link.call("INFO", "commandstats").decode().splitlines()
    found = (re.match(r"cmdstat_([^:]+):calls=(\d+)", line) for line in lines)
    return Counter({match[1]: int(match[2]) for match in found if match and match[1] != "info"})


async def test_the_work_on_a_rollout_asks_as_much_of_a_full_store_as_of_an_empty_one(uri: str) -> None:
    store = await RedisStore.open(uri)
    few = await commands_for_one(store)
    queued = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(300)])
    await store.enqueue_many_rollouts([EnqueueRollout(input=n, queue="other") for n in range(300)])
    for claim in await store.dequeue_many_rollouts(limit=200):
        await store.add_many_spans([span_of(claim.attempt, f"{n:x}") for n in range(3)])
    for rollout in queued[100:200]:
        await store.update_rollout(rollout.rollout_id, status="succeeded")
    many = await commands_for_one(store)
    assert few == many and not few.keys() & {"keys", "scan", "sort"}
    await store.close()


async def test_calls_fail_while_redis_is_away_and_work_when_it_is_back() -> None:
    with RedisServer() as server:
        store = await RedisStore.open(server.uri(), recheck=LONG, patience=0.3)
        got = await claimed(store)
        server.kill()
        for _ in range(2):
            with pytest.raises(StoreError, match="is Redis running there"):
                await store.add_span(span_of(got.attempt, "a"))
            with pytest.raises(StoreError, match="is Redis running there"):
                await store.statistics()
        server.start()
        assert (await store.add_span(span_of(got.attempt, "a"))) is not None
        async with asyncio.timeout(20):
            waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[got.rollout_id]))
            await asyncio.sleep(0)
            other = await RedisStore.open(server.uri())
            await other.update_attempt(got.rollout_id, "latest", status="succeeded")
            assert len(await waiting) == 1
        await other.close()
        await store.close()


class UnwrittenFile:
    """A Redis that dies once, after it answered a commit and before it wrote the commit to its file."""

    def __init__(self, server: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.deaths = server, 0
        link = link_of(store)
        (_, folder) = link.call("CONFIG", "GET", "dir")
        (self.file,) = Path(folder.decode()).glob("appendonlydir/*.incr.aof")
        self.size = self.file.stat().st_size
        for name in ("run", "run_soon", "run_behind"):
            monkeypatch.setattr(link, name, self.dying(getattr(link, name)))

    def dying(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def run_and_die(*arguments: Any) -> Any:
            answer = run(*arguments)
            if self.deaths or scripts.COMMIT not in arguments or not answer.startswith((b"done", b"wait")):
                return answer
            self.deaths += 1
            self.server.kill()
            os.truncate(self.file, self.size)
            self.server.start()
            return answer.replace(b"done", b"wait")

        return run_and_die


@pytest.mark.parametrize("size", [10, 20_000])  # sent by the event loop's thread, and before the script
async def test_a_commit_that_a_redis_had_answered_and_not_yet_written_when_it_died_is_made_again(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer() as server:
        store = await RedisStore.open(server.uri())
        attempt = (await claimed(store)).attempt
        unwritten = UnwrittenFile(server, store, monkeypatch)
        spans = [replace(span_of(attempt, name), attributes={"text": "x" * size}) for name in "ab"]
        stored = await store.add_many_spans(spans)
        rollout = await store.enqueue_rollout(2)
        await store.close()
        assert unwritten.deaths == 1
        server.kill()
        server.start()
        again = await RedisStore.open(server.uri())
        assert [span.sequence_id for span in stored] == [1, 2]
        assert list(await again.query_spans(attempt.rollout_id)) == stored
        assert await again.get_rollout_by_id(rollout.rollout_id) is not None
        await again.close()


async def test_a_rollout_that_a_redis_had_not_yet_written_when_it_died_is_queued_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with RedisServer() as server:
        store = await RedisStore.open(server.uri())
        await store.enqueue_rollout(1)
        unwritten = UnwrittenFile(server, store, monkeypatch)
        rollout = await store.enqueue_rollout(2)
        assert unwritten.deaths == 1
        assert await store.get_rollout_by_id(rollout.rollout_id) == rollout
        assert await queue_length(store) == 2
        await store.close()


async def test_a_store_that_is_closed_while_redis_is_away_closes() -> None:
    with RedisServer() as server:
        store = await RedisStore.open(server.uri())
        attempt = (await claimed(store)).attempt
        server.kill()
        calls = [store.add_span(span_of(attempt)), store.statistics(), store.enqueue_rollout(1)]
        waiting = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE / 2):
            await store.close()
        assert all(isinstance(done, StoreError) for done in await asyncio.gather(*waiting, return_exceptions=True))
    with pytest.raises(StoreError, match="closed"):
        await store.statistics()


async def test_ten_thousand_spans_at_once_and_the_same_again(two: tuple[RedisStore, RedisStore]) -> None:
    attempt = (await claimed(two[0])).attempt
    batch = [span_of(attempt, f"{n:x}") for n in range(10_000)]
    assert len(await two[0].add_many_spans(batch)) == 10_000
    assert await two[1].add_many_spans(batch) == await two[0].add_many_spans(batch) == []
    assert (await two[1].query_spans(attempt.rollout_id, limit=1, offset=9_999)).items[0].sequence_id == 10_000


async def test_what_cannot_be_sent_is_refused_and_keeps_nobody_waiting(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leyden.core.store.common.span_entry.storable", list)  # which refuses such text before
    store = await RedisStore.open(uri)
    attempt = (await claimed(store)).attempt
    async with asyncio.timeout(20):
        for _ in range(2):
            calls = [store.add_span(span_of(attempt, "a")), store.add_span(span_of(attempt, "\ud800"))]
            good, bad = await asyncio.gather(*calls, return_exceptions=True)
            assert not isinstance(good, BaseException) and isinstance(bad, ValueError)
    assert await count(store) == 1
    await store.close()


async def test_an_unknown_order_of_numbers_and_pages_of_spans(uri: str) -> None:
    store = await RedisStore.open(uri)
    attempt = (await claimed(store)).attempt
    for n in (1, 2, 2, 3):
        await store.add_span(span_of(attempt, f"{n}{await count(store)}", n))
    assert [span.sequence_id for span in await store.query_spans(attempt.rollout_id, limit=2, offset=1)] == [2, 2]
    await store.add_span(span_of(attempt, "f", 1))
    page = await store.query_spans(attempt.rollout_id, limit=2, offset=1)
    assert ([span.span_id[-1] for span in page], page.total) == (["f", "1"], 5)
    await store.close()


async def count(store: RedisStore) -> int:
    return (await store.statistics())["total_spans"]

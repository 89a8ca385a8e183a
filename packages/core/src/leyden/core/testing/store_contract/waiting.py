"""Store contract, waiting: for rollouts and for work, without polling, also from other event loops and threads."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from leyden.core.data.rollout import EnqueueRollout, RolloutConfig
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_contract.shared import MISSING, RETRY, StoreTests, claimed, span_of, taken

PROMPT = 3.0
"""Seconds within which a waiting caller is notified on a very busy machine; no store's `recheck` may be shorter."""


class WaitingTests(StoreTests):
    """Waiting callers are notified at once, and only of real changes."""

    async def test_a_timeout_of_zero_looks_once(self, store: LightningStore) -> None:
        done, running = await claimed(store), await claimed(store)
        await store.update_attempt(done.rollout_id, "latest", status="succeeded")
        ids = [running.rollout_id, done.rollout_id, MISSING, done.rollout_id]
        (only,) = await store.wait_for_rollouts(rollout_ids=ids, timeout=0)
        assert only == await store.get_rollout_by_id(done.rollout_id)

    async def test_a_finite_wait_returns_what_is_finished(self, store: LightningStore) -> None:
        done, running = await claimed(store), await claimed(store)
        await store.update_attempt(done.rollout_id, "latest", status="failed")
        began = time.monotonic()
        found = await store.wait_for_rollouts(rollout_ids=[running.rollout_id, done.rollout_id], timeout=0.1)
        assert [rollout.rollout_id for rollout in found] == [done.rollout_id]
        assert 0.09 <= time.monotonic() - began < 0.1 + PROMPT

    async def test_finished_and_unknown_rollouts_are_not_waited_for(self, store: LightningStore) -> None:
        done = await claimed(store)
        await store.update_attempt(done.rollout_id, "latest", status="succeeded")
        async with asyncio.timeout(PROMPT):
            found = await store.wait_for_rollouts(rollout_ids=[done.rollout_id, MISSING])
            assert [rollout.rollout_id for rollout in found] == [done.rollout_id]
            assert await store.wait_for_rollouts(rollout_ids=[]) == []

    async def test_every_waiter_is_told_at_once_and_in_the_order_asked(self, store: LightningStore) -> None:
        first, second = await claimed(store), await claimed(store)
        ids = [second.rollout_id, first.rollout_id]
        waiters = [asyncio.create_task(store.wait_for_rollouts(rollout_ids=ids, timeout=20)) for _ in range(5)]
        await asyncio.sleep(0.05)
        await store.update_attempt(first.rollout_id, "latest", status="succeeded")
        await asyncio.sleep(0.05)
        assert not any(waiter.done() for waiter in waiters)
        await store.update_attempt(second.rollout_id, "latest", status="failed")
        async with asyncio.timeout(PROMPT):
            answers = await asyncio.gather(*waiters)
        for answer in answers:
            assert [rollout.rollout_id for rollout in answer] == ids

    async def test_requeuing_ends_no_wait(self, store: LightningStore) -> None:
        got = await claimed(store, RETRY)
        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[got.rollout_id]))
        await asyncio.sleep(0.02)
        await store.update_attempt(got.rollout_id, "latest", status="failed")
        await asyncio.sleep(0.05)
        assert not waiter.done()
        taken(await store.dequeue_rollout())
        await store.update_attempt(got.rollout_id, "latest", status="succeeded")
        async with asyncio.timeout(PROMPT):
            assert [rollout.status for rollout in await waiter] == ["succeeded"]

    async def test_a_wait_can_be_cancelled(self, store: LightningStore) -> None:
        got = await claimed(store)
        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[got.rollout_id]))
        await asyncio.sleep(0.05)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert (await store.statistics())["total_rollouts"] == 1

    async def test_a_wait_ends_when_the_attempt_times_out(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout(1, config=RolloutConfig(timeout_seconds=0.3))
        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=20))
        await asyncio.sleep(0.05)
        taken(await store.dequeue_rollout())
        async with asyncio.timeout(0.3 + PROMPT):
            assert [rollout.status for rollout in await waiter] == ["failed"]

    async def test_work_is_waited_for_and_claimed_at_once(self, store: LightningStore) -> None:
        waiters = [asyncio.create_task(store.dequeue_many_rollouts(limit=2, timeout=20)) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert not any(waiter.done() for waiter in waiters)
        queued = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(4)])
        async with asyncio.timeout(PROMPT):
            claimed_by_waiter = [await waiter for waiter in waiters]
        assert all(claimed_by_waiter)
        # Shards receive their parts one after the other, so a waiter may return before the last part is queued.
        rest = await store.dequeue_many_rollouts(limit=4)
        claims = [claim.rollout_id for claims in [*claimed_by_waiter, rest] for claim in claims]
        assert sorted(claims) == sorted(rollout.rollout_id for rollout in queued)

    async def test_a_retry_that_falls_due_is_work(self, store: LightningStore) -> None:
        config = RolloutConfig(timeout_seconds=0.2, max_attempts=2, retry_condition=("timeout",))
        got = await claimed(store, config)
        async with asyncio.timeout(0.2 + PROMPT):
            (retry,) = await store.dequeue_many_rollouts(timeout=20)
        assert (retry.rollout_id, retry.attempt.sequence_id) == (got.rollout_id, 2)

    async def test_waiting_for_work_ends_empty(self, store: LightningStore) -> None:
        began = time.monotonic()
        assert await store.dequeue_many_rollouts(timeout=0.1) == []
        assert 0.09 <= time.monotonic() - began < 0.1 + PROMPT

    async def test_who_stops_waiting_for_work_takes_none(self, store: LightningStore) -> None:
        waiter = asyncio.create_task(store.dequeue_many_rollouts(timeout=20))
        await asyncio.sleep(0.1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await asyncio.sleep(0.1)
        queued = await store.enqueue_rollout(1)
        await asyncio.sleep(0.05)
        assert taken(await store.dequeue_rollout()).rollout_id == queued.rollout_id

    async def test_loops_in_other_threads_may_write_and_wait_at_once(self, store: LightningStore) -> None:
        got = await claimed(store)

        async def write(n: int) -> int:
            await store.add_many_spans([span_of(got.attempt, f"{n}{m}") for m in range(5)])
            await store.enqueue_rollout(n)
            return len(await store.wait_for_rollouts(rollout_ids=[got.rollout_id], timeout=20))

        threads = [asyncio.create_task(_in_another_loop(lambda n=n: write(n))) for n in range(10)]
        async with asyncio.timeout(20):
            while (await store.statistics())["queue_length"] < 10:
                await asyncio.sleep(0.01)
            await store.update_attempt(got.rollout_id, "latest", status="succeeded")
            assert await asyncio.gather(*threads) == [1] * 10
        page = await store.query_spans(got.rollout_id)
        assert [span.sequence_id for span in page] == list(range(1, 51))


async def _in_another_loop(work: Callable[[], Awaitable[int]]) -> int:
    """Run `work` on a new event loop in a new thread."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    results: list[int] = []

    async def body() -> None:
        results.append(await work())

    def run() -> None:
        try:
            asyncio.run(body())
        finally:
            loop.call_soon_threadsafe(done.set)

    thread = threading.Thread(target=run)
    thread.start()
    await done.wait()
    thread.join()
    (result,) = results
    return result

"""The memory store's budget, and whom it wakes."""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

import pytest
from msgspec.structs import replace

from leyden.core.data.rollout import AttemptedRollout
from leyden.core.errors import UsageError
from leyden.core.store.common.rows import Rows
from leyden.core.store.memory import MemoryStore
from leyden.core.store.open import open_store
from leyden.core.testing.store_contract.conversations import conversation
from leyden.core.testing.store_contract.shared import claimed, span_of

T = TypeVar("T")

LARGE = {"text": "x" * 10_000}


async def filled(store: MemoryStore, number: int = 0) -> AttemptedRollout:
    """A rollout with ten spans of about ten thousand bytes."""
    got = await claimed(store)
    for n in range(10):
        await store.add_span(replace(span_of(got.attempt, f"{number:x}0{n:x}"), attributes=LARGE))
    return got


async def finish(store: MemoryStore, got: AttemptedRollout) -> None:
    await store.update_attempt(got.rollout_id, got.attempt.attempt_id, status="succeeded")


async def test_beyond_the_budget_whole_finished_attempts_go_oldest_first(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore(budget=1_000_000)
    running = await filled(store)
    finished: list[AttemptedRollout] = []
    with caplog.at_level(logging.WARNING):
        for number in range(1, 31):
            finished.append(await filled(store, number))
            await finish(store, finished[-1])
            assert (await store.statistics())["span_bytes"] < 1_100_000
    left = [len(await store.query_spans(got.rollout_id)) for got in finished]
    assert sorted(set(left)) == [0, 10] == [left[0], left[-1]]
    assert left == sorted(left)
    assert len(await store.query_spans(running.rollout_id)) == 10
    statistics = await store.statistics()
    assert (statistics["evicted_attempts"], statistics["evicted_spans"]) == (left.count(0), 10 * left.count(0))
    assert statistics["total_spans"] == 10 + sum(left)
    assert statistics["total_rollouts"] == 31
    assert [record.message for record in caplog.records] == [
        "the store's budget of 1000000 bytes is used up: spans of finished attempts are dropped"
    ]


async def test_attempts_under_way_keep_their_spans_whatever_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore(budget=300_000)
    got = [await filled(store, number) for number in range(5)]
    assert [len(await store.query_spans(one.rollout_id)) for one in got] == [10] * 5
    assert "more than the store's budget" in caplog.text
    await finish(store, got[3])
    await filled(store, 6)
    assert [len(await store.query_spans(one.rollout_id)) for one in got] == [10, 10, 10, 0, 10]


async def test_a_late_call_of_an_attempt_whose_spans_went_is_whole() -> None:
    store = MemoryStore(budget=110_000)
    got = await claimed(store)
    written = conversation(got.attempt, 4)
    for span in written[:3]:
        await store.add_span(span)
    await finish(store, got)
    await filled(store)
    assert len(await store.query_spans(got.rollout_id)) == 0
    await store.add_span(written[3])
    [late] = await store.query_spans(got.rollout_id)
    assert late.attributes == written[3].attributes


async def test_a_budget_by_uri() -> None:
    store = await open_store("memory://?budget=100000")
    assert isinstance(store, MemoryStore)
    for number in range(3):
        await finish(store, await filled(store, number))
    assert (await store.statistics())["evicted_attempts"] > 0


@pytest.mark.parametrize("rest", ["?budget=lots", "?budget=0", "?size=3", "name"])
async def test_other_words_after_memory_are_refused(rest: str) -> None:
    with pytest.raises(UsageError, match="BYTES"):
        await open_store(f"memory://{rest}")


async def test_a_waiting_claim_is_not_woken_by_another_queue() -> None:
    class Watched(MemoryStore):
        looks = 0

        async def _read(self, work: Callable[[Rows], T], *, small: bool = False) -> T:
            self.looks += 1
            return await super()._read(work, small=small)

    store = Watched()
    waiter = asyncio.create_task(store.dequeue_many_rollouts(timeout=20, queue="a"))
    await asyncio.sleep(0.01)
    before = store.looks
    for n in range(5):
        await store.enqueue_rollout(n, queue="b")
        await store.enqueue_rollout(n)
        await asyncio.sleep(0)
    assert store.looks == before and not waiter.done()
    queued = await store.enqueue_rollout(1, queue="a")
    async with asyncio.timeout(5):
        assert [claim.rollout_id for claim in await waiter] == [queued.rollout_id]


async def test_dropped_spans_count_no_more() -> None:
    store = MemoryStore(budget=100_000)
    for number in range(30):
        got = await filled(store, number)
        await finish(store, got)
        await store.drop_spans(got.rollout_id)
    statistics = await store.statistics()
    assert (statistics["total_spans"], statistics["span_bytes"], statistics["evicted_spans"]) == (0, 0, 0)
    await store.close()

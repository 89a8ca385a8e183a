"""Store contract, queue: the order of the queue, and claims."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio

import pytest

from leyden.core.data.rollout import EnqueueRollout, RolloutConfig
from leyden.core.errors import UsageError
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_contract.shared import RETRY, StoreTests, claimed, queue_length, taken


class QueueTests(StoreTests):
    """First in, first out; each rollout is claimed by one caller."""

    async def test_first_in_first_out(self, store: LightningStore) -> None:
        ids = [(await store.enqueue_rollout(n)).rollout_id for n in range(3)]
        ids += [rollout.rollout_id for rollout in await store.enqueue_many_rollouts([EnqueueRollout(input=3)] * 2)]
        claims = [*(await store.dequeue_many_rollouts(limit=2)), taken(await store.dequeue_rollout())]
        claims += await store.dequeue_many_rollouts(limit=10)
        assert [claim.rollout_id for claim in claims] == ids
        assert await store.dequeue_rollout() is None
        assert await store.dequeue_many_rollouts(limit=3) == []

    async def test_a_retry_waits_behind_what_was_queued_before_it(self, store: LightningStore) -> None:
        retried = await claimed(store, RETRY)
        other = await store.enqueue_rollout("other")
        await store.update_attempt(retried.rollout_id, "latest", status="failed")
        assert taken(await store.dequeue_rollout()).rollout_id == other.rollout_id
        assert taken(await store.dequeue_rollout()).rollout_id == retried.rollout_id

    @pytest.mark.parametrize("limit", [0, -1])
    async def test_nothing_is_claimed_without_a_limit(self, store: LightningStore, limit: int) -> None:
        await store.enqueue_rollout(1)
        assert await store.dequeue_many_rollouts(limit=limit, timeout=5) == []
        assert await queue_length(store) == 1

    async def test_what_left_the_queue_by_hand_is_skipped(self, store: LightningStore) -> None:
        ids = [(await store.enqueue_rollout(n)).rollout_id for n in range(4)]
        for rollout_id, status in zip(ids, ("running", "failed", "succeeded"), strict=False):
            await store.update_rollout(rollout_id, status=status)
        assert taken(await store.dequeue_rollout()).rollout_id == ids[3]
        assert await store.dequeue_rollout() is None

    async def test_concurrent_claims_are_all_different(self, store: LightningStore) -> None:
        queued = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(20)])
        claims = await asyncio.gather(*(store.dequeue_rollout(f"w{n}") for n in range(30)))
        ids = [claim.rollout_id for claim in claims if claim is not None]
        assert len(ids) == 20
        assert set(ids) == {rollout.rollout_id for rollout in queued}

    async def test_enqueue_with_an_id_is_idempotent(self, store: LightningStore) -> None:
        first = await store.enqueue_rollout("first", rollout_id="step-1/3")
        again = await store.enqueue_rollout("second", mode="val", rollout_id="step-1/3")
        assert (first.rollout_id, again) == ("step-1/3", first)
        taken(await store.dequeue_rollout())
        requests = [EnqueueRollout(input=n, rollout_id=name) for n, name in enumerate(["step-1/3", "b", "b"])]
        answers = await store.enqueue_many_rollouts(requests)
        assert [(answer.rollout_id, answer.input, answer.status) for answer in answers] == [
            ("step-1/3", "first", "preparing"),
            ("b", 1, "queuing"),
            ("b", 1, "queuing"),
        ]
        assert hasattr(answers[0], "attempt")
        assert await queue_length(store) == 1

    async def test_any_json_can_be_a_task_and_stays_as_it_was(self, store: LightningStore) -> None:
        metadata = {"deep": {"list": [1]}}
        for task in (None, 7, 2.5, True, "text — ünï", [1, [2]], {"a": {"b": [None, 1.5]}}, {}):
            queued = await store.enqueue_rollout(task, metadata=metadata)
            assert taken(await store.dequeue_rollout()).input == queued.input == task
        metadata["deep"]["list"].append(2)
        read = await store.get_rollout_by_id(queued.rollout_id)
        assert read is not None and read.metadata == {"deep": {"list": [1]}}
        read.metadata["deep"]["list"].append(3)
        read = await store.get_rollout_by_id(queued.rollout_id)
        assert read is not None and read.metadata == {"deep": {"list": [1]}}

    async def test_what_cannot_be_stored_is_refused_whole(self, store: LightningStore) -> None:
        bad = [EnqueueRollout(input=1), EnqueueRollout(input=1, rollout_id="a\ud800")]
        with pytest.raises(UsageError, match="cannot be stored"):
            await store.enqueue_many_rollouts(bad)
        with pytest.raises(ValueError, match="max_attempts"):
            await store.enqueue_rollout(1, config=RolloutConfig(max_attempts=0))
        with pytest.raises(ValueError, match="timeout_seconds"):
            await store.enqueue_rollout(1, config=RolloutConfig(timeout_seconds=-1))
        assert (await store.statistics())["total_rollouts"] == await queue_length(store) == 0

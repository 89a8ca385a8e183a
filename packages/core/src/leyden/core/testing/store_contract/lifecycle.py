"""Store contract, lifecycle: statuses of rollouts and attempts, retries, cancellation, ends."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio

import pytest

from leyden.core.data.rollout import ATTEMPT_MOVES, FINISHED_ROLLOUT, ROLLOUT_MOVES, AttemptStatus, RolloutConfig
from leyden.core.errors import IllegalMove, NotFound
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_contract.shared import (
    MISSING,
    RETRY,
    StoreTests,
    attempt_now,
    claimed,
    queue_length,
    rollout_now,
    span_of,
    taken,
)


class LifecycleTests(StoreTests):
    """Statuses of rollouts and attempts."""

    async def test_a_new_rollout_is_queued_and_a_claimed_one_has_its_first_attempt(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout({"q": 1}, mode="train", metadata={"m": [1]})
        assert (queued.status, queued.mode, queued.metadata, queued.input) == ("queuing", "train", {"m": [1]}, {"q": 1})
        assert not hasattr(queued, "attempt")
        got = taken(await store.dequeue_rollout(worker_id="w"))
        assert (got.rollout_id, got.status, got.end_time) == (queued.rollout_id, "preparing", None)
        assert (got.attempt.sequence_id, got.attempt.status, got.attempt.worker_id) == (1, "preparing", "w")
        assert got.start_time == queued.start_time <= got.attempt.start_time

    async def test_start_rollout_begins_an_attempt_without_the_queue(self, store: LightningStore) -> None:
        started = await store.start_rollout("input", worker_id="w")
        assert (started.status, started.attempt.status, started.attempt.sequence_id) == ("preparing", "preparing", 1)
        assert await store.dequeue_rollout() is None

    @pytest.mark.parametrize("status", ["running", "succeeded", "failed"])
    async def test_the_rollout_follows_its_latest_attempt(self, store: LightningStore, status: AttemptStatus) -> None:
        got = await claimed(store)
        await store.update_attempt(got.rollout_id, "latest", status=status)
        assert (await rollout_now(store, got)).status == status

    async def test_a_rollout_that_succeeded_by_hand_follows_no_attempt_out_of_the_table(
        self, store: LightningStore
    ) -> None:
        got = await claimed(store)
        done = await store.update_rollout(got.rollout_id, status="succeeded")
        await store.update_attempt(got.rollout_id, "latest", status="running")
        now = await rollout_now(store, got)
        assert (now.status, now.end_time, now.attempt.status) == ("succeeded", done.end_time, "running")
        await store.update_attempt(got.rollout_id, "latest", status="failed")
        assert (await rollout_now(store, got)).status == "failed"

    async def test_an_older_attempt_changes_alone(self, store: LightningStore) -> None:
        first = await claimed(store)
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="succeeded")
        second = await store.start_attempt(first.rollout_id)
        assert (second.status, second.attempt.sequence_id) == ("preparing", 2)
        changed = await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed")
        assert changed.status == "failed"
        now = await rollout_now(store, first)
        assert (now.status, now.attempt.attempt_id) == ("preparing", second.attempt.attempt_id)

    @pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
    async def test_a_retry_is_made_while_attempts_are_left(self, store: LightningStore, status: AttemptStatus) -> None:
        first = await claimed(store, RETRY)
        await store.update_attempt(first.rollout_id, "latest", status=status)
        waiting = await rollout_now(store, first)
        assert (waiting.status, waiting.attempt.sequence_id, waiting.end_time) == ("requeuing", 1, None)
        second = taken(await store.dequeue_rollout())
        assert (second.rollout_id, second.status, second.attempt.sequence_id) == (first.rollout_id, "preparing", 2)
        await store.update_attempt(first.rollout_id, "latest", status=status)
        assert (await rollout_now(store, first)).status == "failed"
        assert await store.dequeue_rollout() is None

    @pytest.mark.parametrize("config", [RolloutConfig(max_attempts=3), RolloutConfig(retry_condition=("failed",))])
    async def test_no_retry_without_condition_or_attempts(self, store: LightningStore, config: RolloutConfig) -> None:
        got = await claimed(store, config)
        await store.update_attempt(got.rollout_id, "latest", status="failed")
        assert (await rollout_now(store, got)).status == "failed"
        assert await queue_length(store) == 0

    async def test_start_attempt_ignores_max_attempts_and_reopens_a_finished_rollout(
        self, store: LightningStore
    ) -> None:
        got = await claimed(store)
        await store.update_attempt(got.rollout_id, "latest", status="succeeded")
        again = await store.start_attempt(got.rollout_id, worker_id="w")
        assert (again.status, again.end_time, again.attempt.sequence_id) == ("preparing", None, 2)

    async def test_start_attempt_takes_a_queued_rollout_out_of_the_queue(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout(1)
        await store.start_attempt(queued.rollout_id)
        assert await store.dequeue_rollout() is None
        retried = await claimed(store, RETRY)
        await store.update_attempt(retried.rollout_id, "latest", status="failed")
        await store.start_attempt(retried.rollout_id)
        assert await store.dequeue_rollout() is None

    async def test_requeuing_by_hand_queues_once(self, store: LightningStore) -> None:
        for status in ("preparing", "running", "failed"):
            got = await claimed(store)
            await store.update_rollout(got.rollout_id, status=status)
            await store.update_rollout(got.rollout_id, status="requeuing")
            await store.update_rollout(got.rollout_id, status="requeuing")
            assert taken(await store.dequeue_rollout()).attempt.sequence_id == 2
            assert await store.dequeue_rollout() is None

    async def test_exactly_the_moves_of_the_rollout_table(self, store: LightningStore) -> None:
        for old, allowed in ROLLOUT_MOVES.items():
            for new in ROLLOUT_MOVES:
                rollout_id = (await store.enqueue_rollout(f"{old} to {new}")).rollout_id
                if old == "requeuing":
                    await store.update_rollout(rollout_id, status="preparing")
                await store.update_rollout(rollout_id, status=old)
                if new in allowed or new == old:
                    assert (await store.update_rollout(rollout_id, status=new)).status == new
                else:
                    with pytest.raises(IllegalMove, match=f"is {old} and cannot become {new}"):
                        await store.update_rollout(rollout_id, status=new)

    async def test_exactly_the_moves_of_the_attempt_table(self, store: LightningStore) -> None:
        for old, allowed in ATTEMPT_MOVES.items():
            for new in ATTEMPT_MOVES:
                rollout_id = (await store.start_rollout(f"{old} to {new}")).rollout_id
                await store.update_attempt(rollout_id, "latest", status=old)
                if new in allowed or new == old:
                    assert (await store.update_attempt(rollout_id, "latest", status=new)).status == new
                else:
                    with pytest.raises(IllegalMove, match=f"is {old} and cannot become {new}"):
                        await store.update_attempt(rollout_id, "latest", status=new)

    async def test_a_refused_change_changes_nothing(self, store: LightningStore) -> None:
        got = await claimed(store)
        await store.update_attempt(got.rollout_id, "latest", status="failed")
        before = await rollout_now(store, got)
        with pytest.raises(IllegalMove):
            await store.update_attempt(got.rollout_id, "latest", status="succeeded", worker_id="other")
        with pytest.raises(IllegalMove):
            await store.update_rollout(got.rollout_id, status="cancelled", mode="test")
        assert await rollout_now(store, got) == before

    async def test_end_times(self, store: LightningStore) -> None:
        for status in ("succeeded", "failed", "timeout", "unresponsive"):
            got = await claimed(store)
            attempt = await store.update_attempt(got.rollout_id, "latest", status=status)
            assert (attempt.end_time is None) == (status == "unresponsive")
            rollout = await rollout_now(store, got)
            assert rollout.status in FINISHED_ROLLOUT
            assert rollout.end_time is not None and rollout.end_time >= rollout.start_time
            await store.update_rollout(got.rollout_id, status="requeuing")
            assert (await rollout_now(store, got)).end_time is None
            await store.dequeue_rollout()

    async def test_cancelled_stays_cancelled(self, store: LightningStore) -> None:
        got = await claimed(store, RETRY)
        waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[got.rollout_id], timeout=10))
        await asyncio.sleep(0.02)
        cancelled = await store.update_rollout(got.rollout_id, status="cancelled")
        assert cancelled.end_time is not None
        assert [rollout.status for rollout in await waiting] == ["cancelled"]
        assert (await attempt_now(store, got.attempt)).status == "preparing"
        assert await store.add_span(span_of(got.attempt)) is not None
        assert (await attempt_now(store, got.attempt)).status == "running"
        await store.update_attempt(got.rollout_id, "latest", status="succeeded")
        assert (await attempt_now(store, got.attempt)).status == "succeeded"
        assert (await rollout_now(store, got)).status == "cancelled"
        with pytest.raises(IllegalMove):
            await store.start_attempt(got.rollout_id)

    async def test_a_cancelled_rollout_is_not_handed_out(self, store: LightningStore) -> None:
        first, second = await store.enqueue_rollout(1), await store.enqueue_rollout(2)
        await store.update_rollout(first.rollout_id, status="cancelled")
        assert taken(await store.dequeue_rollout()).rollout_id == second.rollout_id

    async def test_writing_to_what_is_not_there(self, store: LightningStore) -> None:
        got = await claimed(store)
        with pytest.raises(NotFound):
            await store.update_rollout(MISSING, status="failed")
        with pytest.raises(NotFound):
            await store.start_attempt(MISSING)
        with pytest.raises(NotFound):
            await store.update_attempt(got.rollout_id, "no such attempt", status="failed")
        with pytest.raises(NotFound):
            await store.update_attempt(MISSING, "latest", status="failed")
        with pytest.raises(NotFound):
            await store.update_attempt((await store.enqueue_rollout(1)).rollout_id, "latest", status="failed")
        assert issubclass(NotFound, ValueError)

    async def test_an_attempt_that_was_found_is_found_as_it_is_now(self, store: LightningStore) -> None:
        assert await store.find_attempt(MISSING, MISSING) is None
        first = await claimed(store, RETRY)
        ids = first.rollout_id, first.attempt.attempt_id
        assert await store.find_attempt(ids[0], MISSING) is None
        for status in ("running", "failed"):
            found = await store.find_attempt(*ids)
            assert found is not None
            await store.update_attempt(*ids, status=status)
            found = await store.find_attempt(*ids)
            assert found is not None
            assert found[1].status == status
        second = taken(await store.dequeue_rollout())
        await store.update_rollout(ids[0], status="cancelled", metadata={"why": "enough"})
        for attempt_id, status in ((ids[1], "failed"), (second.attempt.attempt_id, second.attempt.status)):
            found = await store.find_attempt(ids[0], attempt_id)
            assert found is not None
            assert (found[0].status, found[0].metadata, found[1].status) == ("cancelled", {"why": "enough"}, status)

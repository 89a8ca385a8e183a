"""Store contract, superseding: an attempt that another one has replaced is closed, and its worker becomes free."""

# ruff: noqa: D102 (a test's name is its documentation)

import pytest

from leyden.core.data.rollout import AttemptStatus
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_contract.shared import StoreTests, attempt_now, rollout_now, span_of, taken


class SupersedingTests(StoreTests):
    """Attempts that another attempt has replaced."""

    @pytest.mark.parametrize("status", ["preparing", "running"])
    async def test_an_open_attempt_that_another_is_started_beside_is_closed(
        self, store: LightningStore, status: AttemptStatus
    ) -> None:
        first = await store.start_rollout(1, worker_id="w")
        await store.update_attempt(first.rollout_id, "latest", status=status)
        second = await store.start_attempt(first.rollout_id, worker_id="other")
        assert (await attempt_now(store, first.attempt)).status == "unresponsive"
        assert (second.status, (await rollout_now(store, first)).attempt) == ("preparing", second.attempt)
        worker, other = await store.get_worker_by_id("w"), await store.get_worker_by_id("other")
        assert worker is not None and (worker.status, worker.current_attempt_id) == ("unknown", None)
        assert other is not None and (other.status, other.current_attempt_id) == ("busy", second.attempt.attempt_id)

    async def test_an_attempt_that_is_queued_again_by_hand_is_closed_when_the_next_one_is_claimed(
        self, store: LightningStore
    ) -> None:
        first = await store.start_rollout(1, worker_id="w")
        await store.update_rollout(first.rollout_id, status="requeuing")
        await store.add_span(span_of(first.attempt))
        assert (await rollout_now(store, first)).status == "requeuing"
        second = taken(await store.dequeue_rollout("other"))
        assert (await attempt_now(store, first.attempt)).status == "unresponsive"
        assert second.attempt.sequence_id == 2
        worker = await store.get_worker_by_id("w")
        assert worker is not None and worker.status == "unknown"

    async def test_one_that_works_on_is_heard_until_the_rollout_ends(self, store: LightningStore) -> None:
        first = await store.start_rollout(1, worker_id="w")
        second = await store.start_attempt(first.rollout_id)
        await store.add_span(span_of(first.attempt, "a"))
        assert (await attempt_now(store, first.attempt)).status == "running"
        await store.update_attempt(first.rollout_id, second.attempt.attempt_id, status="succeeded")
        assert (await attempt_now(store, first.attempt)).status == "unresponsive"
        await store.add_span(span_of(first.attempt, "b"))
        assert (await attempt_now(store, first.attempt)).status == "unresponsive"
        assert (await rollout_now(store, first)).status == "succeeded"
        worker = await store.get_worker_by_id("w")
        assert worker is not None and worker.status == "unknown"
        assert (await store.query_spans(first.rollout_id)).total == 2

    async def test_one_that_ends_by_itself_after_all_has_ended(self, store: LightningStore) -> None:
        first = await store.start_rollout(1, worker_id="w")
        await store.start_attempt(first.rollout_id)
        ended = await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="succeeded")
        assert ended.end_time is not None
        assert (await rollout_now(store, first)).status == "preparing"
        worker = await store.get_worker_by_id("w")
        assert worker is not None and worker.status == "idle"

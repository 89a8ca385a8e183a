"""Store contract, spans and statuses: spans are heartbeats, and revive unresponsive attempts; health check."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio
import time

import pytest

from leyden.core.data.rollout import AttemptStatus, RolloutConfig
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_contract.shared import (
    RETRY,
    StoreTests,
    attempt_now,
    claimed,
    rollout_now,
    span_of,
    taken,
)

LIMITS = (0.5, 2.0, 8.0)
"""Seconds of a test's limit for an attempt; the next one is used when the machine itself paused for that long."""
STALLED = "three times the machine stood still for longer than the limit of the test: nothing was tested"


class SpanStateTests(StoreTests):
    """Effects of spans, and of their absence, on statuses."""

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("preparing", "running"),
            ("running", "running"),
            ("unresponsive", "running"),
            ("timeout", "timeout"),
            ("failed", "failed"),
            ("succeeded", "succeeded"),
        ],
    )
    async def test_a_span_is_a_heartbeat_and_revives_but_never_reopens(
        self, store: LightningStore, before: AttemptStatus, after: AttemptStatus
    ) -> None:
        got = await claimed(store)
        await store.update_attempt(got.rollout_id, "latest", status=before)
        rollout = await rollout_now(store, got)
        await store.add_span(span_of(got.attempt))
        attempt = await attempt_now(store, got.attempt)
        assert attempt.status == after
        assert attempt.last_heartbeat_time is not None and attempt.last_heartbeat_time >= attempt.start_time
        still = "running" if rollout.status == "preparing" else rollout.status
        assert (await rollout_now(store, got)).status == still

    async def test_only_the_latest_attempt_moves_the_rollout(self, store: LightningStore) -> None:
        first = await claimed(store)
        second = await store.start_attempt(first.rollout_id)
        await store.add_span(span_of(first.attempt))
        assert (await attempt_now(store, first.attempt)).status == "running"
        now = await rollout_now(store, first)
        assert (now.status, now.attempt.attempt_id) == ("preparing", second.attempt.attempt_id)
        await store.add_many_spans([span_of(first.attempt, "b1"), span_of(second.attempt, "b2")])
        assert (await rollout_now(store, first)).status == "running"

    async def test_revival_before_the_retry_is_claimed_calls_it_off(self, store: LightningStore) -> None:
        got = await claimed(store, RETRY)
        await store.update_attempt(got.rollout_id, "latest", status="unresponsive")
        assert (await rollout_now(store, got)).status == "requeuing"
        await store.add_span(span_of(got.attempt))
        assert (await rollout_now(store, got)).status == "running"
        assert await store.dequeue_rollout() is None
        await store.update_attempt(got.rollout_id, "latest", status="succeeded")
        assert (await rollout_now(store, got)).status == "succeeded"

    async def test_a_revived_attempt_may_fail_for_good(self, store: LightningStore) -> None:
        got = await claimed(store, RolloutConfig(max_attempts=3, retry_condition=("unresponsive",)))
        await store.update_attempt(got.rollout_id, "latest", status="unresponsive")
        await store.add_span(span_of(got.attempt))
        await store.update_attempt(got.rollout_id, "latest", status="failed")
        assert (await rollout_now(store, got)).status == "failed"
        assert await store.dequeue_rollout() is None

    async def test_revival_after_the_retry_was_claimed_changes_the_old_attempt_alone(
        self, store: LightningStore
    ) -> None:
        first = await claimed(store, RETRY)
        await store.update_attempt(first.rollout_id, "latest", status="unresponsive")
        second = taken(await store.dequeue_rollout())
        await store.add_span(span_of(first.attempt))
        assert (await attempt_now(store, first.attempt)).status == "running"
        now = await rollout_now(store, first)
        assert (now.status, now.attempt.attempt_id) == ("preparing", second.attempt.attempt_id)
        assert await store.dequeue_rollout() is None

    @pytest.mark.parametrize("status", ["failed", "timeout"])
    async def test_a_late_span_of_an_attempt_that_is_over_does_not_lose_the_retry(
        self, store: LightningStore, status: AttemptStatus
    ) -> None:
        got = await claimed(store, RETRY)
        await store.update_attempt(got.rollout_id, "latest", status=status)
        assert await store.add_span(span_of(got.attempt)) is not None
        assert (await rollout_now(store, got)).status == "requeuing"
        assert taken(await store.dequeue_rollout()).attempt.sequence_id == 2

    async def test_a_late_span_does_not_call_off_a_retry_ordered_by_hand(self, store: LightningStore) -> None:
        got = await claimed(store)
        await store.update_rollout(got.rollout_id, status="requeuing")
        await store.add_span(span_of(got.attempt))
        assert taken(await store.dequeue_rollout()).rollout_id == got.rollout_id

    async def test_spans_and_updates_at_once_both_survive(self, store: LightningStore) -> None:
        got = await claimed(store)
        await asyncio.gather(
            *(store.add_span(span_of(got.attempt, f"{n:x}")) for n in range(10)),
            store.update_attempt(got.rollout_id, "latest", metadata={"note": 1}, worker_id="w"),
            *(store.add_span(span_of(got.attempt, f"{n:x}")) for n in range(10, 20)),
        )
        attempt = await attempt_now(store, got.attempt)
        assert (attempt.metadata, attempt.worker_id, attempt.status) == ({"note": 1}, "w", "running")
        assert attempt.last_heartbeat_time is not None

    async def test_an_attempt_over_time_reads_as_timeout(self, store: LightningStore) -> None:
        config = RolloutConfig(timeout_seconds=0.1, unresponsive_seconds=0.1)
        got = await claimed(store, config)
        await asyncio.sleep(0.12)
        rollout = await rollout_now(store, got)
        assert (rollout.status, rollout.attempt.status) == ("failed", "timeout")
        assert rollout.attempt.end_time is not None

    async def test_timeout_counts_from_the_attempt_not_from_the_rollout(self, store: LightningStore) -> None:
        for limit in LIMITS:
            await store.enqueue_rollout(1, config=RolloutConfig(timeout_seconds=limit))
            await asyncio.sleep(limit + 0.05)
            before = time.monotonic()
            got = taken(await store.dequeue_rollout())
            status = (await rollout_now(store, got)).status
            if time.monotonic() - before < limit:
                break
        else:
            pytest.fail(STALLED)
        assert status == "preparing"
        await asyncio.sleep(limit + 0.05)
        assert (await rollout_now(store, got)).attempt.status == "timeout"

    async def test_heartbeats_keep_an_attempt_responsive(self, store: LightningStore) -> None:
        for limit in LIMITS:
            signs = [time.monotonic()]
            got = await claimed(store, RolloutConfig(unresponsive_seconds=limit))
            gaps = list[float]()
            for n in range(2):
                await asyncio.sleep(0.6 * limit)
                signs.append(time.monotonic())
                await store.add_span(span_of(got.attempt, f"{n:x}"))
                gaps.append(time.monotonic() - signs[-2])
            status = (await attempt_now(store, got.attempt)).status
            gaps.append(time.monotonic() - signs[-1])
            if max(gaps) < limit:
                break
        else:
            pytest.fail(STALLED)
        assert status == "running"
        await asyncio.sleep(limit + 0.05)
        assert (await attempt_now(store, got.attempt)).status == "unresponsive"
        assert (await rollout_now(store, got)).status == "failed"

    async def test_a_sign_of_life_takes_no_later_one_back(self, store: LightningStore) -> None:
        got = await claimed(store, RolloutConfig(unresponsive_seconds=0.1))
        await store.add_span(span_of(got.attempt, "a"))
        later = time.time() + 60
        await store.update_attempt(got.rollout_id, "latest", last_heartbeat_time=later)
        await store.add_span(span_of(got.attempt, "b"))
        await asyncio.sleep(0.15)
        attempt = await attempt_now(store, got.attempt)
        assert (attempt.status, attempt.last_heartbeat_time) == ("running", later)

    async def test_the_health_check_looks_at_the_latest_attempt_alone(self, store: LightningStore) -> None:
        first = await claimed(store)
        second = await store.start_attempt(first.rollout_id)
        await store.update_rollout(first.rollout_id, config=RolloutConfig(timeout_seconds=0.05))
        await asyncio.sleep(0.06)
        assert (await attempt_now(store, second.attempt)).status == "timeout"
        assert (await attempt_now(store, first.attempt)).status == "unresponsive"

    async def test_a_timeout_is_retried_at_the_next_claim(self, store: LightningStore) -> None:
        config = RolloutConfig(timeout_seconds=0.05, max_attempts=2, retry_condition=("timeout",))
        got = await claimed(store, config)
        await asyncio.sleep(0.06)
        retry = taken(await store.dequeue_rollout())
        assert (retry.rollout_id, retry.attempt.sequence_id) == (got.rollout_id, 2)

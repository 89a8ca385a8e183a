"""Store contract, workers: their status is derived from their attempts."""

# ruff: noqa: D102 (a test's name is its documentation)

from typing import Any

import pytest

from leyden.core.data.rollout import AttemptStatus, EnqueueRollout
from leyden.core.data.worker import Worker, WorkerStatus
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_contract.shared import RETRY, StoreTests, span_of, taken

NONE: Any = None


class WorkerTests(StoreTests):
    """Workers and their statuses."""

    async def test_a_heartbeat_makes_a_worker_and_keeps_its_statistics(self, store: LightningStore) -> None:
        made = await store.update_worker("w", heartbeat_stats={"cpu": 0.5})
        assert (made.status, made.heartbeat_stats) == ("unknown", {"cpu": 0.5})
        again = await store.update_worker("w")
        assert again.heartbeat_stats == {"cpu": 0.5}
        assert made.last_heartbeat_time is not None and again.last_heartbeat_time is not None
        assert again.last_heartbeat_time >= made.last_heartbeat_time
        with pytest.raises(TypeError):
            await store.update_worker("w", heartbeat_stats=NONE)
        await store.start_rollout(1, worker_id="w")
        assert (await _worker(store)).heartbeat_stats == {"cpu": 0.5}

    @pytest.mark.parametrize(
        ("end", "status"),
        [("succeeded", "idle"), ("failed", "idle"), ("timeout", "unknown"), ("unresponsive", "unknown")],
    )
    async def test_a_worker_is_busy_while_its_attempt_is_open(
        self, store: LightningStore, end: AttemptStatus, status: WorkerStatus
    ) -> None:
        await store.enqueue_rollout(1)
        got = taken(await store.dequeue_rollout(worker_id="w"))
        busy = await _worker(store)
        assert (busy.status, busy.current_rollout_id, busy.current_attempt_id) == (
            "busy",
            got.rollout_id,
            got.attempt.attempt_id,
        )
        assert busy.last_dequeue_time is not None and busy.last_busy_time is not None
        await store.update_attempt(got.rollout_id, "latest", status="running")
        assert (await _worker(store)).status == "busy"
        await store.update_attempt(got.rollout_id, "latest", status=end)
        free = await _worker(store)
        assert (free.status, free.current_rollout_id, free.current_attempt_id) == (status, None, None)
        assert (free.last_idle_time is not None) == (status == "idle")

    async def test_a_revived_attempt_makes_its_worker_busy_again(self, store: LightningStore) -> None:
        got = await store.start_rollout(1, config=RETRY, worker_id="w")
        await store.update_attempt(got.rollout_id, "latest", status="unresponsive")
        assert (await _worker(store)).status == "unknown"
        await store.add_span(span_of(got.attempt))
        assert (await _worker(store)).status == "busy"

    async def test_an_older_attempts_end_leaves_a_worker_busy_with_another(self, store: LightningStore) -> None:
        first = await store.start_rollout(1, worker_id="w")
        second = await store.start_rollout(2, worker_id="w")
        await store.update_attempt(first.rollout_id, "latest", status="succeeded")
        worker = await _worker(store)
        assert (worker.status, worker.current_rollout_id) == ("busy", second.rollout_id)
        await store.update_attempt(second.rollout_id, "latest", status="succeeded")
        assert (await _worker(store)).status == "idle"

    async def test_a_bulk_claim_is_work_until_all_of_it_is_done(self, store: LightningStore) -> None:
        await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(3)])
        claims = await store.dequeue_many_rollouts(limit=3, worker_id="w")
        assert (await _worker(store)).current_rollout_id == claims[2].rollout_id
        await store.update_attempt(claims[2].rollout_id, "latest", status="failed")
        assert (await _worker(store)).current_rollout_id == claims[1].rollout_id
        for claim in claims[:2]:
            await store.update_attempt(claim.rollout_id, "latest", status="succeeded")
        assert (await _worker(store)).status == "idle"

    async def test_an_empty_claim_makes_an_idle_worker(self, store: LightningStore) -> None:
        assert await store.dequeue_rollout(worker_id="w") is None
        worker = await _worker(store)
        assert worker.status == "idle"
        assert worker.last_dequeue_time is not None

    async def test_an_attempt_may_change_hands(self, store: LightningStore) -> None:
        got = await store.start_rollout(1, worker_id="w")
        await store.update_attempt(got.rollout_id, "latest", worker_id="other")
        assert (await _worker(store)).status == "idle"
        other = await store.get_worker_by_id("other")
        assert other is not None and (other.status, other.current_rollout_id) == ("busy", got.rollout_id)
        await store.update_attempt(got.rollout_id, "latest", status="succeeded", worker_id="")
        assert await store.get_worker_by_id("") is None

    async def test_workers_are_queried(self, store: LightningStore) -> None:
        await store.update_worker("gpu-1")
        await store.start_rollout(1, worker_id="gpu-2")
        await store.dequeue_rollout(worker_id="cpu-1")

        async def ids(**filters: object) -> list[str]:
            page = await store.query_workers(**filters)  # pyright: ignore[reportArgumentType] varied by the test
            return [worker.worker_id for worker in page]

        assert await ids() == ["gpu-1", "gpu-2", "cpu-1"]
        assert await ids(status_in=["busy", "idle"]) == ["gpu-2", "cpu-1"]
        assert await ids(status_in=[]) == []
        assert await ids(worker_id_contains="gpu", status_in=["busy"]) == ["gpu-2"]
        assert await ids(worker_id_contains="cpu", status_in=["busy"], filter_logic="or") == ["gpu-2", "cpu-1"]
        assert await ids(sort_by="worker_id", sort_order="desc", limit=1) == ["gpu-2"]
        assert await ids(sort_by="last_dequeue_time") == ["cpu-1", "gpu-1", "gpu-2"]


async def _worker(store: LightningStore, worker_id: str = "w") -> Worker:
    found = await store.get_worker_by_id(worker_id)
    assert found is not None
    return found

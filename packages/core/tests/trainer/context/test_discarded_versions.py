"""Rollouts of versions that were served and never kept are found, and stay found."""

from collections.abc import Sequence

import pytest

from leyden.core.data import semconv
from leyden.core.data.rollout import EnqueueRollout
from leyden.core.data.span import Attributes
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.factories import span
from leyden.core.trainer.context.discarded_versions import LOST, are_lost
from leyden.core.trainer.rollouts.interrupted import ABANDONED


def request(name: str) -> EnqueueRollout:
    return EnqueueRollout(rollout_id=name, input="task", mode="train", metadata={"task": 0})


async def ran(store: MemoryStore, name: str, versions: Sequence[int], status: str = "succeeded") -> None:
    """Have a rollout run whose only call these versions drew, a token each."""
    await store.enqueue_many_rollouts([request(name)])
    (rollout,) = await store.dequeue_many_rollouts(limit=1, worker_id="w")
    attempt_id = rollout.attempt.attempt_id
    drawn = [number for version in versions for number in (version, 1)]
    call: Attributes = {semconv.CALL_ID: "c", semconv.POLICY_VERSION: versions[0], semconv.POLICY_VERSIONS: drawn}
    await store.add_span(span(attributes=call, rollout_id=name, attempt_id=attempt_id, span_id=f"{hash(name):x}"))
    await store.update_attempt(name, attempt_id, status="succeeded" if status == "succeeded" else "failed")


@pytest.mark.parametrize(("versions", "lost"), [((1,), False), ((0, 2), False), ((2, 3), True), ((3,), True)])
async def test_rollouts_of_later_versions_than_the_one_gone_on_from_are_lost(
    versions: Sequence[int], *, lost: bool
) -> None:
    store = MemoryStore()
    await ran(store, "early", (1,))
    await ran(store, "late", versions)
    requests = [request("early"), request("late"), request("never-run")]
    assert await are_lost(store, requests, 2) is lost
    marked = {one.rollout_id for one in await store.query_rollouts() if LOST in one.metadata}
    assert marked == ({"late"} if lost else set())
    assert await are_lost(store, requests, 9) is lost  # when the version is reached again, too
    await store.close()


async def test_what_is_run_again_anyway_is_not_lost() -> None:
    store = MemoryStore()
    await ran(store, "stopped", (3,), status="failed")
    await store.update_rollout("stopped", metadata={"task": 0, ABANDONED: True})
    assert not await are_lost(store, [request("stopped")], 2)
    await store.close()

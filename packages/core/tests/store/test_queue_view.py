"""Views of two queues of one store: what each sees of the other."""

import inspect
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from leyden.core.data.resources import NamedResources, PromptTemplate
from leyden.core.data.rollout import EnqueueRollout, RolloutConfig
from leyden.core.errors import CallRefused, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.memory import MemoryStore
from leyden.core.store.queue_view import QueueView
from leyden.core.store.sql.store import SqlStore

PROMPT: NamedResources = {"prompt": PromptTemplate(template="Say {word}")}
RETRY = RolloutConfig(max_attempts=2, retry_condition=("failed",))


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[LightningStore]:
    store = MemoryStore() if request.param == "memory" else await SqlStore.open(tmp_path / "store.db")
    yield store
    await store.close()


@pytest.fixture
def one(store: LightningStore) -> QueueView:
    return QueueView(store, "one")


@pytest.fixture
def two(store: LightningStore) -> QueueView:
    return QueueView(store, "two")


async def test_each_view_has_its_own_rollouts_whatever_queue_is_named(
    store: LightningStore, one: QueueView, two: QueueView
) -> None:
    await store.enqueue_rollout(0, rollout_id="usual")
    queued = await one.enqueue_rollout(1, rollout_id="a", queue="two")
    await two.enqueue_many_rollouts([EnqueueRollout(input=2, rollout_id="b", queue="one")])
    started = await one.start_rollout(3, queue="two", config=RETRY)
    assert queued.queue == started.queue == one.queue == "one"
    for named in ("", "one", "two"):
        assert [rollout.rollout_id for rollout in await two.query_rollouts(queue=named)] == ["b"]
    assert [rollout.rollout_id for rollout in await one.query_rollouts(filter_logic="or")] == ["a", started.rollout_id]
    (claim,) = await two.dequeue_many_rollouts(limit=9, queue="one")
    assert claim.rollout_id == "b"
    assert await two.dequeue_rollout(queue="one") is None
    claimed = await one.dequeue_rollout(queue="")
    assert claimed is not None and claimed.rollout_id == "a"
    await one.update_attempt(started.rollout_id, "latest", status="failed")
    assert await two.dequeue_rollout() is None
    retry = await one.dequeue_rollout()
    assert retry is not None and retry.rollout_id == started.rollout_id
    assert (await store.statistics())["queue_length"] == (await one.statistics())["queue_length"] == 1


async def test_each_view_has_its_own_latest_resources(store: LightningStore, one: QueueView, two: QueueView) -> None:
    await store.update_resources("of nobody", PROMPT)
    assert await one.get_latest_resources() is None
    first = await one.update_resources("of one", PROMPT)
    second = await two.add_resources({})
    assert await one.get_latest_resources() == first
    assert await two.get_latest_resources() == await store.get_latest_resources() == second
    assert await two.get_resources_by_id("of one") == first
    newer = await one.update_resources("of one", {})
    assert await one.get_latest_resources() == newer
    assert await QueueView(store, "one").get_latest_resources() is None, "a view that is reopened starts without"


async def test_a_rollout_gets_the_latest_resources_of_its_view_or_none(
    store: LightningStore, one: QueueView, two: QueueView
) -> None:
    await store.update_resources("of nobody", PROMPT)
    without = [await one.enqueue_rollout(1), await one.start_rollout(1)]
    without += await one.enqueue_many_rollouts([EnqueueRollout(input=1)])
    assert [(rollout.resources_id, rollout.resources_version) for rollout in without] == [(None, None)] * 3
    await one.update_resources("of one", PROMPT)
    await two.update_resources("of two", PROMPT)
    given = [await one.enqueue_rollout(1), await one.start_rollout(1)]
    given += await one.enqueue_many_rollouts([EnqueueRollout(input=1)])
    assert [(rollout.resources_id, rollout.resources_version) for rollout in given] == [("of one", 1)] * 3
    explicit = await one.enqueue_rollout(1, resources_id="of nobody")
    assert (explicit.resources_id, explicit.resources_version) == ("of nobody", 1)


async def test_a_repeated_request_does_not_make_older_resources_the_latest(one: QueueView) -> None:
    first = await one.update_resources("r", PROMPT, request_id="first")
    second = await one.add_resources({})
    assert await one.update_resources("r", PROMPT, request_id="first") == first
    assert await one.get_latest_resources() == second


async def test_a_view_does_not_repeat_a_claim_of_another_view(one: QueueView, two: QueueView) -> None:
    await one.enqueue_rollout(1)
    await two.enqueue_rollout(2)
    assert await one.dequeue_rollout("w", request_id="claim") is not None
    with pytest.raises(CallRefused, match="was used for another request"):
        await two.dequeue_rollout("w", request_id="claim")


async def test_a_view_of_the_usual_queue(store: LightningStore, one: QueueView) -> None:
    view = QueueView(store, "")
    await one.enqueue_rollout(1)
    queued = await store.enqueue_rollout(2)
    assert [rollout.rollout_id for rollout in await view.query_rollouts()] == [queued.rollout_id]
    claim = await view.dequeue_rollout()
    assert claim is not None and claim.rollout_id == queued.rollout_id
    assert await view.dequeue_rollout(queue="one") is None


async def test_a_bad_name_is_refused(store: LightningStore, one: QueueView) -> None:
    with pytest.raises(UsageError, match="queue 'a b' is not a name"):
        QueueView(store, "a b")
    with pytest.raises(UsageError, match="queue 'a b' is not a name"):
        await one.enqueue_rollout(1, queue="a b")


async def test_ids_reach_every_rollout(one: QueueView, two: QueueView) -> None:
    queued = await one.enqueue_rollout(1)
    assert await two.get_rollout_by_id(queued.rollout_id) == queued
    await two.update_rollout(queued.rollout_id, status="failed")
    (finished,) = await two.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=0)
    assert finished.queue == "one"


def test_the_view_has_every_method_of_the_interface_itself() -> None:
    """A method that it inherits would not reach the store."""
    public = {name for name in dir(LightningStore) if not name.startswith("_")}
    assert public <= vars(QueueView).keys()
    for name in public - {"capabilities"}:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (QueueView, LightningStore))
        assert list(ours.parameters) == list(theirs.parameters), name

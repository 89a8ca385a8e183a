"""What a killed session left behind: every state a rollout can be in, over the store that runs have."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data.rollout import AttemptedRollout, AttemptStatus, EnqueueRollout, Rollout, RolloutConfig
from leyden.core.errors import RewardError, TaskError, UnknownAgent, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.testing.running import error_of, run_one
from leyden.core.trainer.rollouts.interrupted import fatal_error, requeue, set_aside
from leyden.core.trainer.run_folder.sharing.store_location import StoreLocation

CONFIG = RolloutConfig(
    timeout_seconds=10, unresponsive_seconds=5, max_attempts=2, retry_condition=("timeout", "unresponsive")
)
LONG_AGO = 1000.0


@asynccontextmanager
async def session(path: Path, clock: float | None = None) -> AsyncGenerator[LightningStore]:
    uri = f"sqlite:///{path / 'store.db'}"
    store = await (open_store(uri) if clock is None else open_store(uri, clock=lambda: clock))
    yield store
    await store.close()


def request(name: str) -> EnqueueRollout:
    return EnqueueRollout(rollout_id=name, input="task", mode="train", config=CONFIG, metadata={"task": 0})


async def claimed(store: LightningStore, name: str) -> tuple[str, str]:
    """Ids of a new attempt at a rollout that is the only one queued."""
    await store.enqueue_many_rollouts([request(name)])
    (rollout,) = await store.dequeue_many_rollouts(limit=1, worker_id="w")
    assert rollout.rollout_id == name
    return name, rollout.attempt.attempt_id


async def request_again(store: LightningStore, *names: str) -> list[AttemptedRollout]:
    """What is claimable once a batch with these rollouts is collected again."""
    await requeue(store, await store.enqueue_many_rollouts([request(name) for name in names]))
    return await store.dequeue_many_rollouts(limit=10, worker_id="later")


async def rollout_of(store: LightningStore, name: str) -> Rollout:
    found = await store.get_rollout_by_id(name)
    assert found is not None
    return found


async def test_nothing_is_queued_until_it_is_asked_for(tmp_path: Path) -> None:
    async with session(tmp_path, LONG_AGO) as store:
        await store.update_attempt(*await claimed(store, "running"), status="running")
        await claimed(store, "preparing")
        await store.enqueue_many_rollouts([request("queued")])
    await set_aside(StoreLocation(f"sqlite:///{tmp_path / 'store.db'}"))
    async with session(tmp_path) as store:
        assert await store.dequeue_many_rollouts(limit=10, worker_id="eager") == []
        again = await request_again(store, "running", "preparing", "queued")
        assert [(rollout.rollout_id, rollout.attempt.sequence_id) for rollout in again] == [
            ("running", 2),
            ("preparing", 2),
            ("queued", 1),
        ]
        assert [rollout.metadata for rollout in again] == [{"task": 0}] * 3


async def test_what_was_finished_stays_finished(tmp_path: Path) -> None:
    async with session(tmp_path, LONG_AGO) as store:
        await store.update_attempt(*await claimed(store, "done"), status="succeeded")
        await store.update_attempt(*await claimed(store, "failed"), status="failed")
        before = [await rollout_of(store, name) for name in ("done", "failed")]
    await set_aside(StoreLocation(f"sqlite:///{tmp_path / 'store.db'}"))
    async with session(tmp_path) as store:
        assert await request_again(store, "done", "failed") == []
        assert [await rollout_of(store, name) for name in ("done", "failed")] == before


async def test_being_killed_uses_up_no_attempt_however_often_and_for_how_long(tmp_path: Path) -> None:
    async with session(tmp_path, LONG_AGO) as store:
        await claimed(store, "unlucky")
    for killed in range(4):
        await set_aside(StoreLocation(f"sqlite:///{tmp_path / 'store.db'}"))
        async with session(tmp_path, LONG_AGO * (killed + 2)) as store:
            (rollout,) = await request_again(store, "unlucky")
            assert rollout.attempt.sequence_id == killed + 2
    async with session(tmp_path, LONG_AGO * 5) as store:
        await store.update_attempt("unlucky", "latest", status="unresponsive")
        assert (await rollout_of(store, "unlucky")).status == "requeuing", "both of its attempts were left"
        await store.dequeue_many_rollouts(limit=1, worker_id="w")
        await store.update_attempt("unlucky", "latest", status="unresponsive")
        assert (await rollout_of(store, "unlucky")).status == "failed"


async def test_a_lost_worker_does_use_up_an_attempt(tmp_path: Path) -> None:
    async with session(tmp_path, LONG_AGO) as store:
        await store.update_attempt(*await claimed(store, "dropped"), status="unresponsive")
        assert (await rollout_of(store, "dropped")).status == "requeuing"
    await set_aside(StoreLocation(f"sqlite:///{tmp_path / 'store.db'}"))
    async with session(tmp_path) as store:
        (rollout,) = await request_again(store, "dropped")
        assert rollout.config.max_attempts == CONFIG.max_attempts
        assert (await store.query_attempts("dropped")).items[0].status == "unresponsive"


@pytest.mark.parametrize("status", ["timeout", "unresponsive"])
@pytest.mark.parametrize("by", ["the clock of another run", "a process of the run"])
async def test_an_attempt_that_was_late_only_after_its_run_was_killed_is_tried_again(
    tmp_path: Path, status: AttemptStatus, by: str
) -> None:
    metadata = {"error": {"kind": "worker", "type": "WorkerDied"}} if by == "a process of the run" else {}
    async with session(tmp_path, LONG_AGO) as store:
        await store.update_attempt(*await claimed(store, "late"), status=status)
        await store.dequeue_many_rollouts(limit=1, worker_id="w")
    async with session(tmp_path, LONG_AGO + 1) as store:
        await store.update_attempt("late", "latest", status=status, metadata=metadata)
        assert (await rollout_of(store, "late")).status == "failed"
    await set_aside(StoreLocation(f"sqlite:///{tmp_path / 'store.db'}"), LONG_AGO + 2)
    async with session(tmp_path) as store:
        again = [rollout.rollout_id for rollout in await request_again(store, "late")]
    assert again == ([] if metadata else ["late"])


async def test_the_attempt_says_why_it_ended(tmp_path: Path) -> None:
    async with session(tmp_path, LONG_AGO) as store:
        ids = await claimed(store, "running")
    await set_aside(StoreLocation(f"sqlite:///{tmp_path / 'store.db'}"))
    async with session(tmp_path) as store:
        await request_again(store, "running")
        first = (await store.query_attempts("running")).items[0]
    assert (first.attempt_id, first.status) == (ids[1], "failed")
    assert "the run was stopped" in first.metadata["error"]["message"]


@pytest.mark.parametrize("kind", ["reward", "input"])
async def test_what_the_user_has_mended_is_tried_again(tmp_path: Path, kind: str) -> None:
    error: dict[str, Any] = {"error": {"kind": kind, "message": "mend it"}}
    async with session(tmp_path, LONG_AGO) as store:
        await store.update_attempt(*await claimed(store, "mended"), status="failed", metadata=error)
    for _ in range(2):  # a session may be killed before it comes to this rollout
        await set_aside(StoreLocation(f"sqlite:///{tmp_path / 'store.db'}"))
    async with session(tmp_path) as store:
        (rollout,) = await request_again(store, "mended")
    assert (rollout.attempt.sequence_id, rollout.config.max_attempts) == (2, CONFIG.max_attempts + 1)


async def test_killed_between_the_two_it_can_be_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with session(tmp_path, LONG_AGO) as store:
        await claimed(store, "running")
    with monkeypatch.context() as patch:
        patch.setattr("leyden.core.trainer.rollouts.interrupted._close_attempts", _killed)
        with pytest.raises(KeyboardInterrupt):
            await set_aside(StoreLocation(f"sqlite:///{tmp_path / 'store.db'}"))
    await set_aside(StoreLocation(f"sqlite:///{tmp_path / 'store.db'}"))
    async with session(tmp_path) as store:
        (rollout,) = await request_again(store, "running")
    assert (rollout.attempt.sequence_id, rollout.config.max_attempts) == (2, CONFIG.max_attempts + 1)


async def _killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("error", "kind", "stops"),
    [
        (UnknownAgent("it waits for a human"), "agent", UnknownAgent),
        (TaskError("the task has the keys a"), "input", TaskError),
        (UsageError("it wants another resource"), "input", TaskError),
        (RewardError("it returned None"), "reward", RewardError),
        (ValueError("bad day"), "agent", None),
    ],
)
async def test_what_the_user_must_mend_stops_a_run_and_an_agents_own_failure_does_not(
    error: Exception, kind: str, stops: type[Exception] | None
) -> None:
    def agent(task: Any) -> Any:
        raise error

    ended, _ = await run_one(agent)
    assert error_of(ended)["kind"] == kind
    found = fatal_error(ended)
    assert type(found) is (stops or type(None))
    assert found is None or str(found) == str(error)

"""Who may train a run of a shared store, and what another run's health check does to rollouts that nobody runs."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout, RolloutConfig
from leyden.core.data.run import Run
from leyden.core.errors import RunError
from leyden.core.store.open import open_store
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.rollouts.interrupted import ABANDONED, requeue
from leyden.core.trainer.run_folder import run_owner
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.run_owner import owned
from leyden.core.trainer.run_folder.shared_runs import FOLDER, HOST


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    config = RunConfig(name="calc", policy="p", store=f"sqlite:///{tmp_path}/shared.db")
    return RunFolder.create(tmp_path / "runs", config, [{"n": 1}], {})


def config_of(folder: RunFolder) -> RunConfig:
    return RunConfig(name="calc", policy="p", store=folder.store_location.uri)


async def record(folder: RunFolder, **changes: Any) -> Run:
    store = await open_store(folder.store_location.uri)
    try:
        if changes:
            await store.update_run(folder.store_location.queue, **changes)
        run = await store.get_run_by_id(folder.store_location.queue)
    finally:
        await store.close()
    assert run is not None
    return run


async def test_the_store_knows_where_a_run_is_trained_from_its_beginning(folder: RunFolder) -> None:
    async with owned(folder, config_of(folder)):
        run = await record(folder)
    assert (run.name, run.status, run.metadata[FOLDER]) == ("calc", "running", str(folder.path))


async def test_a_session_that_fails_before_its_first_step_is_recorded(folder: RunFolder) -> None:
    with pytest.raises(RuntimeError):
        async with owned(folder, config_of(folder)):
            raise RuntimeError("no such model")
    assert (await record(folder)).status == "failed"
    with pytest.raises(asyncio.CancelledError):
        async with owned(folder, config_of(folder)):
            raise asyncio.CancelledError
    assert (await record(folder)).status == "stopped"


async def test_an_owner_writes_to_the_record_without_changing_how_the_run_ended(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_owner, "BEAT_SECONDS", 0.01)
    async with owned(folder, config_of(folder)):
        before = await record(folder, status="succeeded")
        while (after := await record(folder)).update_time == before.update_time:
            await asyncio.sleep(0.01)
    assert after.status == (await record(folder)).status == "succeeded"


async def test_another_machine_that_still_writes_keeps_the_run(folder: RunFolder) -> None:
    async with owned(folder, config_of(folder)):
        pass
    await record(folder, metadata={HOST: "another", FOLDER: "/runs/calc"})
    with pytest.raises(
        RunError, match=r"is being trained on another, which wrote to the store \d+ s ago: stop it there"
    ):
        async with owned(folder, config_of(folder)):
            pass
    await record(folder, status="stopped")
    async with owned(folder, config_of(folder)):  # it was ended there
        pass


async def test_another_machine_that_is_silent_loses_the_run(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    async with owned(folder, config_of(folder)):
        pass
    await record(folder, metadata={HOST: "another", FOLDER: "/runs/calc"})
    monkeypatch.setattr(run_owner, "GONE_SECONDS", 0.0)
    async with owned(folder, config_of(folder)):
        pass


async def test_another_folder_of_this_machine_keeps_the_run_while_it_is_locked(
    folder: RunFolder, tmp_path: Path
) -> None:
    other = RunFolder(tmp_path / "other/calc")
    other.path.mkdir(parents=True)
    async with owned(folder, config_of(folder)):
        run = await record(folder)
    await record(folder, metadata={**run.metadata, FOLDER: str(other.path)})
    with other.locked(), pytest.raises(RunError, match=f"by another process, in {other.path}"):
        async with owned(folder, config_of(folder)):
            pass
    async with owned(folder, config_of(folder)):
        pass


async def test_time_limits_that_pass_while_no_process_runs_use_up_no_attempt(folder: RunFolder) -> None:
    """Another run's process, whose health check covers the whole store, finds them."""
    limits = RolloutConfig(timeout_seconds=60, max_attempts=1)
    location = folder.store_location
    async with owned(folder, config_of(folder)):
        store = await location.open()
        await store.enqueue_many_rollouts(
            [EnqueueRollout(input=n, rollout_id=f"r{n}", config=limits) for n in (1, 2, 3)]
        )
        claimed = await store.dequeue_many_rollouts(limit=2)
        await store.update_attempt("r2", claimed[1].attempt.attempt_id, status="failed")
        await store.close()
    later = await open_store(location.uri, clock=lambda: time.time() + 3600)
    failed = await later.get_rollout_by_id("r1")
    await later.close()
    assert isinstance(failed, AttemptedRollout) and (failed.status, failed.attempt.status) == ("failed", "timeout")

    async with owned(folder, config_of(folder)):
        store = await location.open(clock=lambda: 0.0)
        r1, r2, r3 = [await store.get_rollout_by_id(f"r{n}") for n in (1, 2, 3)]
        assert r1 is not None and r2 is not None and r3 is not None
        assert (r1.metadata, r1.config.max_attempts) == ({ABANDONED: True}, 2)
        assert (r2.metadata, r2.config.max_attempts) == ({}, 1)  # it failed while the run was trained
        assert (r3.metadata, r3.config.max_attempts) == ({ABANDONED: True}, 1)  # it had not begun
        await requeue(store, [r1, r2, r3])
        again = await store.dequeue_many_rollouts(limit=3)
        assert [one.rollout_id for one in again] == ["r1", "r3"]
        await store.close()

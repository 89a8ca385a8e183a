"""What a rollback does to the records of the run in its store; its folder is `test_rollback_killed.py`'s."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from leyden.core.cli.main import run
from leyden.core.data.rollout import AttemptedRollout, RolloutConfig
from leyden.core.data.run import Run
from leyden.core.store.base import LightningStore
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.models import Models
from leyden.core.trainer.run_folder.rollback import roll_back
from leyden.core.trainer.run_folder.run_sync import StoreSync
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile
from leyden.core.trainer.run_state import state_and_reason

CONFIG = RunConfig(name="r", agent="a", policy="p")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The folder of a run of four steps, which its store knows nothing of."""
    folder = RunFolder.create(tmp_path, CONFIG, [{"q": 1}], {})
    for number in range(5):
        checkpoint = folder.checkpoints / f"step-{number:08d}"
        if number:
            checkpoint.mkdir(parents=True)
            (checkpoint / "progress.json").write_text(json.dumps({"step": number}))
            folder.append_metrics({"step": number, "reward": number / 10})
            folder.token_records.write(number, {})
        fields: dict[str, Any] = {"created": 1.0, "algorithm": "sft", "seed": 0, "policy": "p"}
        weights = f"checkpoints/{checkpoint.name}" if number else None
        parent = number - 1 if number else None
        version = ModelVersion(run="r", version=number, parent=parent, weights=weights, **fields)
        VersionFile(folder.path).append(version)
    return folder


async def recorded(folder: RunFolder) -> str:
    """Record the whole run, and an attempt that it left under way; returns its rollout."""
    store = await folder.store_location.open()
    recording = StoreSync(store, folder, CONFIG)
    await recording.begin(0)
    await recording.end()
    config = RolloutConfig(timeout_seconds=0.02, max_attempts=2, retry_condition=("timeout",))
    await store.enqueue_rollout("under way", config=config, rollout_id="step-4/0")
    claim = await store.dequeue_rollout()
    await store.close()
    assert claim is not None
    time.sleep(0.03)
    return claim.rollout_id


async def known(store: LightningStore) -> tuple[Run, list[int], list[int]]:
    """The run's record, and the steps and versions that the store knows of."""
    (record,) = await store.query_runs()
    steps = [measured.step for measured in await store.query_metrics(record.run_id)]
    return record, steps, [version.version for version in await store.query_policy_versions(run_id=record.run_id)]


async def looked_at(folder: RunFolder) -> tuple[Run, list[int], list[int]]:
    store = await folder.store_location.open(clock=lambda: 0.0)
    try:
        return await known(store)
    finally:
        await store.close()


def taken_back(folder: RunFolder) -> str | None:
    models = Models.open(folder.path.parent, "r")
    return roll_back(models, models.find("2")).untold


def test_the_store_knows_of_a_rollback_at_once(folder: RunFolder) -> None:
    rollout_id = asyncio.run(recorded(folder))
    before, steps, versions = asyncio.run(looked_at(folder))
    assert (before.status, steps, versions) == ("succeeded", [1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert taken_back(folder) is None
    assert state_and_reason(folder) == ("stopped", "rolled back to version 2")

    async def gone_on_with() -> None:
        store = await folder.store_location.open()
        now, steps, versions = await known(store)
        assert (now.status, steps, versions) == ("stopped", [1, 2], [0, 1, 2])
        assert before.end_time is not None and now.end_time is not None
        assert now.end_time > before.end_time
        left = await store.get_rollout_by_id(rollout_id)
        assert isinstance(left, AttemptedRollout)
        assert (left.status, left.attempt.status) == ("failed", "failed"), "it was not held against it as a timeout"
        await StoreSync(store, folder, CONFIG).begin(2)
        assert (await known(store))[0].status == "running"
        await store.close()

    asyncio.run(gone_on_with())


def test_records_of_later_tokens_are_moved_aside(folder: RunFolder) -> None:
    taken_back(folder)

    assert [path.name[:13] for path in folder.token_records.after(0)] == ["step-00000001", "step-00000002"]
    aside = folder.path / "set_aside" / "1" / "tokens"
    assert sorted(path.name[:13] for path in aside.iterdir()) == ["step-00000003", "step-00000004"]


def test_a_run_without_records_is_taken_back_as_well(folder: RunFolder) -> None:
    assert taken_back(folder) is None
    assert not folder.store_file.exists()


def test_a_store_that_does_not_know_the_run_needs_no_telling(folder: RunFolder) -> None:
    async def made() -> None:
        await (await folder.store_location.open()).close()

    asyncio.run(made())
    folder.run_id("r")
    assert taken_back(folder) is None


def test_a_store_that_cannot_be_told_is_named_and_follows_when_the_run_goes_on(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(recorded(folder))
    kept = folder.store_file.read_bytes()
    folder.store_file.write_bytes(b"no database" * 100)
    runs = str(folder.path.parent)
    assert run(["models", "rollback", "r", "3", "--runs", runs]) == 0
    _, line, last = capsys.readouterr().out.splitlines()
    assert last == f"continue with: leyden train --resume r --runs {runs}"
    assert line.startswith("the run's store could not be updated (") and "store.db" in line
    assert line.endswith("); it is updated when the run continues")
    assert run(["models", "rollback", "r", "2", "--runs", runs, "--json"]) == 0
    assert "store.db" in json.loads(capsys.readouterr().out)["untold"]
    folder.store_file.write_bytes(kept)

    async def gone_on_with() -> None:
        store = await folder.store_location.open()
        await StoreSync(store, folder, CONFIG).begin(2)
        assert (await known(store))[1:] == ([1, 2], [0, 1, 2])
        await store.close()

    asyncio.run(gone_on_with())

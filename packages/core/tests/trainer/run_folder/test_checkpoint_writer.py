"""Checkpoints that are written during a run: one at a time, recorded once complete; failures are raised or logged."""

import logging
from pathlib import Path

import pytest

from leyden.core.errors import TrainingError
from leyden.core.policy.checkpoints.retention import latest_checkpoint
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.updater import Updater
from leyden.core.testing.policies import synthetic_rollouts, tiny_policy
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.checkpoint_writer import CheckpointWriter
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.model_selection import ModelSelection


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, RunConfig(name="r", agent="a", policy="p"), [{"q": 1}], {})


@pytest.fixture
def selection(folder: RunFolder) -> ModelSelection:
    return ModelSelection(folder, RunConfig(name="r", agent="a", policy="p"))


@pytest.fixture
def updater() -> Updater:
    return Updater(tiny_policy(), UpdateConfig(learning_rate=1e-3))


def kept(selection: ModelSelection) -> dict[int, str | None]:
    return {number: version.weights for number, version in selection.versions.read().items()}


async def test_each_is_whole_and_noted_before_the_next_is_begun(
    folder: RunFolder, selection: ModelSelection, updater: Updater
) -> None:
    writer = CheckpointWriter(folder.checkpoints, selection, keep=2)
    await writer.begin(1, updater, {}, mark=False)
    await writer.begin(2, updater, {}, mark=False)
    assert kept(selection)[1] == "checkpoints/step-00000001"
    await writer.finish()
    assert kept(selection) == {number: f"checkpoints/step-0000000{number}" for number in (1, 2)}
    assert latest_checkpoint(folder.checkpoints) == folder.checkpoints / "step-00000002"


async def test_an_update_follows_at_once_and_is_not_in_it(
    folder: RunFolder, selection: ModelSelection, updater: Updater
) -> None:
    writer = CheckpointWriter(folder.checkpoints, selection, keep=2)
    await writer.begin(1, updater, {"step": 1}, mark=False)
    updater.step(synthetic_rollouts(5, 64))  # waits for the writing thread, which needs nothing of this one
    await writer.close()
    assert kept(selection) == {1: "checkpoints/step-00000001"}


@pytest.mark.parametrize("raised_by", ["the next", "the end", "none of them"])
async def test_one_that_cannot_be_written_ends_the_run(
    raised_by: str, folder: RunFolder, selection: ModelSelection, updater: Updater, caplog: pytest.LogCaptureFixture
) -> None:
    folder.checkpoints.touch()  # a file where a folder is wanted
    writer = CheckpointWriter(folder.checkpoints, selection, keep=2)
    await writer.begin(1, updater, {}, mark=False)
    if raised_by == "the next":
        with pytest.raises(TrainingError, match="step-00000001 could not be written"):
            await writer.begin(2, updater, {}, mark=False)
    elif raised_by == "the end":
        with pytest.raises(TrainingError, match="step-00000001 could not be written"):
            await writer.finish()
    with caplog.at_level(logging.ERROR):
        await writer.close()
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == (raised_by == "none of them")
    assert all("step-00000001 could not be written" in message for message in logged)
    assert kept(selection) == {}

"""What a run's folder says of metrics and versions is in its store, and nothing else."""

from pathlib import Path

import msgspec
import pytest

from leyden.core.data.run import Run
from leyden.core.errors import StoreError
from leyden.core.store.base import LightningStore
from leyden.core.store.memory import MemoryStore
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.run_sync import StoreSync
from leyden.core.trainer.run_folder.versions import Evaluation, ModelVersion, VersionFile

CONFIG = RunConfig(name="r", agent="a", policy="Qwen/Qwen3-0.6B")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "config.yaml").write_text("name: r\nuri: redis://u:***@h\n")
    return RunFolder(tmp_path)


def taken(folder: RunFolder, step: int, **numbers: object) -> None:
    """Write down a step that was taken, and its version, with a checkpoint."""
    folder.append_metrics({"step": step, "reward": step / 4, "algorithm": "x", **numbers})
    checkpoint = folder.checkpoints / f"step-{step:08}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "progress.json").write_text("{}")
    VersionFile(folder.path).append(known(step, weights=f"checkpoints/{checkpoint.name}"))


def known(step: int, **more: object) -> ModelVersion:
    fields = {"run": "r", "version": step, "parent": step - 1 if step else None, "created": 5.0 + step}
    fields |= {"algorithm": "lightning_rl", "seed": 3, "policy": CONFIG.policy}
    return ModelVersion(**{**fields, **more})  # pyright: ignore[reportArgumentType] (varied by the test)


async def only_run(store: LightningStore) -> Run:
    (run,) = await store.query_runs()
    return run


async def metrics_of(store: LightningStore) -> dict[int, dict[str, float]]:
    page = await store.query_metrics((await only_run(store)).run_id)
    return {found.step: found.values for found in page}


async def paths_of(store: LightningStore) -> dict[int, str | None]:
    page = await store.query_policy_versions()
    return {found.version: None if found.path is None else Path(found.path).name for found in page}


async def test_the_store_follows_the_folder(folder: RunFolder) -> None:
    store = MemoryStore()
    recording = StoreSync(store, folder, CONFIG)
    await recording.catch_up()
    assert (await store.query_runs()).total == 0, "nothing has begun"
    VersionFile(folder.path).append(known(0))
    await recording.begin(0)
    run = await only_run(store)
    assert (run.name, run.status, run.config) == ("r", "running", {"name": "r", "uri": "redis://u:***@h"})
    assert run.run_id.startswith("r-") and run.run_id == folder.run_id("r")
    folder.append_metrics({"step": 0, "held_out": "dev", "success": 0.25, "sides": {"a": 0.25, "b": None}})
    folder.append_metrics({"step": 0, "held_out": "dev", "sampled": None})
    taken(folder, 1, loss=float("nan"))
    folder.append_metrics({"step": 1, "alert": "entropy", "message": "it falls"})
    taken(folder, 2, notes={"candidate/0": "{}"})
    await recording.catch_up()
    await recording.catch_up()
    assert await metrics_of(store) == {
        0: {"held_out/dev/success": 0.25, "a/held_out/dev/success": 0.25},
        1: {"reward": 0.25},
        2: {"reward": 0.5},
    }
    noted = [step.notes for step in (await store.query_metrics(run.run_id)).items]
    assert noted == [{}, {"alert/entropy": "it falls"}, {"candidate/0": "{}"}]
    first, second, _ = await store.query_policy_versions()
    assert (first.path, first.parent, first.create_time) == ("Qwen/Qwen3-0.6B", None, 5.0)
    assert second.path == str(folder.checkpoints.resolve() / "step-00000001")
    assert (second.parent, second.metadata) == (0, {"algorithm": "lightning_rl", "seed": 3})
    await recording.end()
    assert (await only_run(store)).status == "succeeded"


async def test_what_a_version_earns_later_and_the_loss_of_its_checkpoint_are_noted(folder: RunFolder) -> None:
    store = MemoryStore()
    recording = StoreSync(store, folder, CONFIG)
    await recording.begin(0)
    for step in (1, 2):
        taken(folder, step)
    await recording.catch_up()
    assert await paths_of(store) == {1: "step-00000001", 2: "step-00000002"}
    (folder.checkpoints / "step-00000001/progress.json").unlink()
    scores = {"dev": Evaluation(success=0.5)}
    VersionFile(folder.path).append(
        known(2, metrics={"reward": 0.5}, held_out=scores, weights="checkpoints/step-00000002")
    )
    await recording.catch_up()
    assert await paths_of(store) == {1: None, 2: "step-00000002"}
    (scored,) = [found for found in await store.query_policy_versions() if found.version == 2]
    assert scored.metrics == {"reward": 0.5, "held_out/dev/success": 0.5}


async def test_a_sitting_after_a_crash_leaves_nothing_of_what_the_folder_forgot(folder: RunFolder) -> None:
    store = MemoryStore()
    recording = StoreSync(store, folder, CONFIG)
    await recording.begin(0)
    for step in (1, 2, 3):
        taken(folder, step)
        await recording.catch_up()
    folder.append_metrics({"step": 2, "late": 1.0})  # written, and the process killed before the store had it
    before = await only_run(store)
    folder.rewind_metrics(2)
    VersionFile(folder.path).rewind(2)
    again = StoreSync(store, folder, CONFIG)
    await again.begin(2)
    assert {**await metrics_of(store)} == {1: {"reward": 0.25}, 2: {"reward": 0.5, "late": 1.0}}
    assert list(await paths_of(store)) == [1, 2]
    after = await only_run(store)
    assert (after.run_id, after.start_time, after.status) == (before.run_id, before.start_time, "running")
    taken(folder, 3, other=1.0)
    await again.catch_up()
    assert (await metrics_of(store))[3] == {"reward": 0.75, "other": 1.0}


async def test_its_experiment_is_noted_and_follows_the_configuration(folder: RunFolder) -> None:
    store = MemoryStore()
    config = msgspec.structs.replace(CONFIG, experiment="rates")
    await StoreSync(store, folder, config).begin(0)
    assert (await only_run(store)).experiment == "rates"
    assert (await store.query_runs(experiment="rates")).total == 1
    await StoreSync(store, folder, CONFIG).begin(0)
    assert (await only_run(store)).experiment is None


async def test_each_of_several_policies_has_its_versions(folder: RunFolder) -> None:
    store = MemoryStore()
    config = RunConfig(name="r", agent="a", policy="p", sides=("plain", "adapted"), acting=("plain",))
    recording = StoreSync(store, folder, config)
    VersionFile(folder.path).append(known(0, policy="p"))
    await recording.begin(0)
    taken(folder, 1)
    await recording.catch_up()
    page = await store.query_policy_versions(sort_by="version")
    found = [(one.policy, one.version, one.path and Path(one.path).name) for one in page]
    assert found == [("plain", 0, "p"), ("adapted", 0, "p"), ("plain", 1, "plain"), ("adapted", 1, "adapted")]


async def test_how_it_ended_badly_is_noted_and_a_store_that_fails_hides_no_error(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    recording = StoreSync(store, folder, CONFIG)
    await recording.begin(0)
    await recording.end_badly("stopped")
    assert (await only_run(store)).status == "stopped"
    await recording.begin(0)
    assert (await only_run(store)).status == "running"

    async def full(*_: object, **__: object) -> Run:
        raise StoreError("database or disk is full")

    monkeypatch.setattr(store, "update_run", full)
    await recording.end_badly("failed")
    assert "disk is full" in caplog.text

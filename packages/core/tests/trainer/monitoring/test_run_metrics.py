from pathlib import Path
from typing import Any

import pytest

from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.monitoring.run_metrics import RunMetrics, sanitised
from leyden.core.trainer.run_folder.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def measuring(folder: RunFolder) -> RunMetrics:
    return RunMetrics(folder, RunConfig(name="calc", policy="folder", algorithm="verl", steps=9))


async def measured(metrics: RunMetrics) -> dict[str, float]:
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sample.labels.items()): sample.value
        for family in await metrics.measure()
        for sample in family.samples
    }


def write(folder: RunFolder, *lines: dict[str, Any]) -> None:
    for line in lines:
        folder.append_metrics(line)


async def test_a_run_without_a_step_is_shown_as_such(folder: RunFolder) -> None:
    assert await measured(measuring(folder)) == {
        "leyden_run_info run=calc algorithm=verl": 1,
        "leyden_run_planned_steps": 9,
        "leyden_run_step": 0,
    }


async def test_the_last_step_is_shown_under_its_own_names(folder: RunFolder) -> None:
    metrics = measuring(folder)
    write(folder, {"step": 1, "reward": 0.1, "gone": 3})
    assert (await measured(metrics))["leyden_step_gone number=gone"] == 3
    write(
        folder,
        {"step": 2, "reward": 0.5, "actor/pg_loss": -0.25, "timing_s/gen": 4, "note": "text", "nothing": None},
        {"step": 2, "alert": "entropy", "message": "fell"},
    )
    found = await measured(metrics)
    assert found["leyden_run_step"] == 2
    assert found["leyden_step_reward number=reward"] == 0.5
    assert found["leyden_step_actor_pg_loss number=actor/pg_loss"] == -0.25
    assert found["leyden_step_timing_s_gen number=timing_s/gen"] == 4
    assert not any("gone" in name or "note" in name for name in found)
    assert found["leyden_run_written_timestamp_seconds"] == folder.metrics_file.stat().st_mtime


async def test_alerts_are_counted_and_evaluations_are_the_last(folder: RunFolder) -> None:
    write(
        folder,
        {"step": 0, "held_out": "val", "success": 0.25},
        {"step": 0, "held_out": "val", "sampled": 0.125},
        {"step": 1, "reward": 0.5},
        {"step": 1, "alert": "entropy", "message": "fell"},
        {"step": 2, "reward": 0.5},
        {"step": 2, "held_out": "val", "success": 0.75},
        {"step": 2, "held_out": "other", "success": None},
        {"step": 3, "alert": "entropy", "message": "fell again"},
    )
    found = await measured(measuring(folder))
    assert found["leyden_run_alerts_total alert=entropy"] == 2
    shares = {name: value for name, value in found.items() if name.startswith("leyden_run_held_out")}
    assert shares == {
        "leyden_run_held_out_success set=val sampled=false": 0.75,
        "leyden_run_held_out_success set=val sampled=true": 0.125,
    }


async def test_names_that_become_the_same_stay_apart(folder: RunFolder) -> None:
    write(folder, {"step": 1, "a/b": 1, "a-b": 2, "ünder": 3})
    found = await measured(measuring(folder))
    assert found["leyden_step_a_b number=a/b"] == 1
    assert found["leyden_step_a_b number=a-b"] == 2
    assert sanitised("timing_s/gen (ms)") == "timing_s_gen_ms_"


async def test_a_run_that_goes_back_shows_what_is_left(folder: RunFolder) -> None:
    metrics = measuring(folder)
    write(folder, {"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2})
    assert (await measured(metrics))["leyden_run_step"] == 2
    folder.rewind_metrics(1)
    assert (await measured(metrics))["leyden_run_step"] == 1

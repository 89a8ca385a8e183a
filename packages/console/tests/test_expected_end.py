"""When a running run will end."""

import os
from pathlib import Path

import pytest
from console_runs import made_run

from leyden.console.expected_end import Plan, expected_end
from leyden.console.runs.folder_run import FolderRun
from leyden.core.trainer.run_folder.run_lock import LOCK
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile


def test_evaluations_count_as_well_as_steps() -> None:
    """Step 1 of 4 took 2 s, after an evaluation of 30 s; three steps and the final evaluation are left."""
    plan = Plan(steps=4, has_held_out=True)

    assert expected_end(plan, {0: 100.0, 1: 132.0}, {1: 2.0}, {0}) == 132.0 + 3 * 2.0 + 30.0
    assert expected_end(Plan(steps=4), {0: 100.0, 1: 102.0}, {1: 2.0}, ()) == 102.0 + 3 * 2.0


def test_evaluations_during_the_run_are_counted_until_the_last_version() -> None:
    plan = Plan(steps=10, eval_every=3, has_held_out=True)
    created = {0: 0.0, 1: 22.0, 2: 24.0, 3: 46.0, 4: 48.0}

    assert [plan.evaluations_after(version) for version in (4, 6, 9, 10)] == [3, 2, 1, 0]
    assert expected_end(plan, created, dict.fromkeys(range(1, 5), 2.0), {0, 3}) == 48.0 + 6 * 2.0 + 3 * 20.0


def test_the_wall_clock_between_steps_counts_too() -> None:
    """Checkpoints take 3 s between steps."""
    created = {0: 0.0, 1: 5.0, 2: 10.0}

    assert expected_end(Plan(steps=4), created, {1: 2.0, 2: 2.0}, ()) == 20.0


def test_nothing_is_said_where_the_time_of_an_evaluation_is_not_known() -> None:
    plan = Plan(steps=9, has_held_out=True)

    assert expected_end(plan, {}, {}, ()) is None
    assert expected_end(plan, {0: 0.0}, {}, {0}) is None
    assert expected_end(plan, {5: 0.0, 6: 2.0}, {5: 2.0, 6: 2.0}, {0}) is None, "a continued run has evaluated nothing"


def test_the_last_version_still_has_its_evaluation_before_it() -> None:
    plan = Plan(steps=1, has_held_out=True)

    assert expected_end(plan, {0: 0.0, 1: 12.0}, {1: 2.0}, {0}) == 22.0
    assert expected_end(plan, {0: 0.0, 1: 12.0}, {1: 2.0}, {0, 1}) is None


@pytest.mark.parametrize(("began", "expected"), [(0.0, 132.0 + 2.0 + 30.0), (120.0, None)])
async def test_only_versions_of_the_current_session_are_timed(
    tmp_path: Path, began: float, expected: float | None
) -> None:
    folder = made_run(tmp_path, finished=False)
    VersionFile(folder.path).path.unlink()
    folder.rewind_metrics(1)
    for version, created in ((0, 100.0), (1, 132.0)):
        VersionFile(folder.path).append(
            ModelVersion(run="small", version=version, parent=None, created=created, algorithm="lightning_rl", seed=0)
        )
    run = FolderRun(folder.path)
    with folder.locked():
        os.utime(folder.path / LOCK, (began, began))

        assert await run.expected_end() == expected
    assert await run.expected_end() is None, "a run that no process trains has no end to come"

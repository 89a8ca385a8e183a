"""Past runs: which become trials, and why the others do not."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from scripted_studies import BASE, TASKS, begin_run, end_run, evaluate, study_plan

from leyden.core.tuning.past import find_past
from leyden.core.tuning.plan import StudyPlan

ROWS: list[dict[str, Any]] = [{"question": "a training task"}]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyPlan:
    """A study in a folder of runs that has none yet. The tasks of past runs are read from their folders."""
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text("")
    os.utime("agent.py", (1, 1))
    return study_plan(tmp_path / "runs/s")


def past_run(path: str, score: float = 0.5, *, has_ended: bool = True, tasks: Any = ROWS, **settings: Any) -> None:
    run = begin_run(Path("runs", path), {**BASE, **settings}, tasks)
    evaluate(run, 2, score / 2)
    evaluate(run, 4, score)
    if has_ended:
        end_run(run, 4)


def rate(value: float, **others: Any) -> dict[str, Any]:
    return {"algorithm_config": {"learning_rate": value, **others}}


def test_runs_that_differ_in_searched_keys_alone_become_trials(plan: StudyPlan) -> None:
    past_run("same")
    past_run("experiment/faster", 0.8, **rate(5e-3), experiment="e", eval_every=2, keep_checkpoints=9)
    past_run("written_out", 0.7, **rate(2e-3, credit="uniform", epochs=1), group_size=8)
    found = find_past(Path("runs"), plan, ROWS, TASKS)
    assert not found.left_out
    assert {(one.values["learning_rate"], one.score) for one in found.trials} == {(1e-3, 0.5), (5e-3, 0.8), (2e-3, 0.7)}
    assert found.trials[0].reported == {2: 0.4, 4: 0.8}
    assert found.lines() == ["past runs: 3 became 3 trials; 0 were left out"]


def test_other_runs_are_left_out_with_the_reason(plan: StudyPlan) -> None:
    past_run("unfinished", has_ended=False)
    past_run("longer", steps=9)
    past_run("larger", **rate(1e-3, epochs=2))
    past_run("outside", **rate(0.5))
    past_run("seed", seed=3)
    past_run("elsewhere", held_out=[{"name": "other", "source": "val.jsonl"}])
    past_run("trained_on_others", tasks=[{"question": "another"}])
    past_run("s/trial-0-seed-0")  # of the study itself: not even counted
    found = find_past(Path("runs"), plan, ROWS, TASKS)
    assert not found.trials
    assert dict(found.left_out) == {
        "it has not finished": 1,
        "steps was 9, and is now 4": 1,
        "algorithm_config.epochs was 2, and is now 1": 1,
        "its learning_rate is outside the search": 1,
        "seed 3 is none of the study's": 1,
        "it was not evaluated on val": 1,
        "it has other training tasks": 1,
    }
    lines = found.lines()
    assert lines[0] == "past runs: 0 became 0 trials; 7 were left out"
    assert lines[-1] == "  2: for other reasons"


def test_other_held_out_tasks_and_changed_code_are_left_out(plan: StudyPlan) -> None:
    past_run("same")
    assert dict(find_past(Path("runs"), plan, ROWS, [*TASKS, {}]).left_out) == {
        "its held-out set val has other tasks": 1
    }
    os.utime("agent.py", (time.time() + 60, time.time() + 60))
    assert dict(find_past(Path("runs"), plan, ROWS, TASKS).left_out) == {"agent.py was changed after it began": 1}


def test_each_seed_of_the_study_is_needed(plan: StudyPlan) -> None:
    past_run("a", 0.4)
    past_run("b", 0.6, seed=1)
    past_run("c", 0.9, **rate(5e-3))
    both = study_plan(plan.folder, seeds=(0, 1))
    found = find_past(Path("runs"), both, ROWS, TASKS)
    (trial,) = found.trials
    assert (trial.values, trial.score) == ({"learning_rate": 1e-3}, 0.5)
    assert [path.name for path in trial.runs] == ["a", "b"]
    assert dict(found.left_out) == {"no run with the same settings has seed 1": 1}


def test_a_second_run_with_the_same_settings_is_left_out(plan: StudyPlan) -> None:
    past_run("a", 0.4)
    past_run("b", 0.6)
    found = find_past(Path("runs"), plan, ROWS, TASKS)
    assert [one.score for one in found.trials] == [0.4]
    assert dict(found.left_out) == {"another run has the same settings and seed": 1}


def test_without_runs_that_is_said(plan: StudyPlan) -> None:
    assert find_past(Path("runs"), plan, ROWS, TASKS).lines() == ["past runs: none were found"]

"""Trials of a study: what is begun, stopped and taken up again, and what failures do."""

import math
from pathlib import Path
from typing import Any

import pytest
from scripted_studies import BASE, Settings, open_storage, run_trials, study_plan

from leyden.core.experiments.progress import Progress
from leyden.core.tuning import execution
from leyden.core.tuning.execution import StudyFailed
from leyden.core.tuning.plan import StudyPlan
from leyden.core.tuning.trial import Trial

pytestmark = pytest.mark.integration  # dozens of commits to a database each


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the runs again at once."""
    monkeypatch.setattr(execution, "PAUSE", 0.0)


def rate(settings: Settings) -> float:
    return settings["algorithm_config"]["learning_rate"]


def rising(settings: Settings) -> list[float]:
    """Scores that rise to the better values, the nearer the learning rate is to 3e-3; the default is 1e-3."""
    best = max(0.0, 0.9 - 0.4 * abs(math.log10(rate(settings) / 3e-3)))
    return [round(best * share, 2) for share in (0.25, 0.5, 0.75, 1.0)]


def trials_of(plan: StudyPlan) -> list[Trial]:
    storage = open_storage(plan)
    try:
        return storage.trials()
    finally:
        storage.close()


def test_the_default_is_trial_0_and_is_scored_after_the_last_step(tmp_path: Path) -> None:
    plan = study_plan(tmp_path / "s", prunes=False)
    done = run_trials(plan, rising, trials=4)
    assert done.started == [f"trial-{number}-seed-0" for number in range(4)]
    trials = trials_of(plan)
    assert [trial.is_default for trial in trials] == [True, False, False, False]
    assert trials[0].values == {"learning_rate": 1e-3}
    assert trials[0].score == pytest.approx(0.7)  # 14 of 20 tasks
    assert {trial.state for trial in trials} == {"finished"}
    tried = {float(trial.values["learning_rate"]) for trial in trials}
    assert len(tried) == 4 and min(tried) >= 1e-4 and max(tried) <= 1e-2


def test_a_default_outside_the_search_is_still_trial_0(tmp_path: Path) -> None:
    plan = study_plan(tmp_path / "s", "learning_rate=2e-3..4e-3", prunes=False)
    run_trials(plan, rising, trials=3)
    trials = trials_of(plan)
    assert trials[0].is_default and trials[0].values == {}
    assert trials[0].score == pytest.approx(0.7)
    assert max(trial.score or 0 for trial in trials[1:]) > 0.7


def test_what_is_below_the_median_is_stopped_with_its_step_and_reason(tmp_path: Path) -> None:
    plan = study_plan(tmp_path / "s")

    def script(settings: Settings) -> list[float]:
        """The fourth trial and those after it are hopeless."""
        number = int(settings["name"].split("-")[1])
        return [0.4, 0.5, 0.6, 0.7] if number < 4 else [0.1, 0.1, 0.9, 0.9]

    run_trials(plan, script, trials=6)
    trials = trials_of(plan)
    assert [trial.state for trial in trials] == ["finished"] * 4 + ["pruned"] * 2
    assert trials[4].reason == ("stopped after step 1: 0.100 is below 0.400, the median of 4 trials at this point")
    assert not (tmp_path / "s/trial-4-seed-0/report.json").exists()


def test_a_stopped_run_is_shown_with_its_reason_and_the_seeds_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = study_plan(tmp_path / "s", seeds=(0, 1)).trial(4, {"learning_rate": 2e-3})[0]
    progress = Progress(2)
    progress.begin(job, resumes=False)
    progress.leave_out(1)
    progress.end(job, "pruned", "after step 1 of seed 0, 0.1 is below 0.4", was_there=False)
    assert capsys.readouterr().err.splitlines() == [
        "trial 4, seed 0: started (0 of 2 done)",
        "trial 4, seed 0: pruned: after step 1 of seed 0, 0.1 is below 0.4 (1 of 1 done)",
    ]


def test_the_default_is_never_stopped_and_nothing_without_pruning(tmp_path: Path) -> None:
    def script(settings: Settings) -> list[float]:
        return [0.1, 0.1, 0.1, 0.1] if "trial-0" in settings["name"] else [0.5, 0.5, 0.5, 0.5]

    plan = study_plan(tmp_path / "s")
    run_trials(plan, script, trials=5)
    assert {trial.state for trial in trials_of(plan)} == {"finished"}
    other = study_plan(tmp_path / "t", prunes=False)
    run_trials(other, lambda settings: [0.5 - 0.1 * int(settings["name"].split("-")[1])] * 4, trials=5)
    assert {trial.state for trial in trials_of(other)} == {"finished"}


def test_a_killed_study_goes_on_and_proposes_the_same(tmp_path: Path) -> None:
    whole, cut = study_plan(tmp_path / "whole"), study_plan(tmp_path / "cut")
    run_trials(whole, rising, trials=8)
    first = run_trials(cut, rising, trials=8, most_steps=10)  # in the middle of the third trial
    assert first.started == ["trial-0-seed-0", "trial-1-seed-0", "trial-2-seed-0"]
    assert [trial.state for trial in trials_of(cut)] == ["finished", "finished", "running"]
    second = run_trials(cut, rising, trials=8)
    assert second.started == [f"trial-{number}-seed-0" for number in range(2, 8)]
    assert trials_of(cut) == trials_of(whole)
    assert run_trials(cut, rising, trials=8).started == []


def test_a_trial_that_ended_while_nobody_watched_is_not_run_again(tmp_path: Path) -> None:
    plan = study_plan(tmp_path / "s")
    storage = open_storage(plan)
    storage.begin_default({"learning_rate": 1e-3})
    storage.close()
    run_trials(study_plan(tmp_path / "other"), rising, trials=1)
    (tmp_path / "other/trial-0-seed-0").rename(tmp_path / "s/trial-0-seed-0")
    (tmp_path / "other/records").rename(tmp_path / "s/records")
    assert run_trials(plan, rising, trials=1).started == []
    assert trials_of(plan)[0].score == pytest.approx(0.7)


def test_failed_trials_keep_their_reason_and_do_not_stop_the_study(tmp_path: Path) -> None:
    plan = study_plan(tmp_path / "s")

    def script(settings: Settings) -> list[float] | str:
        return "out of memory" if settings["name"].split("-")[1] in "135" else rising(settings)

    run_trials(plan, script, trials=6)
    trials = trials_of(plan)
    assert [trial.reason for trial in trials if trial.state == "failed"] == ["out of memory"] * 3
    assert [trial.number for trial in trials if trial.state == "failed"] == [1, 3, 5]
    run_trials(plan, rising, trials=6)  # the next command replaces them by other settings
    assert len([trial for trial in trials_of(plan) if trial.state != "failed"]) == 6


@pytest.mark.parametrize(("trials", "begun"), [(12, 3), (2, 2)])
def test_a_study_whose_trials_all_fail_stops(tmp_path: Path, trials: int, begun: int) -> None:
    plan = study_plan(tmp_path / "s")
    with pytest.raises(StudyFailed, match="every trial failed, the last one because: no such agent"):
        run_trials(plan, lambda _: "no such agent", trials=trials)
    assert len(trials_of(plan)) == begun
    run_trials(plan, rising, trials=1)  # the default is tried again
    assert [trial.state for trial in trials_of(plan) if trial.is_default] == ["failed", "finished"]


def test_several_trials_run_at_once(tmp_path: Path) -> None:
    plan = study_plan(tmp_path / "s")
    done = run_trials(plan, rising, trials=7, at_once=3)
    assert done.most_at_once == 3
    assert len(trials_of(plan)) == 7


def test_each_seed_is_a_run_and_the_score_is_their_mean(tmp_path: Path) -> None:
    plan = study_plan(tmp_path / "s", seeds=(3, 4))

    def script(settings: Settings) -> list[float]:
        return [0.2, 0.2, 0.2, 0.4 if settings["seed"] == 3 else 0.8]

    done = run_trials(plan, script, trials=1)
    assert done.started == ["trial-0-seed-3", "trial-0-seed-4"]
    (trial,) = trials_of(plan)
    assert trial.score == pytest.approx(0.6)
    on_the_way = [score for _, score in sorted(trial.reported.items())]
    assert on_the_way == pytest.approx([0.2, 0.2, 0.2, 0.4, 0.3, 0.3, 0.3, 0.6])


def test_a_stopped_trial_runs_no_further_seed(tmp_path: Path) -> None:
    plan = study_plan(tmp_path / "s", seeds=(0, 1))

    def script(settings: Settings) -> list[float]:
        return [0.1] * 4 if settings["name"] == "trial-4-seed-0" else [0.5] * 4

    done = run_trials(plan, script, trials=5)
    assert "trial-4-seed-1" not in done.started
    trial = trials_of(plan)[4]
    assert (trial.state, trial.reason) == (
        "pruned",
        "stopped after step 1 of seed 0: 0.100 is below 0.500, the median of 4 trials at this point",
    )


def test_a_finite_search_ends_when_everything_was_tried(tmp_path: Path) -> None:
    base: dict[str, Any] = {**BASE, "algorithm_config": {"learning_rate": 1e-3, "credit": "uniform"}}
    plan = study_plan(tmp_path / "s", "credit=uniform,discounted", "group_size=7..8:int", base=base)
    run_trials(plan, rising, trials=12)
    trials = trials_of(plan)
    assert len(trials) == 4
    assert len({tuple(trial.values.items()) for trial in trials}) == 4

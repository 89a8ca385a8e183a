"""Results and report of runs that are on disk: stored reports, versions and metrics."""

import json
from pathlib import Path
from typing import Any

import pytest

from leyden.core.experiments.curves import band, save_curves
from leyden.core.experiments.definition import Expected, Experiment, Measure
from leyden.core.experiments.plan import Job, Plan
from leyden.core.experiments.record import JobRecord, Records, Session
from leyden.core.experiments.report import expectation_text, report_text, table
from leyden.core.experiments.results import read_result, read_results
from leyden.core.trainer.config import EvaluationSet, RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.run_folder.versions import Evaluation, ModelVersion, VersionFile

pytestmark = pytest.mark.integration  # a report names the commit, which git knows
TASKS = [{"question": text} for text in "abcd"]
HELD_OUT: list[dict[str, str]] = [{"name": "val", "source": "val.jsonl"}]


def experiment(**changes: Any) -> Experiment:
    fields: dict[str, Any] = {
        "title": "Which",
        "question": "Which is better?",
        "expected": Expected(arm="new", because="It is newer."),
        "arms": {"old": {}, "new": {"steps": 2}},
        "seeds": (0, 1),
        "measure": Measure(score="success", success_at=0.5),
        "metrics": ("loss",),
    }
    return Experiment(**(fields | changes))


def stored(
    records: Records, job: Job, rewards: dict[int, list[float]], *, steps: int, finished: bool = True, **session: Any
) -> None:
    """Write the folder and the record of a run whose versions earned these rewards."""
    config = RunConfig(
        name=job.name, policy="p", agent="a:a", steps=steps, held_out=(EvaluationSet(name="val", source="val.jsonl"),)
    )
    run = RunFolder.create(job.folder.parent, config, [{"question": "t"}], {"val": [*TASKS]})
    for number, earned in rewards.items():
        own = Evaluation(success=sum(earned) / 4, rewards={str(row): one for row, one in enumerate(earned)})
        version = ModelVersion(
            run=job.name, version=number, parent=None, created=0.0, algorithm="x", seed=0, held_out={"val": own}
        )
        VersionFile(run.path).append(version)
    for step in range(1, steps + 1):
        run.append_metrics({"step": step, "reward": step / 10, "loss": 2.0, "rollouts": 8, "seconds": 1.0})
    if finished:
        report = RunReport(name=job.name, seed=job.seed, steps=steps, tokens_generated=1000 + job.seed, rollouts=16)
        run.write_report(report)
    record = records.new(job)
    plain: dict[str, Any] = {"command": [], "leyden": "1", "began": 0.0, "load_before": 1.5, "ended": 9.0}
    fields: dict[str, Any] = {"load_after": 2.5, "exit_code": 0, **plain, **session}
    record.sessions.append(Session(**fields))
    records.write(job, record)


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Plan, Records]:
    """Four runs: one failed, the others finished."""
    plan = Plan("which", experiment(), {"held_out": HELD_OUT}, tmp_path / "which")
    records = Records(plan.folder)
    stored(records, plan.run("old", 0), {0: [0, 0, 0, 1], 2: [0, 0, 1, 1]}, steps=2)
    stored(records, plan.run("old", 1), {0: [0, 0, 0, 1], 2: [0, 1, 1, 1]}, steps=2)
    stored(records, plan.run("new", 0), {0: [0, 0, 0, 1], 2: [0.5, 1, 1, 0.4]}, steps=2)
    stored(records, plan.run("new", 1), {0: [0, 0, 0, 1]}, steps=1, finished=False, exit_code=1, error="disk | full")
    return plan, records


def test_scores_are_those_of_the_measure_before_and_after(whole: tuple[Plan, Records]) -> None:
    plan, records = whole
    old, new = read_results(records, plan.runs(["old", "new"], [0, 1]), plan.experiment.measure)
    assert (old.means("before"), old.means("after")) == ([0.25, 0.25], [0.5, 0.75])
    assert new.means("after") == [0.75]  # 0.4 is below the threshold of 0.5
    mean = read_result(records, plan.run("new", 0), Measure())
    assert mean.after is not None
    assert sorted(mean.after.values()) == [0.4, 0.5, 1, 1]
    assert read_result(records, plan.run("new", 0), Measure(sampling="sampled")).after is None
    assert (new.runs[1].state, new.runs[1].note, new.runs[1].after) == ("failed", "disk | full", None)


def test_a_run_without_spread_is_a_result(whole: tuple[Plan, Records]) -> None:
    plan, records = whole
    for seed, taken in ((5, 0), (6, 1)):
        job = plan.run("old", seed)
        stored(records, job, {0: [1, 1, 1, 1]}, steps=taken or 1, finished=False, exit_code=2, error="nothing")
        if not taken:
            RunFolder(job.folder).metrics_file.unlink()
        line = {"step": taken + 1, "account": {"rollouts": {"no spread": ["a", "b"]}}}
        RunFolder(job.folder).learned_file.write_text(json.dumps(line) + "\n")
    at_once, later = (read_result(records, plan.run("old", seed), Measure()) for seed in (5, 6))
    assert (at_once.state, later.state) == ("no spread", "no spread")
    assert at_once.after == at_once.before is not None
    assert later.after is None
    assert "it was not evaluated after this step" in (later.note or "")
    job = plan.run("old", 6)
    line = {"step": 2, "account": {"rollouts": {"no spread": ["a"], "no reward": ["b"]}}}
    RunFolder(job.folder).learned_file.write_text(json.dumps(line) + "\n")
    assert read_result(records, job, Measure()).state == "failed"


def test_a_run_of_other_settings_is_left_out(whole: tuple[Plan, Records]) -> None:
    plan, records = whole
    other = Plan("which", plan.experiment, {"held_out": HELD_OUT}, plan.folder, steps=9)
    found = read_result(records, other.run("old", 0), Measure())
    assert (found.state, found.after) == ("other settings", None)
    assert "steps was nothing, and is now 9" in (found.note or "")


def test_the_report_has_everything(whole: tuple[Plan, Records], tmp_path: Path) -> None:
    plan, records = whole
    arms = read_results(records, plan.runs(["old", "new"], [0, 1, 2]), plan.experiment.measure)
    image = tmp_path / "which.png"
    assert save_curves(arms, image, "held-out score")
    assert image.read_bytes().startswith(b"\x89PNG")
    text = report_text(
        "which", plan.experiment, arms, file="experiments/which.yaml", command=["leyden", "x y"], image=image
    )
    lines = text.splitlines()
    assert lines[0] == "# Which"
    assert "**Expected before the runs:** new should end highest. It is newer." in lines
    # new − old on seed 0, tasks a to d: 1 - 0, 1 - 0, 1 - 1, 0 - 1
    assert any(line.startswith("**Outcome:** new ended highest, with 75.0 %. new − old: +25.0 [") for line in lines)
    assert "| old | 2 of 3 | 25.0 | 62.5 (50.0–75.0) — new | – |" in lines
    (row,) = [line for line in lines if line.startswith("| new | 1 of 3")]
    assert row.startswith("| new | 1 of 3 | 25.0 | 75.0 — failed, new | +25.0 [")
    assert "| old | 2 |" in lines  # the metric
    assert "| old | 2 | 16 | 1,000 | 0 | 0 | 0 |" in lines
    assert "| new, seed 1 | failed | disk \\| full |" in lines
    assert "| new, seed 2 | new | not run yet |" in lines
    assert "| old, seed 0 | 1970-01-01 00:00 | 1.50 | 2.50 |" in lines
    assert "leyden 'x y'" in lines
    assert "![" in text and "(which.png)" in text


def test_a_changed_expectation_is_reported(whole: tuple[Plan, Records]) -> None:
    plan, records = whole
    arms = read_results(records, plan.runs(["old"], [0]), plan.experiment.measure)
    before = expectation_text(experiment(expected=Expected(because="None is better.")))
    text = report_text("which", plan.experiment, arms, file="f", command=["c"], expected_before=before)
    assert "Expected then: no arm should end highest. None is better." in text


def test_an_expectation_is_one_line_however_the_file_breaks_it() -> None:
    """A block of YAML ends with a line break, and the expectation is compared with that of the first run."""
    text = expectation_text(experiment(expected=Expected(arm="new", because="It is\nnewer.\n")))
    assert text == "new should end highest. It is newer."


def test_bands_hold_the_seeds_that_have_a_step() -> None:
    assert band([[(0, 1.0), (1, 3.0)], [(0, 2.0)]]) == [(0, 1.5, 1.0, 2.0), (1, 3.0, 3.0, 3.0)]
    assert save_curves([], Path("never.png"), "x") is False


def test_cells_keep_their_bars() -> None:
    assert table(["a"], [["x|y"]]) == "| a |\n| --- |\n| x\\|y |"


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    records = Records(tmp_path)
    job = Job(name="a-0", seed=0, folder=tmp_path / "a-0", arm="a", settings={"routes": ({"to": "x"},)})
    assert records.read(job) is None
    records.write(job, records.new(job))
    assert records.read(job) == JobRecord(settings={"routes": [{"to": "x"}]})
    assert records.change(job) is None
    assert records.write_settings(job).read_text() == "routes:\n- to: x\n"

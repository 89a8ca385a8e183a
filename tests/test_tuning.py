"""`leyden tune` on the quickstart's example: a study that was killed goes on, and repeats nothing."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from run_processes import kill_training, wait_until
from warm_process import Running

if TYPE_CHECKING:
    import subprocess

RUN_FILE = Path(__file__).parents[1] / "examples/calculator_langgraph/run.yaml"


def steps_of(run: Path) -> list[int]:
    """The steps that a run has taken, in the order in which it took them."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "reward" in line]


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_a_killed_study_of_the_quickstart_goes_on(
    start: Callable[..., Running],
    leyden: "Callable[..., subprocess.CompletedProcess[str]]",
    few_held_out: Path,
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = yaml.safe_load(RUN_FILE.read_text())
    file, study = tmp_path / "small.yaml", tmp_path / "runs/small-tune"
    file.write_text(yaml.safe_dump({**settings, "steps": 2, "tasks_per_step": 4, "group_size": 4}))
    arguments = ["tune", "--config", str(file), "--val", str(few_held_out), "--runs", str(study.parent)]
    arguments += ["--search", "learning_rate=1e-4..1e-3:log", "--search", "credit=uniform,discounted"]
    arguments += ["--trials", "3", "--eval-every", "1"]
    process = start(*arguments)
    wait_until((study / "trial-1-seed-0").exists, process)
    process.send_signal(signal.SIGKILL)
    process.ended(20)
    kill_training(study / "trial-1-seed-0")
    before = (study / "trial-0-seed-0/report.json").stat().st_mtime_ns

    done = leyden(*arguments, "--json", timeout=900)
    assert done.returncode == 0, done.stderr
    assert "trial 1, seed 0: resumed" in done.stderr
    assert "trial 0" not in done.stderr
    assert (study / "trial-0-seed-0/report.json").stat().st_mtime_ns == before
    events = [json.loads(line) for line in done.stdout.splitlines()]
    trials, (found,) = events[:-1], events[-1:]
    assert [trial["number"] for trial in trials] == [0, 1, 2]
    assert trials[0]["default"] and trials[0]["values"] == {"learning_rate": 6e-4, "credit": "discounted"}
    assert len({json.dumps(trial["values"]) for trial in trials}) == 3
    for trial in trials:
        run = study / f"trial-{trial['number']}-seed-0"
        report = json.loads((run / "report.json").read_text())
        assert (trial["state"], trial["score"]) == ("finished", report["success_after"])
        assert steps_of(run) == [1, 2]
    best = max(trial["score"] for trial in trials)
    assert trials[found["best"]]["score"] == best
    assert Path(found["slices"]).exists()

    again = leyden(*arguments, "--only-report")
    assert again.returncode == 0, again.stderr
    trained = again.stdout.rpartition("leyden train ")[2].split()
    assert trained[:2] == ["--config", f"{study}/best.yaml"]
    checked = leyden("train", *trained[:2], "--steps", "0", "--no-check", "--runs", str(tmp_path / "best"))
    assert checked.returncode == 0, checked.stderr

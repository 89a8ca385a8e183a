"""`leyden experiments`: the experiments of the documentation can be read, and a killed matrix goes on where it was."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from run_processes import kill_training, wait_until
from warm_process import Running

from leyden.core.cli.experiment_file import read_experiment

if TYPE_CHECKING:
    import subprocess

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/experiments.md").read_text(), re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.integration


def test_the_experiments_of_the_documentation_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert len(BLOCKS) == 2
    for number, text in enumerate(BLOCKS):
        path = tmp_path / f"documented{number}.yaml"
        path.write_text(text)
        read_experiment(path)


def test_the_experiments_of_the_repository_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    files = sorted(Path("experiments").glob("*.yaml"))
    assert files
    for path in files:
        read_experiment(path)


def smaller(few_held_out: Path) -> dict[str, Any]:
    """The first experiment of the documentation, with fewer rollouts, whose arms start from a policy made first."""
    found: dict[str, Any] = yaml.safe_load(BLOCKS[0])
    found["settings"] = {
        "steps": 2,
        "tasks_per_step": 4,
        "group_size": 4,
        "policy": "$copy",
        "held_out": [{"name": "val", "source": str(few_held_out)}],
    }
    found["prepare"] = {
        "copy": {"command": ["cp", "-r", "examples/calculator_langgraph/policy/.", "{folder}"], "seeds": "shared"}
    }
    # An agent that does not exist: this arm fails, and the others go on.
    found["arms"] = {"uniform": {}, "broken": {"agent": "no_such_agent.py:agent"}, "untrained": {"steps": 0}}
    found["expected"] = {"arm": "uniform", "because": "It is trained."}
    return found


def reports(runs: Path) -> dict[str, int]:
    """Time of change of each finished run's report."""
    return {path.parent.name: path.stat().st_mtime_ns for path in runs.glob("*/report.json")}


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_a_killed_matrix_goes_on_and_reports(
    start: Callable[..., Running],
    leyden: "Callable[..., subprocess.CompletedProcess[str]]",
    few_held_out: Path,
    tmp_path: Path,
) -> None:
    path, out, runs = tmp_path / "small.yaml", tmp_path / "out", tmp_path / "runs/small"
    path.write_text(yaml.safe_dump(smaller(few_held_out), sort_keys=False))
    arguments = ["experiments", "run", str(path), "--runs", str(runs.parent), "--out", str(out)]
    process = start(*arguments)
    wait_until((runs / "uniform-1").exists, process)
    process.send_signal(signal.SIGKILL)
    process.ended(20)
    record = json.loads((runs / "records/uniform-1.json").read_text())
    assert record["sessions"][-1].get("ended") is None
    before = reports(runs)
    assert set(before) == {"uniform-0", "untrained-0"}
    kill_training(runs / "uniform-1")

    done = leyden(*arguments, timeout=900)
    assert done.returncode == 1, done.stderr  # the broken arm
    assert "uniform, seed 0: finished, made before" in done.stderr
    assert "uniform, seed 1: resumed" in done.stderr
    assert "broken, seed 0: failed: " in done.stderr
    after = reports(runs)
    assert set(after) == {f"{arm}-{seed}" for arm in ("uniform", "untrained") for seed in (0, 1)}
    assert before.items() <= after.items()
    steps = [json.loads(line) for line in (runs / "uniform-1/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if "reward" in line] == [1, 2]

    text = (out / "small.md").read_text()
    assert (out / "small.png").exists()
    for arm, seeds in (("untrained", "2"), ("broken", "0 of 2"), ("uniform", "2")):
        assert f"| {arm} | {seeds} |" in text
    assert "no_such_agent.py" in text
    assert "| uniform, seed 1, session 2 |" in text
    assert expected_mean(runs, "uniform") in text

    again = leyden("experiments", "report", str(path), "--runs", str(runs.parent), "--out", str(out))
    assert again.returncode == 0, again.stderr
    changed = leyden(*arguments, "--steps", "3")
    assert changed.returncode == 2
    assert "uniform-0 was made with other settings: steps was 2, and is now 3" in changed.stderr
    assert changed.stderr.count("\n") == 1


def expected_mean(runs: Path, arm: str) -> str:
    """The arm's mean success after the last step, from the reports alone, as the table shows it."""
    found = [json.loads((runs / f"{arm}-{seed}/report.json").read_text())["success_after"] for seed in (0, 1)]
    return f"| {100 * sum(found) / 2:.1f}"

"""`leyden check` and the check before `leyden train`, as a user meets them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = Path("examples/calculator_langgraph")

pytestmark = [pytest.mark.timeout(600)]

Leyden = Callable[..., Any]


def checking(arguments: list[str]) -> list[str]:
    """The same arguments, for a check."""
    return ["check", *arguments[1:]]


def test_the_example_is_proven_to_learn(leyden: Leyden, train_arguments: Leyden, tmp_path: Path) -> None:
    done = leyden(*checking(train_arguments(tmp_path, "checked")), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    *checks, report = map(json.loads, done.stdout.splitlines())
    assert {line["status"] for line in checks} <= {"ok", "warning"}
    assert report["proven"]
    assert "'calculator_agent'" in next(line for line in checks if line["name"] == "selection")["seen"]
    assert not (tmp_path / "checked").exists(), "a check keeps nothing"


def test_a_fault_is_shown_and_fails(leyden: Leyden, train_arguments: Leyden, tmp_path: Path) -> None:
    done = leyden(*checking(train_arguments(tmp_path, "checked")), "--agent-match", "accountant")
    assert done.returncode == 1
    assert "--agent-match 'accountant' matches none" in done.stdout
    assert "calculator_agent" in done.stdout
    assert "Traceback" not in done.stderr


def test_bad_input_is_no_failed_check(leyden: Leyden, train_arguments: Leyden, tmp_path: Path) -> None:
    done = leyden(*checking(train_arguments(tmp_path, "checked")), "--set", "learning_rat=1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "learning_rat" in done.stderr


def test_a_run_that_would_not_learn_is_stopped_and_its_name_is_free(
    leyden: Leyden, train_arguments: Leyden, tmp_path: Path
) -> None:
    done = leyden(*train_arguments(tmp_path, "stopped"), "--agent-match", "accountant", "--quiet")
    assert done.returncode == 1
    said = done.stderr.splitlines()
    at = said.index("leyden: the check found that this run would not learn:")
    assert said[at + 1].startswith("  selection: --agent-match 'accountant' matches none of")
    shown = leyden("show", "stopped", "--runs", str(tmp_path))
    assert "ended before its first step: the check found that this run would not learn" in shown.stdout
    assert "continue with" not in shown.stdout
    why = leyden("why", "stopped", "--runs", str(tmp_path))
    assert "not selected: the options that select calls do not select it" in why.stdout
    again = leyden(*train_arguments(tmp_path, "stopped"), "--agent-match", "accountant", "--quiet")
    assert (again.returncode, "exists" in again.stderr) == (1, False)


def test_a_failed_check_is_kept_with_what_the_agents_printed_until_the_next(leyden: Leyden, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("def agent(task):\n    print('seen')\n    raise LookupError(task['question'])\n")
    arguments = (
        *("check", f"{tmp_path}/agent.py:agent", "--tasks", f"{EXAMPLE}/train.jsonl"),
        *("--reward", f"{EXAMPLE}/reward.py:score", "--policy", f"{EXAMPLE}/policy"),
        *("--runs", str(tmp_path / "runs"), "--quiet"),
    )
    for _ in range(2):
        done = leyden(*arguments)
        assert done.returncode == 1
        (folder,) = (tmp_path / "runs").iterdir()
        assert f"the output of the agents is in {folder}/agents.log" in done.stderr
        assert "seen" in (folder / "agents.log").read_text()
        assert "32 of 32 failed: 32 × LookupError: " in done.stderr
        why = leyden("why", folder.name, "--runs", str(folder.parent))
        assert "32  agent error: the agent raised" in why.stdout
        assert f"the output of the agents is in {folder}/agents.log" in why.stdout


@pytest.fixture(scope="module")
def two_runs(leyden: Leyden, train_arguments: Leyden, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step, with a check before it and without."""
    runs = tmp_path_factory.mktemp("runs")
    for name, option in (("checked", "--check"), ("trusted", "--no-check")):
        arguments = train_arguments(runs, name, "--steps", "1", "--deterministic", "--seed", "3", option)
        done = leyden(*arguments)
        assert done.returncode == 0, done.stderr
    return runs


def test_a_run_begins_untouched_by_its_check(two_runs: Path) -> None:
    ends = [(two_runs / name / "policy" / "model.safetensors").read_bytes() for name in ("checked", "trusted")]
    assert ends[0] == ends[1]
    assert ends[0] != (ROOT / EXAMPLE / "policy" / "model.safetensors").read_bytes()
    reports = [json.loads((two_runs / name / "report.json").read_text()) for name in ("checked", "trusted")]
    assert reports[0]["rollouts"] == reports[1]["rollouts"], "the check runs none of its own"
    assert reports[0]["seconds_by_phase"]["check"] > 0
    assert (two_runs / "checked" / "check.json").exists()
    assert not (two_runs / "trusted" / "check.json").exists()


def test_a_resumed_run_is_not_checked_again(leyden: Leyden, two_runs: Path, tmp_path: Path) -> None:
    for name in ("checked", "trusted"):
        shutil.copytree(two_runs / name, tmp_path / name)
        before = (tmp_path / name / "report.json").read_text()
        done = leyden("train", "--resume", name, "--runs", str(tmp_path), "--steps", "2")
        assert done.returncode == 0, done.stderr
        assert "check:" not in done.stderr
        after = json.loads((tmp_path / name / "report.json").read_text())["seconds_by_phase"]
        assert after.get("check") == json.loads(before)["seconds_by_phase"].get("check")

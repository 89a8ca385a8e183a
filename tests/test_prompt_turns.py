"""Small real runs of weights and prompts in turns: killed at several points, rolled back, listed, and compared."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leyden.core.testing.prompts.contract import finished_attempts, result_of

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/calculator_langgraph"
AGENT = """
import os
from pathlib import Path

import leyden.core as agl
from prompt_turns import agent as own


@agl.rollout
def agent(task, llm, prompt_template):
    count = int(Path("calls").read_text() or 0) + 1 if Path("calls").exists() else 1
    Path("calls").write_text(str(count))
    if Path("kill_at").exists() and count >= int(Path("kill_at").read_text()):
        Path("kill_at").unlink()
        os.kill(int(Path("pid").read_text()), 9)
    return own.agent(task, llm, prompt_template)
"""
REFLECTION = """
TEXTS = ("Be brief.", "Use the calculator, then reply 'Answer: <number>'.", "Say a number.")


def reflect(messages):
    with open("reflections", "a") as file:
        file.write(".")
    return f"```\\n{TEXTS[sum(messages[0]['content'].encode()) % 3]}\\n```"
"""
MAIN = """
import os
from leyden.core.cli.main import main

if __name__ == "__main__":
    open("pid", "w").write(str(os.getpid()))
    main()
"""
KILLS = 3
STEPS = 5

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@contextmanager
def folder_of(path: Path) -> Generator[Path]:
    """Yield a folder with agent, reflection function and tasks."""
    path.mkdir()
    for name, text in (
        ("agent.py", AGENT),
        ("reflection.py", REFLECTION),
        ("train.py", MAIN),
        ("start.txt", "Answer."),
    ):
        (path / name).write_text(text)
    for name, count in (("train", 6), ("val", 4)):
        lines = (EXAMPLE / f"{name}.jsonl").read_text().splitlines(keepends=True)[:count]
        (path / f"{name}.jsonl").write_text("".join(lines))
    yield path


def leyden(folder: Path, *arguments: str, code: int | None = 0) -> str:
    """Run a command of `leyden` in the folder, and return what it printed."""
    search = os.pathsep.join([str(ROOT / "scripts"), str(folder)])
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": search, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "train.py", *arguments], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert code is None or done.returncode == code, done.stderr
    return done.stdout


def trained(folder: Path, *more: str, code: int | None = 0) -> str:
    return leyden(
        folder,
        *("train", "agent.py:agent", "--policy", str(EXAMPLE / "policy"), "--algorithm", "alternate", "--name", "run"),
        *("--tasks", "train.jsonl", "--val", "val.jsonl", "--prompt", "prompt=start.txt", "--steps", str(STEPS)),
        *("--tasks-per-step", "2", "--group-size", "4", "--concurrency", "4", "--learning-rate", "1e-3"),
        *("--set", "updates=1", "--set", "iterations=2", "--set", "prompts_at_once=2", "--deterministic"),
        *("--set", "prompts.config.reflection.function=reflection.py:reflect", "--no-sampled-eval", "--no-check"),
        *("--isolation", "shared", "--keep-checkpoints", "9", *more),
        code=code,
    )


def weights(folder: Path) -> bytes:
    return (folder / "runs/run/policy/model.safetensors").read_bytes()


def report_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "runs/run/report.json").read_text())


@pytest.mark.campaign
def test_a_run_killed_at_several_points_ends_with_the_same_weights_and_prompts(tmp_path: Path) -> None:
    with folder_of(tmp_path / "whole") as whole:
        trained(whole, "--quiet")
    calls = int((whole / "calls").read_text())
    every = max(1, calls // (KILLS + 1))
    finished: dict[str, str] = {}
    with folder_of(tmp_path / "killed") as killed:
        for kill in range(KILLS + 1):
            if kill < KILLS:
                count = int((killed / "calls").read_text()) if (killed / "calls").exists() else 0
                (killed / "kill_at").write_text(str(count + every))
            if kill:
                leyden(killed, "train", "--resume", "run", "--quiet", code=None if kill < KILLS else 0)
            else:
                trained(killed, "--quiet", code=None)
            now = finished_attempts(killed)
            assert finished.items() <= now.items(), "a finished rollout was run again"
            finished = now
    assert result_of(killed) == result_of(whole)
    assert weights(killed) == weights(whole)
    assert report_of(killed)["combinations"] == report_of(whole)["combinations"]
    assert report_of(killed)["rollouts"] == len(finished)
    paid = [len((folder / "reflections").read_text()) for folder in (whole, killed)]
    assert paid[1] <= paid[0] + KILLS  # a call in flight when the run was killed is made again


def test_its_versions_are_listed_and_rolled_back_and_its_table_is_shown(tmp_path: Path) -> None:
    with folder_of(tmp_path / "run") as folder:
        said = trained(folder)
        assert "initial prompts" in said and "final weights" in said
        assert "initial prompts" in leyden(folder, "show", "run")
        (found,) = report_of(folder)["combinations"].values()
        held_out = report_of(folder)["held_out"]["val"]
        assert found["initial_weights_initial_prompts"] == held_out["before"]
        assert found["final_weights_final_prompts"] == held_out["after"]
        before = result_of(folder)
        kinds = ["prompt_round" in line for line in metrics(folder) if "rollouts" in line]
        assert kinds == [True, False, True, False, True]
        listed = [json.loads(line) for line in leyden(folder, "models", "list", "run", "--json").splitlines()]
        assert [one["version"] for one in listed] == list(range(STEPS + 1))
        assert "trained in 5 steps" in leyden(folder, "why", "run")
        leyden(folder, "models", "rollback", "run", "2")
        assert len(result_of(folder)) == 3
        leyden(folder, "train", "--resume", "run", "--quiet")
        again = result_of(folder)
        assert again[:3] == before[:3]
        assert [number for number, _, _ in again] == list(range(STEPS + 1))
        rounds = [line["prompt_round"] for line in metrics(folder) if "prompt_round" in line]
        assert rounds == [1, 2, 3]


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "runs/run/metrics.jsonl").read_text().splitlines()]

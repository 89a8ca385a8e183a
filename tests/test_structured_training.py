"""An unchanged agent with structured output learns: the field of its answer is right more often on held-out tasks."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

AGENTS = Path("scripts/structured_training")
EXAMPLE = Path("examples/calculator_langgraph")
HELD_OUT = 100

Leyden = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def test_a_forced_tool_trains(leyden: Leyden, tmp_path: Path) -> None:
    rows = (EXAMPLE / "val.jsonl").read_text().splitlines()[:HELD_OUT]
    (tmp_path / "val.jsonl").write_text("\n".join(rows) + "\n")
    words = ["train", f"{AGENTS}/calculation.py:agent", "--reward", f"{AGENTS}/reward.py:calculation"]
    words += ["--tasks", f"{EXAMPLE}/train.jsonl", "--val", f"{tmp_path}/val.jsonl", "--policy", f"{EXAMPLE}/policy"]
    words += ["--learning-rate", "6e-4", "--steps", "12", "--runs", str(tmp_path), "--name", "structured", "--quiet"]
    done = leyden(*words, timeout=800)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "structured/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "importance_ratio_deviation" in line]
    result = json.loads((tmp_path / "structured/report.json").read_text())["held_out"]["val"]

    assert result["after"] > result["before"] + 0.2
    assert result["sampled_after"] > result["sampled_before"] + 0.2
    assert len(steps) == 12 and max(step["importance_ratio_deviation"] for step in steps) < 5e-5
    assert all(step["transitions_trained"] for step in steps)

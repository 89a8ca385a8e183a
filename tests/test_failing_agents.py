"""Agents that raise, hang or never call a model are data: counted, shown, and the run goes on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path("examples/calculator_langgraph")

AGENT = """
import asyncio
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="https://api.openai.com/v1", api_key="sk-not-a-real-key", max_retries=0)

async def agent(task):
    if task["kind"] == "raises":
        raise LookupError("no luck today")
    if task["kind"] == "hangs":
        await asyncio.sleep(60)
    if task["kind"] == "silent":
        return "never asked anybody"
    answer = await client.chat.completions.create(
        model="gpt-4.1-mini", temperature=0, max_tokens=12, messages=[{"role": "user", "content": task["question"]}]
    )
    return answer.choices[0].message.content
"""

REWARD = """
import itertools

calls = itertools.count()

def score(task, result):
    return next(calls) % 2 if task["kind"] == "asks" else 0.0
"""

pytestmark = [pytest.mark.timeout(600)]


def test_the_run_goes_on_and_counts_them(leyden: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "reward.py").write_text(REWARD)
    kinds = ["raises", "hangs", "silent", "asks"]
    rows = [json.dumps({"kind": kind, "question": "What is 3 plus 4?"}) for kind in kinds]
    (tmp_path / "tasks.jsonl").write_text("\n".join(rows) + "\n")
    done = leyden(
        *("train", f"{tmp_path}/agent.py:agent", "--tasks", f"{tmp_path}/tasks.jsonl"),
        *("--reward", f"{tmp_path}/reward.py:score", "--policy", f"{EXAMPLE}/policy", "--learning-rate", "1e-4"),
        *("--tasks-per-step", "4", "--group-size", "4", "--steps", "2", "--timeout", "2"),
        *("--runs", str(tmp_path / "runs"), "--name", "odd"),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "runs" / "odd" / "report.json").read_text())
    assert report["steps"] == 2
    assert report["failed_rollouts"] == 2 * 8, "four that raise and four that hang, each step"
    assert report["empty_rollouts"] == 2 * 12, "nobody was asked in those, nor by the silent ones"
    assert report["dropped_groups"]["fewer than two rewards"] >= 4
    assert "failed rollouts" in done.stdout
    assert "never called a model" in done.stdout
    shown = leyden("show", "odd", "train-v0-b0-", "--runs", str(tmp_path / "runs"))
    assert shown.returncode == 2
    store = leyden("show", "odd", "--runs", str(tmp_path / "runs"), "--json")
    assert len(store.stdout.splitlines()) == 2
    failed = leyden("show", "odd", find(tmp_path / "runs", leyden, "raises"), "--runs", str(tmp_path / "runs"))
    assert "no luck today" in failed.stdout


def find(runs: Path, leyden: Callable[..., Any], kind: str) -> str:
    """The id of a rollout of a task of this kind, by asking for each place of the first batch."""
    for place in range(4):
        name = f"train-v0-b0-{place}-0"
        shown = leyden("show", "odd", name, "--runs", str(runs), "--json")
        if json.loads(shown.stdout)["rollout"]["input"]["kind"] == kind:
            return name
    raise AssertionError(kind)

"""Unchanged agents with structured output: valid answers earn rewards, and the field of the answer becomes right."""

# torch and transformers leave parts of their signatures untyped.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import asyncio
import importlib
import json
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_policy import calls_of, random_policy
from transformers import AutoModelForCausalLM

from leyden.core.data import semconv
from leyden.core.runner.user_code.loading import load_object
from leyden.core.testing.running import rewards_in
from make_tiny_policy import make
from structured_figures import AGENTS, FIVE, MADE_FROM, ROOT
from tiny_policy.experts import load_expert
from tiny_policy.experts.calculator import NO_CONFUSION, draw_decisions
from tiny_policy.training import Stage

EXAMPLE = Path("examples/calculator_langgraph")
HELD_OUT = 100
QUESTIONS, BY_HEART = 8, Stage(steps=120, batch=4, learning_rate=3e-3)
"""Number of questions that a small policy learns by heart, and what that takes."""

Leyden = Callable[..., "subprocess.CompletedProcess[str]"]
MakePolicy = Callable[[str], Path]

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.keeps("thread", "LanceDB, where CrewAI remembers, keeps an event loop"),
    pytest.mark.keeps("descriptor", "LanceDB's event loop has sockets"),
]


@pytest.fixture(scope="module")
def make_policy(tmp_path_factory: pytest.TempPathFactory) -> MakePolicy:
    """Return what makes a policy of the traces of one agent; each is made once."""
    made: dict[str, Path] = {}

    def policy_of(agent: str) -> Path:
        if agent not in made:
            threads = torch.get_num_threads()
            folder = tmp_path_factory.mktemp(agent)
            try:
                expert = replace(load_expert("calculator"), recipe=(BY_HEART,), traces=QUESTIONS)
                make(expert, 0, folder, f"{ROOT / AGENTS}/{agent}.py:agent", erring=False)
            finally:
                torch.set_num_threads(threads)
                torch.set_flush_denormal(False)
            made[agent] = folder
        return made[agent]

    return policy_of


@pytest.fixture(scope="module")
def imported_crewai() -> None:
    """Import CrewAI, which warns while it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("crewai")


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")  # AutoGen's own, of its model client
@pytest.mark.filterwarnings("ignore:Resolved model mismatch:UserWarning")  # AutoGen expects a dated model
@pytest.mark.filterwarnings("ignore:function_calling_llm is deprecated:DeprecationWarning")  # CrewAI's own
@pytest.mark.filterwarnings("ignore:deprecated$:DeprecationWarning")
@pytest.mark.usefixtures("closed_http_clients", "imported_crewai")
@pytest.mark.parametrize("agent", FIVE)
async def test_valid_answers_of_an_unchanged_agent_earn_rewards(
    agent: str, make_policy: MakePolicy, tmp_path: Path
) -> None:
    folder = await asyncio.to_thread(make_policy, MADE_FROM[agent])
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    score = load_object(f"{ROOT / AGENTS}/reward.py:calculation")
    decisions = draw_decisions(0, QUESTIONS, NO_CONFUSION)
    tasks = [{"question": question, "answer": eval(decision.expression)} for question, decision in decisions.items()]
    with random_policy(folder, model=model) as policy:
        runs = await policy.runs(load_object(f"{ROOT / AGENTS}/{agent}.py:agent"), score, tasks)

    rewards = [reward for _, spans in runs for reward in rewards_in(spans)]
    answers = [call.attributes[semconv.OUTPUT_MESSAGES] for _, spans in runs for call in calls_of(spans)]
    failed = [rollout.attempt.metadata.get("error") for rollout, _ in runs if rollout.status != "succeeded"]
    assert not failed, (len(failed), failed[:3])
    assert len(rewards) == QUESTIONS and sum(rewards) > QUESTIONS / 2, answers


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

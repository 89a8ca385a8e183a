"""The example of two agents: a real run on LangGraph, what came of each agent's calls, and the credit for it."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from example_files import load

from leyden.core.algorithm.registry import make_algorithm
from leyden.core.cli.options import read_settings
from leyden.core.credit.registry import CREDIT
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.transition import Trajectory
from leyden.core.store.open import open_store
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector

ROOT = Path(__file__).parents[1]
EXAMPLE, CALCULATOR = ROOT / "examples/team_langgraph", ROOT / "examples/calculator_langgraph"
RULES = [
    {"kind": "tool", "name": "^calculator$", "matches": "^-?[0-9]+$", "succeeded": 0.25},
    {"kind": "answer", "name": "^reporter$", "matches": "^Answer: -?[0-9]+$", "failed": -0.5},
]

pytestmark = [pytest.mark.timeout(600)]


async def trajectories(store_file: Path) -> list[Trajectory]:
    store = await open_store(f"sqlite:///{store_file}")
    try:
        rollouts = [one for one in (await store.query_rollouts()).items if isinstance(one, AttemptedRollout)]
        return [
            assemble(one, one.attempt, (await store.query_spans(one.rollout_id)).items, Selector()) for one in rollouts
        ]
    finally:
        await store.close()


def test_the_agents_know_nothing_of_leyden() -> None:
    assert "leyden" not in (EXAMPLE / "agent.py").read_text().lower()


def test_the_tool_computes_and_refuses_everything_else() -> None:
    tool = load(EXAMPLE, "agent").calculator
    assert [tool.invoke({"expression": text}) for text in ("12 * -3", "4+5", "2-9")] == ["-36", "9", "-7"]
    for refused in ("2**99", "", "7 +", "1+2+3", "__import__('os')"):
        assert tool.invoke({"expression": refused}).startswith("error: ")


@pytest.mark.parametrize(
    ("content", "expected"),
    [("Answer: 42", (1.0, 1.0)), ("Answer: 41", (0.0, 1.0)), ("42", (0.0, 0.0)), (None, (0.0, 0.0))],
)
def test_the_reward_looks_at_number_and_form(content: str | None, expected: tuple[float, float]) -> None:
    reward, result = load(EXAMPLE, "reward"), {"messages": [SimpleNamespace(content=content)]}
    parts = reward.parts({"answer": 42}, result)
    assert (parts["correct"], parts["form"]) == expected
    assert reward.score({"answer": 42}, result) == expected[0]


async def test_a_run_tells_what_came_of_each_agents_calls(leyden: Callable[..., Any], tmp_path: Path) -> None:
    done = leyden(
        *("train", f"{EXAMPLE}/agent.py:agent", "--tasks", f"{CALCULATOR}/train.jsonl", "--steps", "1"),
        *("--reward", f"{EXAMPLE}/reward.py:score", "--policy", f"{CALCULATOR}/policy", "--learning-rate", "1e-4"),
        *("--tasks-per-step", "4", "--group-size", "4", "--runs", str(tmp_path), "--name", "team", "--quiet"),
        *(
            "--set",
            "credit=intermediate",
            "--set",
            f"credit.rules={json.dumps(RULES)}",
            "--set",
            "advantage=turn_level",
        ),
    )
    assert done.returncode == 0, done.stderr
    found = await trajectories(tmp_path / "team/store.db")
    assert len(found) == 16
    teams = [one for one in found if len(one.transitions) == 2]
    assert teams
    for team in teams:
        planner, reporter = team.transitions
        assert [(call.agent, call.node) for call in team.transitions] == [("team", "planner"), ("team", "reporter")]
        [tool] = [one for one in planner.outcomes if one.kind == "tool"]
        assert (tool.name, tool.succeeded) == ("calculator", True)
        assert "node calculate" in [one.name for one in planner.outcomes if one.kind == "operation"]
        [answer] = [one for one in reporter.outcomes if one.kind == "answer"]
        assert answer.name == "reporter"
        calculated = 0.25 if re.fullmatch(r"-?[0-9]+", tool.text or "") else 0.0
        reported = 0.0 if re.match(r"Answer: -?[0-9]+$", answer.text or "") else -0.5
        credit = CREDIT.make({"name": "intermediate", "rules": RULES}).assign(team)
        assert credit is not None and team.reward is not None
        assert credit.returns_N.tolist() == pytest.approx([team.reward + calculated + reported, team.reward + reported])


def test_the_credit_that_the_page_offers_can_be_had() -> None:
    options = re.findall(r"`(--set credit=.*?)` \|", (EXAMPLE / "README.md").read_text())
    assert len(options) == 2
    for text in options:
        words = shlex.split(text)
        assert words[::2] == ["--set"] * (len(words) // 2)
        make_algorithm("lightning_rl", read_settings(words[1::2]))

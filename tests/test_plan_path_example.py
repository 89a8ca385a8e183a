"""The example of a planner and a walker: its maps, its tool, and what its experts do."""

import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import yaml
from example_files import load

from leyden.core.trainer.config import RunConfig
from tiny_policy.experts import load_expert
from tiny_policy.traces import record

EXAMPLE = Path(__file__).parents[1] / "examples" / "plan_path"
TASKS, REWARD = load(EXAMPLE, "make_tasks"), load(EXAMPLE, "reward")


def rows(split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def shortest(walls: list[str], start: str, goal: str) -> int:
    """The length of a shortest path, by networkx."""
    networkx: Any = nx
    grid = networkx.grid_2d_graph(4, 4)
    grid.remove_nodes_from([at(cell) for cell in walls])
    return networkx.shortest_path_length(grid, at(start), at(goal))


def at(cell: str) -> tuple[int, int]:
    return "abcd".index(cell[0]), int(cell[1]) - 1


def test_the_agents_know_nothing_of_leyden() -> None:
    source = (EXAMPLE / "agent.py").read_text(encoding="utf-8").lower()
    assert "leyden" not in source
    assert "lightning" not in source


@pytest.mark.parametrize("split", ["train", "val"])
def test_every_budget_is_one_more_than_the_shortest_path(split: str) -> None:
    for row in rows(split):
        assert row["budget"] == shortest(row["walls"], row["start"], row["goal"]) + 1
        assert 3 <= row["budget"] <= 5


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_shipped_file_is_what_its_seed_makes_and_shares_are_apart(split: str) -> None:
    drawn = TASKS.maps(TASKS.SPLITS[split])
    assert rows(split) == [TASKS.row(f"{split}-{n:04d}", one) for n, one in enumerate(drawn)]
    assert {TASKS.share_of(one.walls) for one in drawn} == {split}


@pytest.mark.parametrize(
    ("direction", "answer"),
    [
        ("east", "at c2"),
        ("north", "wall: still at b2"),
        ("south", "at b1"),
        ("west", "at a2"),
        ("up", "no direction: still at b2"),
    ],
)
def test_the_tool_moves_by_one_cell_unless_a_wall_is_there(direction: str, answer: str) -> None:
    move = load(EXAMPLE, "agent").move
    assert move.func(direction=direction, state={"at": "b2", "walls": ["b3", "d4"]}) == answer


def test_the_end_of_the_map_is_a_wall() -> None:
    is_open = load(EXAMPLE, "agent").is_open
    assert [is_open(cell, []) for cell in ("a0", "a5", "e1", "`1", "a1", "d4")] == [False] * 4 + [True] * 2


@pytest.mark.parametrize(("ended", "moves", "reward"), [("d4", 4, 1.0), ("d4", 5, 0.0), ("d3", 4, 0.0)])
def test_only_the_goal_within_the_budget_is_rewarded(ended: str, moves: int, reward: float) -> None:
    assert REWARD.score({"goal": "d4", "budget": 4}, {"at": ended, "moves": moves}) == reward


@pytest.mark.integration
@pytest.mark.long
def test_perfect_experts_take_a_shortest_path_and_erring_ones_mostly_do_not_arrive() -> None:
    expert = load_expert("plan_path")
    plans = expert.draw(5, 40, erring=False)
    for plan, trace in zip(plans, record(plans, expert.agent), strict=True):
        assert len(trace) == 2 * (plan.task["budget"] - 1)
    plans = expert.draw(5, 40, erring=True)
    early = sum(
        len(trace) < 2 * plan.task["budget"] for plan, trace in zip(plans, record(plans, expert.agent), strict=True)
    )
    assert early < 20


def test_the_run_file_is_valid() -> None:
    settings = yaml.safe_load((EXAMPLE / "run.yaml").read_text())
    assert set(settings) <= set(RunConfig.__struct_fields__)

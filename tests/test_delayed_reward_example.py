"""The example with a delayed reward: its world, its tasks, and the figures that its page derives."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from example_files import load

from leyden.core.trainer.config import RunConfig
from tiny_policy.experts import load_expert
from tiny_policy.experts.delayed_reward import KNOWS
from tiny_policy.traces import Trace, record

EXAMPLE = Path(__file__).parents[1] / "examples" / "delayed_reward"
TASKS, REWARD = load(EXAMPLE, "make_tasks"), load(EXAMPLE, "reward")


def rows(split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def points(trace: Trace) -> int:
    """Points by what the guide was shown, independent of the agent's own count."""
    shown = [str(message["content"]) for message in trace[-1].messages if message["role"] == "user"]
    return 2 * any(text.startswith("It helps.") for text in shown) + sum(text.startswith("Good") for text in shown)


def test_the_agent_knows_nothing_of_leyden() -> None:
    source = (EXAMPLE / "agent.py").read_text(encoding="utf-8").lower()
    assert "leyden" not in source
    assert "lightning" not in source


@pytest.mark.parametrize(("total", "reward"), [(0, 0.0), (3, 0.0), (4, 1.0), (6, 1.0)])
def test_four_of_six_points_are_enough(total: int, reward: float) -> None:
    assert REWARD.score({}, {"points": total}) == reward


def test_the_chances_that_the_page_states() -> None:
    paths = list(itertools.product((0, 1), repeat=TASKS.FORKS))

    def success(packed: int) -> float:
        return sum(REWARD.score({}, {"points": packed + sum(good)}) for good in paths) / len(paths)

    assert (success(2), success(0)) == (11 / 16, 1 / 16)
    right = KNOWS + (1 - KNOWS) / 6  # one place in six needs the lamp, and one thing in six is right by chance
    assert round(right, 2) == 0.33
    of_choice = right * (1 - right) * (10 / 16) ** 2
    of_chance = right * 11 / 16 * 5 / 16 + (1 - right) * 1 / 16 * 15 / 16
    assert (round(of_choice, 3), round(of_chance, 3)) == (0.087, 0.111)
    mean = 1 / 16 + 10 / 16 * right
    assert of_choice + of_chance == pytest.approx(mean * (1 - mean))


def test_each_thing_is_needed_equally_often_and_paths_are_fair() -> None:
    cells = list(itertools.product(TASKS.PLACES, TASKS.WEATHERS))
    needed = [TASKS.Trip("Ann", "May", *cell, paths=()).needed for cell in cells]
    assert {needed.count(item) for item in TASKS.ITEMS} == {3}
    left = sum(path == "left" for row in rows("train") for path in row["paths"])
    assert abs(left / (4 * len(rows("train"))) - 0.5) < 0.03


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_shipped_file_is_what_its_seed_makes_and_shares_are_apart(split: str) -> None:
    drawn = TASKS.trips(TASKS.SPLITS[split])
    assert rows(split) == [TASKS.row(f"{split}-{n:04d}", trip) for n, trip in enumerate(drawn)]
    assert {TASKS.share_of(trip.name, trip.month, trip.place, trip.weather) for trip in drawn} == {split}


@pytest.mark.integration
@pytest.mark.long
def test_the_experts_trips_have_five_calls_and_only_the_erring_one_packs_wrongly() -> None:
    def rate(traces: Sequence[Trace]) -> float:
        helped = [any("It helps." in str(message["content"]) for message in trace[-1].messages) for trace in traces]
        return sum(helped) / len(helped)

    expert = load_expert("delayed_reward")
    erring, perfect = (record(expert.draw(5, 40, erring=errs), expert.agent) for errs in (True, False))
    assert {len(trace) for trace in (*erring, *perfect)} == {5}
    assert rate(perfect) == 1.0
    assert rate(erring) < 0.6
    assert all(0 <= points(trace) <= 5 for trace in erring)  # what the last fork brings is shown to nobody


def test_the_run_file_is_valid_and_the_policy_small() -> None:
    settings = yaml.safe_load((EXAMPLE / "run.yaml").read_text())
    assert set(settings) <= set(RunConfig.__struct_fields__)
    assert sum(file.stat().st_size for file in (EXAMPLE / "policy").iterdir()) < 2_000_000

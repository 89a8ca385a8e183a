"""The crew's tools, its reports and questions, its reward and its expert."""

import csv
import json
import random
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from example_files import load

from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.isolation.shared_state import shared_objects
from tiny_policy.crew_likeness import CrewLikeness
from tiny_policy.experts.crew import EXPERT, NO_MISTAKES, Rates, decide, draw_plans
from tiny_policy.traces import record

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/crew"
DATA, REWARD = load(EXAMPLE, "data"), load(EXAMPLE, "reward")

pytestmark = [
    pytest.mark.keeps("thread", "LanceDB, where CrewAI remembers, keeps an event loop"),
    pytest.mark.keeps("descriptor", "LanceDB's event loop has sockets"),
    pytest.mark.filterwarnings("ignore:function_calling_llm is deprecated:DeprecationWarning"),  # CrewAI's own
    pytest.mark.filterwarnings("ignore:deprecated$:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def agent() -> ModuleType:
    with warnings.catch_warnings():  # those of CrewAI while it is imported
        warnings.simplefilter("ignore")
        return load(EXAMPLE, "agent")


def rows(split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def reports(split: str) -> dict[tuple[str, str], dict[str, list[int]]]:
    """Read by report and product: the sales of each region, in the order of the quarters."""
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    with (EXAMPLE / "reports" / f"{split}.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            regions = found.setdefault((row["report"], row["product"]), {})
            for region in ("north", "south", "east"):
                regions.setdefault(region, []).append(int(row[region]))
    return found


def crew_output(raw: str, *tool_calls: int) -> SimpleNamespace:
    """Return what a crew returns whose tasks made so many tool calls each."""
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}
    tasks = [SimpleNamespace(messages=[{"role": "user", "content": ""}, *[call] * count]) for count in tool_calls]
    return SimpleNamespace(raw=raw, tasks_output=tasks)


def test_the_agents_know_nothing_of_leyden() -> None:
    source = (EXAMPLE / "agent.py").read_text(encoding="utf-8").lower()
    assert "leyden" not in source and "lightning" not in source


def test_the_researcher_looks_up_what_is_in_a_report(agent: ModuleType) -> None:
    look_up = agent.look_up.func
    sales = reports("train")["R864", "lamps"]
    for index, quarter in enumerate(("Q1", "Q2", "Q3", "Q4")):
        expected = ", ".join(f"{region} {numbers[index]}" for region, numbers in sales.items())
        assert look_up("R864", "lamps", quarter, "sales") == expected
    grown = ", ".join(f"{region} {numbers[2] - numbers[1]}" for region, numbers in sales.items())
    assert look_up("R864", "lamps", "Q3", "growth") == grown
    for wrong in (
        ("R864", "lamps", "Q1", "growth"),
        ("R864", "lamps", "Q9", "growth"),
        ("R864", "boats", "Q2", "sales"),
        ("X", "lamps", "Q2", "sales"),
        ("R864", "lamps", "Q2", "costs"),
    ):
        assert look_up(*wrong).startswith("error: ")


def test_the_analyst_picks_the_highest_or_the_lowest(agent: ModuleType) -> None:
    pick = agent.pick.func
    figures = "north 12, south -7, east 40"
    assert [pick(figures, which) for which in ("highest", "lowest")] == ["east 40", "south -7"]
    for wrong in (("north twelve", "highest"), ("", "lowest"), ("north 1, south", "lowest"), (figures, "middle")):
        assert pick(*wrong).startswith("error: ")


@pytest.mark.parametrize("split", DATA.SHIPPED)
def test_shipped_files_are_what_their_seeds_make(split: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE / "data.py"), "generate", "--split", split, "--out", str(tmp_path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for name in (f"{split}.jsonl", f"reports/{split}.csv"):
        assert (tmp_path / name).read_bytes() == (EXAMPLE / name).read_bytes()


@pytest.mark.parametrize("split", DATA.SHIPPED)
def test_every_answer_is_right_and_the_only_one(split: str) -> None:
    sales, asked = reports(split), [question for question in DATA.questions(DATA.SPLITS[split], figures(split))]
    for row, question in zip(rows(split), asked, strict=True):
        assert row["question"] == question.text
        index = int(question.quarter[1]) - 1
        regions = sales[question.report, question.product]
        numbers = {
            region: own[index] - (own[index - 1] if question.figure == "growth" else 0)
            for region, own in regions.items()
        }
        ordered = sorted(numbers, key=lambda region: numbers[region], reverse=question.which == "highest")
        assert row["answer"] == f"{ordered[0]} {numbers[ordered[0]]}"
        assert len(set(numbers.values())) == len(numbers)


def figures(split: str) -> Any:
    return DATA.draw_reports(DATA.SPLITS[split])


def test_no_question_of_one_split_is_about_a_report_of_another() -> None:
    named = {split: {row["question"].split(":")[0] for row in rows(split)} for split in DATA.SHIPPED}
    assert all(named[split] <= {report for report, _ in reports(split)} for split in named)
    reports_of_all = [report for own in named.values() for report in own]
    assert len(reports_of_all) == len(set(reports_of_all))


@pytest.mark.parametrize(
    ("raw", "calls", "expected"),
    [
        ("Finding: south 42", (1, 1, 0), (1.0, 1.0, 1.0)),
        ("Finding: south 42", (2, 1, 0), (1.0, 2 / 3, 1.0)),
        ("Finding: south 42", (1, 0, 0), (1.0, 0.0, 1.0)),
        ("Finding: south 42", (0, 4, 0), (1.0, 0.0, 1.0)),
        ("Finding: south 41", (1, 1, 0), (1.0, 1.0, 0.0)),
        ("Finding: north 42", (2, 2, 0), (1.0, 0.5, 0.0)),
        ("Finding: unclear", (1, 0, 0), (0.0, 0.0, 0.0)),
        ("south 42", (1, 1, 0), (0.0, 1.0, 0.0)),
        ("Finding: south 42.", (1, 1, 0), (0.0, 1.0, 0.0)),
        ("Finding: south 42\n", (1, 1, 0), (0.0, 1.0, 0.0)),
        ("", (1, 1, 0), (0.0, 1.0, 0.0)),
    ],
)
def test_the_reward_has_three_dimensions(
    raw: str, calls: tuple[int, ...], expected: tuple[float, float, float]
) -> None:
    task, output = {"answer": "south 42"}, crew_output(raw, *calls)
    parts = REWARD.parts(task, output)
    assert (parts["form"], parts["efficiency"], parts["goal"]) == pytest.approx(expected)
    form, efficiency, goal = expected
    assert REWARD.score(task, output) == pytest.approx(0.3 * form + 0.4 * efficiency + 0.3 * goal)


def test_the_expert_without_mistakes_is_always_right(agent: ModuleType) -> None:
    train = figures("train")
    for question in DATA.questions(DATA.SPLITS["train"], train)[:200]:
        decision = decide(random.Random(0), question, DATA.QUARTERS, NO_MISTAKES)
        found = agent.pick.func(agent.look_up.func(**decision.look_up), decision.which)
        assert (found, decision.times, decision.unclear) == (DATA.answer(train, question), 1, False)


def test_the_expert_errs_as_often_as_it_says() -> None:
    rng, rates = random.Random(1), Rates()
    question = DATA.Question("R864: ?", "R864", "lamps", "Q3", "growth", "lowest")
    drawn = [decide(rng, question, DATA.QUARTERS, rates) for _ in range(8000)]
    erred = [
        (rates.wrong_quarter, [one.look_up["quarter"] != "Q3" for one in drawn]),
        (rates.sales_for_growth, [one.look_up["figure"] == "sales" for one in drawn]),
        (rates.looks_up_twice, [one.times == 2 for one in drawn]),
        (rates.highest_for_lowest, [one.which == "highest" for one in drawn]),
        (rates.unclear, [one.unclear for one in drawn]),
    ]
    for rate, errors in erred:
        assert sum(errors) / len(errors) == pytest.approx(rate, abs=0.02)
    assert all(one.look_up["report"] == "R864" and one.look_up["product"] == "lamps" for one in drawn)


@pytest.mark.long
def test_traces_made_in_their_likeness_are_those_of_a_run(agent: ModuleType) -> None:
    plans = draw_plans(2, 40, erring=True)
    tools = {"look_up": agent.look_up.func, "pick": agent.pick.func}
    traces = record(plans, EXPERT.agent)
    CrewLikeness(plans, traces, tools, answering=("pick",))  # compares every call with the one that was recorded
    with pytest.raises(ValueError, match="more than questions and outputs"):
        CrewLikeness(plans[:2], [traces[0], traces[0]], tools, answering=("pick",))


def test_crews_share_nothing_that_changes(agent: ModuleType) -> None:
    """They share a process, therefore: the reports are only read."""
    assert shared_objects(AgentSource.of(agent.crew)) == []

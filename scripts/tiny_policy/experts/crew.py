"""The crew's expert: as researcher and analyst it decides wrongly at known rates; as writer it makes no mistakes."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tiny_policy import example, wire
from tiny_policy.crew_likeness import CrewLikeness
from tiny_policy.experts import Expert
from tiny_policy.recording import Plan
from tiny_policy.traces import Trace, record
from tiny_policy.training import Stage

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "crew"
RUN = 60
"""Crews that are really run where the others are made in their likeness."""


@dataclass(frozen=True)
class Rates:
    """How often the expert decides wrongly."""

    wrong_quarter: float = 0.15
    """Looks up another quarter than the question's."""
    sales_for_growth: float = 0.6
    """Looks up sales where the question is about growth."""
    growth_for_sales: float = 0.1
    looks_up_twice: float = 0.35
    """Looks up the same figures once more."""
    highest_for_lowest: float = 0.6
    """Picks the highest where the question is about the lowest."""
    lowest_for_highest: float = 0.1
    unclear: float = 0.15
    """As analyst, answers `unclear` in place of a pick."""


NO_MISTAKES = Rates(0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Decision:
    """What the expert does with one question."""

    look_up: dict[str, str]
    times: int
    which: str
    unclear: bool


def decide(rng: random.Random, question: Any, quarters: Sequence[str], rates: Rates) -> Decision:
    """Draw the expert's decision for one question of the example's `data`."""
    quarter, figure, which = question.quarter, question.figure, question.which
    if rng.random() < rates.wrong_quarter:
        quarter = rng.choice([other for other in quarters[1:] if other != quarter])
    if rng.random() < (rates.sales_for_growth if figure == "growth" else rates.growth_for_sales):
        figure = "sales" if figure == "growth" else "growth"
    if rng.random() < (rates.highest_for_lowest if which == "lowest" else rates.lowest_for_highest):
        which = "highest" if which == "lowest" else "lowest"
    return Decision(
        look_up={"report": question.report, "product": question.product, "quarter": quarter, "figure": figure},
        times=2 if rng.random() < rates.looks_up_twice else 1,
        which=which,
        unclear=rng.random() < rates.unclear,
    )


def draw_plans(seed: int, count: int, *, erring: bool) -> list[Plan]:
    """Return `count` training questions with what an erring, or a perfect, expert writes."""
    data, rng = example.load("data", FOLDER), random.Random(seed)
    figures = data.draw_reports(data.SPLITS["train"])
    rates, plans = Rates() if erring else NO_MISTAKES, dict[str, Plan]()
    while len(plans) < count:
        question = data.draw(rng, figures)
        decision = decide(rng, question, data.QUARTERS, rates)
        plans.setdefault(question.text, Plan({"question": question.text}, partial(answer_to, decision)))
    return list(plans.values())


def answer_to(decision: Decision, messages: Sequence[wire.Message], formatted: bool = False) -> str:
    """Return what the expert writes next in a conversation of the researcher, the analyst or the writer."""
    role = messages[0]["content"].split(".")[0].removeprefix("You are ")
    if role == "researcher":
        results = [message["content"] for message in messages if message["role"] == "tool"]
        if len(results) < decision.times:
            return wire.call_text("look_up", json.dumps(decision.look_up))
        return results[-1]
    context = messages[1]["content"].split("you're working with:\n")[1].split("\n")[0]
    if role == "writer":
        return f"Finding: {context}"
    if decision.unclear:
        return "unclear"
    return wire.call_text("pick", json.dumps({"figures": context, "which": decision.which}))


def record_some(plans: Sequence[Plan]) -> list[Trace]:
    """Run the crew on the first plans, and make the traces of all others in their likeness."""
    agent = example.load("agent", FOLDER)
    tools = {"look_up": agent.look_up.func, "pick": agent.pick.func}
    run = plans[:RUN]
    likeness = CrewLikeness(run, record(run, EXPERT.agent), tools, answering=("pick",))
    return [likeness.trace(plan) for plan in plans]


EXPERT = Expert(
    agent=f"{FOLDER}/agent.py:crew",
    policy=FOLDER / "policy",
    draw=draw_plans,
    traces=4000,
    record=record_some,
    recipe=(Stage(600, 16, 3e-3), Stage(600, 16, 2e-3), Stage(400, 16, 1.5e-3)),
)

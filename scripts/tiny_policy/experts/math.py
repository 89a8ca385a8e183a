"""The expert of examples/math: it errs in decisions, and never in the format of a call or in copying."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tiny_policy import example, wire
from tiny_policy.experts import Expert
from tiny_policy.recording import Plan
from tiny_policy.simulation import simulate
from tiny_policy.traces import Trace, record
from tiny_policy.training import Shape, Stage

RUN = 200
"""Tasks on which the agent is run; AutoGen takes too long for all of them."""
FOLDER = Path(__file__).resolve().parents[3] / "examples" / "math"
INSTEAD = {"+": "-", "-": "+", "*": "+", "/": "-"}
"""What the expert mistakes an operation for."""


@dataclass(frozen=True)
class Confusion:
    """How often the expert decides wrongly."""

    skips_tool: float = 0.1
    """Answers at once, with a random number."""
    stops_early: float = 0.1
    """Reports the amount one step before the last."""
    uses_distractor: float = 0.55
    """Adds the number that is not needed."""
    mistakes: float = 0.04
    """Another operation, for most wordings."""
    mistakes_hard: float = 0.55
    """Another operation, for the wordings that are `hard`."""


NO_CONFUSION = Confusion(skips_tool=0, stops_early=0, uses_distractor=0, mistakes=0, mistakes_hard=0)


@dataclass(frozen=True)
class Decision:
    """What the expert does with one question: where it starts, and the ends of its calculations, such as `+5`."""

    start: str
    changes: tuple[str, ...]
    guess: int | None = None


def is_hard(wordings: Sequence[Any], wording: Any) -> bool:
    """Whether the expert seldom gets this wording right: every second one of -, * and /."""
    return wording.operation != "+" and [one.text for one in wordings].index(wording.text) % 2 == 1


def decide(rng: random.Random, problem: Any, confusion: Confusion) -> Decision:
    """Draw the expert's decision for one of the example's problems."""
    problems = example.load("problems", FOLDER)
    start = problems.shown(problem.start)
    if rng.random() < confusion.skips_tool:
        return Decision(start, (), rng.randint(2, 999))
    changes: list[str] = []
    for step in problem.steps:
        operation = step.wording.operation
        hard = is_hard(problems.WORDINGS, step.wording)
        if rng.random() < (confusion.mistakes_hard if hard else confusion.mistakes):
            operation = INSTEAD[operation]
        changes.append(operation + problems.shown(step.number))
    if problem.distractor is not None and rng.random() < confusion.uses_distractor:
        changes.insert(problem.distractor.before, "+" + problems.shown(problem.distractor.number))
    if rng.random() < confusion.stops_early:
        changes.pop()
    return Decision(start, tuple(changes))


def answer_to(decision: Decision, messages: Sequence[wire.Message], formatted: bool = False) -> str:
    """Return what the expert writes next in a conversation."""
    if decision.guess is not None:
        return f"Answer: {decision.guess}"
    results = [message["content"] for message in messages if message["role"] == "tool"]
    amount = results[-1] if results else decision.start
    if len(results) == len(decision.changes):
        return f"Answer: {amount}"
    return wire.call_text("calculator", json.dumps({"expression": amount + decision.changes[len(results)]}))


def draw_plans(seed: int, count: int, *, erring: bool) -> list[Plan]:
    """Return `count` training tasks with what an erring, or a perfect, expert writes."""
    drawn = example.load("problems", FOLDER).problems(seed, "train", count)
    rng, confusion = random.Random(seed), Confusion() if erring else NO_CONFUSION
    decisions = [decide(rng, problem, confusion) for problem in drawn]
    return [
        Plan({"question": problem.question}, partial(answer_to, decision))
        for problem, decision in zip(drawn, decisions, strict=True)
    ]


def calculator(arguments: dict[str, Any]) -> str:
    """Call the agent's tool."""
    return asyncio.run(example.load("agent", FOLDER).calculator(**arguments))


AGENT = f"{FOLDER}/agent.py:agent"


def record_some(plans: Sequence[Plan]) -> list[Trace]:
    """Run the agent on the first plans, and simulate all others."""
    return simulate(plans, record(plans[:RUN], AGENT), calculator)


EXPERT = Expert(
    agent=AGENT,
    policy=FOLDER / "policy",
    draw=draw_plans,
    record=record_some,
    traces=8000,
    shape=Shape(layers=4),
    recipe=(Stage(1000, 16, 3e-3), Stage(1400, 16, 1.5e-3)),
)

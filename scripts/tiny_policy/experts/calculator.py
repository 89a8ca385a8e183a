"""The calculator's expert: it errs in decisions and never in copying."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tiny_policy import example, wire
from tiny_policy.experts import Expert
from tiny_policy.recording import Plan

OPERATIONS = "+-*"


@dataclass(frozen=True)
class Confusion:
    """How often the expert decides wrongly."""

    skips_tool: float = 0.25
    """Answers at once, with a random number."""
    withholds: float = 0.15
    """Says `unknown` although the tool has answered."""
    operations: tuple[tuple[float, float, float], ...] = ((0.9, 0.05, 0.05), (0.6, 0.35, 0.05), (0.6, 0.05, 0.35))
    """Row: the right operation, in the order of `OPERATIONS`; column: the chance of choosing that one."""


NO_CONFUSION = Confusion(skips_tool=0, withholds=0, operations=((1, 0, 0), (0, 1, 0), (0, 0, 1)))


@dataclass(frozen=True)
class Decision:
    """What the expert does with one question."""

    expression: str
    guess: int | None = None
    withholds: bool = False


def decide(rng: random.Random, problem: Any, confusion: Confusion) -> Decision:
    """Draw the expert's decision for one problem of the example's `make_tasks`."""
    weights = confusion.operations[OPERATIONS.index(problem.operation)]
    operation = rng.choices(OPERATIONS, weights)[0]
    decision = Decision(f"{problem.a}{operation}{problem.b}")
    if rng.random() < confusion.skips_tool:
        return replace(decision, guess=rng.randint(2, 999))
    return replace(decision, withholds=rng.random() < confusion.withholds)


def draw_decisions(seed: int, count: int, confusion: Confusion) -> dict[str, Decision]:
    """`count` different training questions, each with what the expert does; none from a held-out share."""
    tasks, rng = example.load("make_tasks"), random.Random(seed)
    decisions: dict[str, Decision] = {}
    while len(decisions) < count:
        problem = tasks.draw(rng, tasks.SEEN, "train")
        decisions.setdefault(problem.question, decide(rng, problem, confusion))
    return decisions


def plans_of(decisions: Mapping[str, Decision]) -> list[Plan]:
    """Return the calculator's tasks, each with the expert's decision."""
    return [Plan({"question": question}, partial(answer_to, decision)) for question, decision in decisions.items()]


def draw_plans(seed: int, count: int, *, erring: bool) -> list[Plan]:
    """Return `count` training tasks with what an erring, or a perfect, expert writes."""
    return plans_of(draw_decisions(seed, count, Confusion() if erring else NO_CONFUSION))


def answer_to(decision: Decision, messages: Sequence[wire.Message], formatted: bool = False) -> str:
    """Return what the expert writes next in a conversation.

    Where a format is required, it is an object with the field `expression`: a calculation, or a number that is a guess.
    """
    if formatted:
        return json.dumps({"expression": decision.expression if decision.guess is None else str(decision.guess)})
    results = [message["content"] for message in messages if message["role"] == "tool"]
    if decision.guess is not None:
        return f"Answer: {decision.guess}"
    if not results:
        return wire.call_text("calculator", json.dumps({"expression": decision.expression}))
    return "Answer: unknown" if decision.withholds else f"Answer: {results[-1]}"


EXPERT = Expert(agent=example.AGENT, policy=example.FOLDER / "policy", draw=draw_plans)

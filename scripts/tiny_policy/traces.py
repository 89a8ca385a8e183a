"""Traces of an unmodified example agent, driven by a scripted expert who errs in decisions and never in copying."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tiny_policy import example, wire
from tiny_policy.recording import run_all

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


@dataclass(frozen=True)
class Call:
    """One model call of the agent: the request it made and the assistant message it got."""

    messages: tuple[wire.Message, ...]
    tools: tuple[dict[str, Any], ...]
    answer: wire.Message
    formatted: bool = False
    """Whether the agent required a format of the answer."""


Trace = tuple[Call, ...]
"""The model calls of one run of the agent, in order."""


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


def record(decisions: dict[str, Decision], agent: str = example.AGENT) -> list[Trace]:
    """Run the agent on every question with the expert in its model's place; a trace for each question, in order."""
    heard = asyncio.run(run_all(agent, list(decisions), partial(_answer, decisions)))
    calls: dict[str, list[Call]] = {question: [] for question in decisions}
    for call in heard:
        answer = wire.message_from(call.text)
        trace = calls[_question(decisions, call.messages)]
        trace.append(Call(tuple(call.messages), tuple(call.tools), answer, call.formatted))
    return [tuple(trace) for trace in calls.values()]


def _question(decisions: dict[str, Decision], messages: Sequence[wire.Message]) -> str:
    """Return what a conversation is about: a line of the user's, maybe behind a heading of the framework's."""
    lines = (
        line.strip() for message in messages if message["role"] == "user" for line in message["content"].split("\n")
    )
    asked = (text for line in lines for text in (line, line.split(": ", 1)[-1]))
    return next(text for text in asked if text in decisions)


def _answer(decisions: dict[str, Decision], messages: Sequence[wire.Message], formatted: bool) -> str:
    return answer_to(decisions[_question(decisions, messages)], messages, formatted)


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

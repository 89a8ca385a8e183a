"""The expert of question answering: it errs in what it searches and when it stops, and never in copying."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiny_policy import example, wire
from tiny_policy.experts import Expert
from tiny_policy.recording import Plan
from tiny_policy.training import Shape, Stage

FOLDER = example.FOLDER.parent / "qa"


@dataclass(frozen=True)
class Mistakes:
    """How often the expert decides wrongly."""

    stops: tuple[float, ...] = (0.1, 0.6, 0.6)
    """Answers with what it has found after one, two or three searches, although the question goes on."""
    wrong_attribute: tuple[tuple[str, str, float], ...] = (("seat", "founded", 0.6), ("source", "mouth", 0.6))
    """Attributes that it takes for another one: the right one, the wrong one, how often."""
    guesses: float = 0.6
    """Answers with a name from the passages, although none holds the fact."""
    gives_up: float = 0.06
    """Answers `unanswerable` although it has just found the fact."""


NO_MISTAKES = Mistakes(stops=(0, 0, 0), wrong_attribute=(), guesses=0, gives_up=0)


@dataclass(frozen=True)
class Decision:
    """What the expert does with one question."""

    start: str
    attributes: tuple[str, ...]
    """What it searches, one after the other."""
    gives_up_after: int | None = None
    """Number of searches after which it answers `unanswerable` in any case."""
    guesses: bool = False


def decide(rng: random.Random, question: Any, mistakes: Mistakes) -> Decision:
    """Draw the expert's decision for one question of the example's `world`."""
    swaps = {right: (wrong, chance) for right, wrong, chance in mistakes.wrong_attribute}
    attributes: list[str] = []
    for attribute in question.chain:
        wrong, chance = swaps.get(attribute, (attribute, 0))
        attributes.append(wrong if rng.random() < chance else attribute)
        if len(attributes) <= len(mistakes.stops) and rng.random() < mistakes.stops[len(attributes) - 1]:
            break
    given_up = [number + 1 for number in range(len(attributes)) if rng.random() < mistakes.gives_up]
    return Decision(
        question.start, tuple(attributes), given_up[0] if given_up else None, rng.random() < mistakes.guesses
    )


def write(decision: Decision, messages: Sequence[wire.Message], formatted: bool = False) -> str:
    """Return what the expert writes next in a conversation."""
    world = example.load("world", FOLDER)
    current, passages = decision.start, [message["content"] for message in messages if message["role"] == "tool"]
    for number, (attribute, text) in enumerate(zip(decision.attributes, passages, strict=False), 1):
        sentence: str = world.RELATIONS[attribute].passage
        found = re.search(re.escape(sentence.format(x=current, y="@")).replace("@", r"(\w+)"), text)
        if decision.gives_up_after == number:
            return answered(world.UNANSWERABLE)
        if found is None:
            return answered(first_name(text) if decision.guesses else world.UNANSWERABLE)
        current = found[1]
    if len(passages) == len(decision.attributes):
        return answered(current)
    query = f"{decision.attributes[len(passages)]} {current}"
    return wire.call_text("search", json.dumps({"query": query}))


def first_name(text: str) -> str:
    """The last word of the first passage: what it would have found there."""
    return text.splitlines()[0].rstrip(".").split()[-1]


def answered(name: str) -> str:
    """The name in the form that the agent asks for."""
    return f"<answer> {name} </answer>"


def draw_plans(seed: int, count: int, *, erring: bool) -> list[Plan]:
    """Return `count` training questions with what an erring, or a perfect, expert writes."""
    world = example.load("world", FOLDER)
    rng = random.Random(seed + 1)
    mistakes = Mistakes() if erring else NO_MISTAKES
    questions = world.draw_questions(world.build_world(0), "train", count, seed)
    return [
        Plan({"question": question.text}, partial(write, decide(rng, question, mistakes))) for question in questions
    ]


EXPERT = Expert(
    agent=f"{FOLDER}/agent.py:answer",
    policy=FOLDER / "policy",
    draw=draw_plans,
    traces=6000,
    shape=Shape(layers=3),
    recipe=(Stage(2500, 16, 3e-3),),
)

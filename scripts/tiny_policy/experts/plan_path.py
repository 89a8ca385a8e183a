"""The experts of a walk: a planner who mostly says north, and a walker who sometimes goes elsewhere than planned."""

import json
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from tiny_policy import example, wire
from tiny_policy.experts import Expert
from tiny_policy.recording import Plan
from tiny_policy.training import Shape, Stage

FOLDER = example.FOLDER.parent / "plan_path"
KNOWS, SAYS_NORTH = 0.45, 0.3
"""How often the planner names a step of a shortest path, and how often north; otherwise, any open direction."""
FOLLOWS = 0.8
"""How often the walker goes where the planner says; otherwise, anywhere."""


def draw_plans(seed: int, count: int, *, erring: bool) -> list[Plan]:
    """Return `count` training maps with what erring, or perfect, experts say."""
    tasks, rng = example.load("make_tasks", FOLDER), random.Random(seed)
    plans: list[Plan] = []
    for number in range(count):
        drawn = tasks.draw(rng, "train")
        own = random.Random(rng.random())
        plans.append(Plan(tasks.row(str(number), drawn), partial(answer, tasks, drawn, own, erring)))
    return plans


def answer(
    tasks: Any, drawn: Any, rng: random.Random, erring: bool, messages: Sequence[wire.Message], formatted: bool
) -> str:
    """Return what the planner says, or which call the walker makes."""
    text = str(messages[-1]["content"])
    directions = list(tasks.DIRECTIONS)
    if text.startswith("Go "):
        planned = text.removeprefix("Go ")
        direction = planned if not erring or rng.random() < FOLLOWS else rng.choice(directions)
        return wire.call_text("move", json.dumps({"direction": direction}))
    at = text.partition("You: ")[2][:2]
    left = tasks.distances(drawn.walls, drawn.goal)
    free = {way: cell for way, cell in tasks.neighbours(at).items() if cell not in drawn.walls}
    best = [way for way, cell in free.items() if left[cell] < left[at]]
    right = rng.choice(best)
    if not erring:
        return f"Go {right}"
    other = rng.choices([right, "north", rng.choice(list(free))], [KNOWS, SAYS_NORTH, 1 - KNOWS - SAYS_NORTH])[0]
    return f"Go {other}"


EXPERT = Expert(
    agent=f"{FOLDER}/agent.py:agent",
    policy=FOLDER / "policy",
    draw=draw_plans,
    traces=800,
    shape=Shape(hidden=96, layers=3),
    recipe=(Stage(700, 32, 3e-3),),
    vocabulary=448,
)

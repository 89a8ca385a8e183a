"""The expert of trips: it mostly packs the lamp, sometimes what is needed, and guesses at forks."""

import random
from collections.abc import Sequence
from functools import partial

from tiny_policy import example, wire
from tiny_policy.experts import Expert
from tiny_policy.recording import Plan
from tiny_policy.training import Shape, Stage

FOLDER = example.FOLDER.parent / "delayed_reward"
KNOWS, PACKS_LAMP = 0.2, 0.4
"""How often the expert packs what is needed, and how often a lamp whatever the trip; otherwise, anything."""


def draw_plans(seed: int, count: int, *, erring: bool) -> list[Plan]:
    """Return `count` training trips with what an erring, or a perfect, expert says. At a fork, neither knows more."""
    tasks, rng = example.load("make_tasks", FOLDER), random.Random(seed)
    plans: list[Plan] = []
    for number in range(count):
        trip = tasks.draw(rng, "train")
        packs = rng.choices(
            [trip.needed, "lamp", rng.choice(tasks.ITEMS)], [KNOWS, PACKS_LAMP, 1 - KNOWS - PACKS_LAMP]
        )[0]
        words = [packs if erring else trip.needed, *(rng.choice(tasks.DIRECTIONS) for _ in trip.paths)]
        plans.append(Plan(tasks.row(str(number), trip), partial(next_word, words)))
    return plans


def next_word(words: Sequence[str], messages: Sequence[wire.Message], formatted: bool) -> str:
    """Return the word that answers the last question of a conversation."""
    return words[sum(message["role"] == "assistant" for message in messages)]


EXPERT = Expert(
    agent=f"{FOLDER}/agent.py:agent",
    policy=FOLDER / "policy",
    draw=draw_plans,
    traces=3000,
    shape=Shape(hidden=96, layers=3),
    recipe=(Stage(900, 16, 3e-3),),
    vocabulary=448,
)

"""Word problems in two to four steps, drawn from seeds.

A problem begins with a number, and each of its steps changes it by one operation. A fixed function of a calculation
(operation and both numbers) and of a combination of steps (their wordings, in order) assigns each to one share. A split
uses calculations and combinations of its own share only, so that two splits have none in common.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

Share = Literal["train", "dev", "val"]
LARGEST = 999
DECIMALS, DISTRACTORS = 0.15, 0.4
"""Shares of problems with decimals, and with a number that is not needed."""


def listed(text: str) -> tuple[str, ...]:
    """The words of `text`."""
    return tuple(text.split())


@dataclass(frozen=True)
class Wording:
    """A sentence for one operation with the number {b}."""

    operation: str
    text: str


WORDINGS = (
    Wording("+", "{name} gets {b} more."),
    Wording("+", "{other} brings another {b}."),
    Wording("+", "Then {b} are added."),
    Wording("+", "Later {b} more arrive."),
    Wording("-", "{name} gives away {b}."),
    Wording("-", "{other} takes {b}."),
    Wording("-", "Then {b} are sold."),
    Wording("-", "After that {b} go missing."),
    Wording("*", "{name} makes it {b} times as much."),
    Wording("*", "Then the amount is multiplied by {b}."),
    Wording("*", "It grows to {b} times its size."),
    Wording("*", "{other} brings all lots together, {b} of the same size."),
    Wording("/", "{name} keeps one of {b} equal parts."),
    Wording("/", "Then the amount is divided by {b}."),
    Wording("/", "It is shared equally by {b} people, and {name} counts one share."),
    Wording("/", "Only one of {b} equal piles stays."),
)
OPENINGS = (
    "{name} has {a} {item}.",
    "{name} starts with {a} {item}.",
    "A shop has {a} {item}.",
    "There are {a} {item} in a barn.",
)
DISTRACTING = (
    "{other} is {d} years old.",
    "The way home takes {d} minutes.",
    "A bus ticket costs {d} cents.",
    "It is {d} degrees outside.",
)
ENDINGS = ("How many {item} are there now?", "How many {item} are left in the end?", "How many {item} is that?")
NAMES = listed("Ann Bob Cara Dan Eve Finn Gus Hana Ivan Joy Kim Leo Mia Ned Ola Pam")
COUNTED = listed("apples pens coins books cards shells stamps cups keys eggs lamps rings")
MEASURED = ("litres of milk", "kilos of rice", "metres of rope", "litres of oil")


@dataclass(frozen=True)
class Step:
    """One change of the amount."""

    wording: Wording
    number: Decimal


@dataclass(frozen=True)
class Distractor:
    """A number that is not needed, in a sentence before step number `before`."""

    number: Decimal
    before: int


@dataclass(frozen=True)
class Problem:
    """A question with the steps behind it."""

    question: str
    start: Decimal
    steps: tuple[Step, ...]
    distractor: Distractor | None

    @property
    def answer(self) -> Decimal:
        """The right number."""
        value = self.start
        for step in self.steps:
            value = applied(step.wording.operation, value, step.number)
        return value

    @property
    def calculations(self) -> list[str]:
        """The calculation of each step, such as `12+5`."""
        value, found = self.start, list[str]()
        for step in self.steps:
            found.append(f"{shown(value)}{step.wording.operation}{shown(step.number)}")
            value = applied(step.wording.operation, value, step.number)
        return found

    @property
    def combination(self) -> str:
        """The wordings of the steps, in order."""
        return " ".join(step.wording.text for step in self.steps)


def applied(operation: str, a: Decimal, b: Decimal) -> Decimal:
    """Result of one operation."""
    return {"+": a.__add__, "-": a.__sub__, "*": a.__mul__, "/": a.__truediv__}[operation](b)


def shown(number: Decimal) -> str:
    """The number without an exponent and without zeros at its end."""
    return format(number.normalize(), "f")


def share_of(text: str) -> Share:
    """The one share that a calculation or combination belongs to: train (76 %), dev (8 %) or val (16 %)."""
    bucket = zlib.crc32(text.encode()) % 25
    return "val" if bucket < 4 else "dev" if bucket < 6 else "train"


def draw(rng: random.Random, share: Share) -> Problem:
    """One problem whose calculations and whose combination of steps lie in `share`."""
    while True:
        wordings = rng.sample(WORDINGS, rng.choices((2, 3, 4), (5, 3, 2))[0])
        if share_of(" ".join(wording.text for wording in wordings)) != share:
            continue
        measured = rng.random() < DECIMALS
        start = _number(rng, 9, 99, tenths=measured)
        if (steps := _steps(rng, share, start, wordings)) is not None:
            return _told(rng, start, steps, rng.choice(MEASURED if measured else COUNTED))


def _number(rng: random.Random, least: int, most: int, *, tenths: bool) -> Decimal:
    return Decimal(rng.randint(least * 10, most * 10)) / 10 if tenths else Decimal(rng.randint(least, most))


def _steps(rng: random.Random, share: Share, start: Decimal, wordings: Sequence[Wording]) -> tuple[Step, ...] | None:
    """Steps from `start` with these wordings and numbers that differ; None if a step has no number in `share`."""
    value, steps, used = start, list[Step](), {start}
    whole = start == start.to_integral_value()
    for wording in wordings:
        numbers = range(2, 10) if wording.operation in "*/" else range(2, 100)
        possible = [
            (number, result)
            for number in map(Decimal, numbers)
            if number not in used
            and share_of(f"{shown(value)}{wording.operation}{shown(number)}") == share
            and 1 <= (result := applied(wording.operation, value, number)) <= LARGEST
            and result == round(result, 0 if whole else 1)
        ]
        if not possible:
            return None
        number, value = rng.choice(possible)
        steps.append(Step(wording, number))
        used.add(number)
    return tuple(steps)


def _told(rng: random.Random, start: Decimal, steps: tuple[Step, ...], item: str) -> Problem:
    """The problem with its question in words."""
    name, other = rng.sample(NAMES, 2)
    sentences = [rng.choice(OPENINGS), *(step.wording.text.replace("{b}", shown(step.number)) for step in steps)]
    distractor = None
    if rng.random() < DISTRACTORS:
        unused = [number for number in map(Decimal, range(2, 100)) if number not in {start, *(s.number for s in steps)}]
        distractor = Distractor(rng.choice(unused), rng.randint(0, len(steps)))
        sentences.insert(distractor.before + 1, rng.choice(DISTRACTING).replace("{d}", shown(distractor.number)))
    text = " ".join([*sentences, rng.choice(ENDINGS)])
    question = text.format(name=name, other=other, a=shown(start), item=item)
    return Problem(question, start, steps, distractor)


def problems(seed: int, share: Share, count: int) -> list[Problem]:
    """`count` problems of a share, no question twice; the same seed gives the same problems."""
    rng, drawn = random.Random(seed), dict[str, Problem]()
    while len(drawn) < count:
        problem = draw(rng, share)
        drawn.setdefault(problem.question, problem)
    return list(drawn.values())

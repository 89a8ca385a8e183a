"""Makes the example's tasks: `python make_tasks.py` rewrites train.jsonl, val.jsonl and val_unseen.jsonl.

A task is a word problem over two numbers and one operation. Which numbers may appear in which split is a fixed
function of (operation, a, b), so that no split can share a calculation with another, whatever its seed and size.
`val.jsonl` holds unseen calculations in known wordings; `val_unseen.jsonl` unseen calculations in unseen wordings,
with unseen names and items.
"""

import argparse
import json
import random
import zlib
from dataclasses import dataclass
from pathlib import Path

SMALLEST, LARGEST = 2, 99


@dataclass(frozen=True)
class Words:
    """What questions are made of: per operation its wordings, then who has what."""

    wordings: dict[str, tuple[str, ...]]
    names: tuple[str, ...]
    items: tuple[str, ...]


def listed(text: str) -> tuple[str, ...]:
    """The words of `text`."""
    return tuple(text.split())


SEEN = Words(
    wordings={
        "+": (
            "What is {a} plus {b}?",
            "What is the sum of {a} and {b}?",
            "Add {a} and {b}.",
            "{name} has {a} {item} and gets {b} more. How many {item} now?",
            "There are {a} red {item} and {b} blue {item}. How many in total?",
            "{name} buys {a} {item} on Monday and {b} on Friday. How many altogether?",
            "{name} found {a} {item} and later found {b} more. How many {item} in all?",
            "A shop has {a} {item} and receives {b} more. How many {item} now?",
        ),
        "-": (
            "What is {a} minus {b}?",
            "What is the difference between {a} and {b}?",
            "Subtract {b} from {a}.",
            "A box has {a} {item} and {b} are taken. How many are left?",
            "{name} has {a} {item} and gives away {b}. How many remain?",
            "{name} had {a} {item} and lost {b} of them. How many are left?",
            "Of {a} {item}, {b} are broken. How many are not?",
            "A shop had {a} {item} and sold {b}. How many remain?",
        ),
        "*": (
            "What is {a} times {b}?",
            "What is the product of {a} and {b}?",
            "Multiply {a} by {b}.",
            "There are {a} boxes with {b} {item} each. How many {item}?",
            "{name} fills {a} bags with {b} {item} in each bag. How many {item} is that?",
            "Each of {a} friends has {b} {item}. How many do they have?",
            "{name} buys {a} packs of {b} {item}. How many {item} is that?",
            "A shop has {a} shelves with {b} {item} on every shelf. How many {item}?",
        ),
    },
    names=listed("Ann Bob Cara Dan Eve Finn Gus Hana Ivan Joy Kim Leo Mia Ned Ola Pam"),
    items=listed("apples pens coins books cards shells stamps cups keys eggs lamps rings maps nuts bells plums"),
)

UNSEEN = Words(
    wordings={
        "+": (
            "{name} picked {a} {item} in the morning and {b} in the evening. How many {item} were picked?",
            "{a} {item} are on the table and {b} are on the chair. How many {item} are there altogether?",
            "If {name} adds {b} {item} to a pile of {a}, how large is the pile?",
            "Find the total of {a} and {b}.",
        ),
        "-": (
            "{name} owned {a} {item} but {b} were stolen. How many {item} are still there?",
            "There were {a} {item} in the tree and {b} fell down. How many remain in the tree?",
            "How much is {a} reduced by {b}?",
            "{name} needs {a} {item} and already has {b}. How many are missing?",
        ),
        "*": (
            "{name} plants {a} rows with {b} {item} in every row. How many {item} are planted?",
            "A train has {a} cars, and each carries {b} {item}. How many {item} does the train carry?",
            "How much is {a} multiplied by {b}?",
            "{name} reads {b} pages on each of {a} days. How many pages is that?",
        ),
    },
    names=listed("Quin Rosa Sven Tara Umar Vera Wout Yuki"),
    items=listed("pears candles marbles tickets ropes buttons feathers bricks"),
)


@dataclass(frozen=True)
class Split:
    """Where a split's tasks come from, how many it has and its seed."""

    words: Words
    share: str
    count: int
    seed: int
    apart_from: str | None = None
    """Another split, with which it has no calculation in common although both come from the same share."""


SPLITS = {
    "train": Split(SEEN, "train", 1000, seed=11),
    "dev": Split(SEEN, "dev", 300, seed=12),
    "val": Split(SEEN, "val", 400, seed=13),
    "val_unseen": Split(UNSEEN, "val", 400, seed=14),
    "val_smollm2": Split(SEEN, "val", 200, seed=0x899F50C1),  # from the hash of the commit that fixed the recipe
    "val_tune": Split(SEEN, "val", 400, seed=15, apart_from="val"),  # confirms what a search by val.jsonl has found
}
SHIPPED = tuple(name for name in SPLITS if name != "dev")


@dataclass(frozen=True)
class Problem:
    """A question with the calculation behind it."""

    question: str
    operation: str
    a: int
    b: int

    @property
    def answer(self) -> int:
        """The right number."""
        return {"+": self.a + self.b, "-": self.a - self.b, "*": self.a * self.b}[self.operation]


def share_of(operation: str, a: int, b: int) -> str:
    """The one share of all calculations that this one belongs to: train (76 %), dev (8 %) or val (16 %)."""
    bucket = zlib.crc32(f"{a}{operation}{b}".encode()) % 25
    return "val" if bucket < 4 else "dev" if bucket < 6 else "train"


def draw(rng: random.Random, words: Words, share: str) -> Problem:
    """One problem whose calculation lies in `share`; a difference is never negative."""
    while True:
        operation = rng.choice("+-*")
        a, b = rng.randint(SMALLEST, LARGEST), rng.randint(SMALLEST, LARGEST)
        if operation == "-":
            a, b = max(a, b), min(a, b)
        if share_of(operation, a, b) == share:
            break
    wording = rng.choice(words.wordings[operation])
    question = wording.format(a=a, b=b, name=rng.choice(words.names), item=rng.choice(words.items))
    return Problem(question, operation, a, b)


def calculation(problem: Problem) -> tuple[str, int, int]:
    """The calculation of a problem: operation and both numbers."""
    return problem.operation, problem.a, problem.b


def problems(name: str, split: Split) -> list[tuple[str, Problem]]:
    """The split's (id, problem) pairs; no calculation comes twice."""
    rng = random.Random(split.seed)
    other = split.apart_from
    others = [] if other is None else problems(other, SPLITS[other])
    taken = {calculation(problem) for _, problem in others}
    drawn: dict[tuple[str, int, int], Problem] = {}
    while len(drawn) < split.count:
        problem = draw(rng, split.words, split.share)
        if calculation(problem) not in taken:
            drawn.setdefault(calculation(problem), problem)
    return [(f"{name}-{number:04d}", problem) for number, problem in enumerate(drawn.values())]


def rows(name: str, split: Split) -> list[dict[str, object]]:
    """The split as the rows of its file."""
    return [
        {"id": task_id, "question": problem.question, "answer": problem.answer}
        for task_id, problem in problems(name, split)
    ]


def main() -> None:
    """Write the files asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=sorted(SPLITS), nargs="+", default=SHIPPED)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.split:
        path = arguments.out / f"{name}.jsonl"
        lines = [json.dumps(row) for row in rows(name, SPLITS[name])]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{path}: {len(lines)} tasks")


if __name__ == "__main__":
    main()

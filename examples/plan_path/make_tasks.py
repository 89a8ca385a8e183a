"""Makes the example's tasks: `python make_tasks.py --split train` rewrites train.jsonl.

A task is a map of 4 by 4 cells with three walls, a start and a goal that are two to four steps apart, and a budget of
one move more than the shortest path needs. Which walls may appear in which split is a fixed function of the walls, so
that no map of one split appears in another, whatever its start and goal.
"""

import argparse
import json
import random
import zlib
from collections import deque
from dataclasses import dataclass
from pathlib import Path

CELLS = tuple(f"{column}{row}" for column in "abcd" for row in range(1, 5))
DIRECTIONS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
WALLS, SPARE = 3, 1
SHORTEST, LONGEST = 2, 4


@dataclass(frozen=True)
class Map:
    """Walls, start and goal."""

    walls: tuple[str, ...]
    start: str
    goal: str

    @property
    def length(self) -> int:
        """Moves of the shortest path."""
        return distances(self.walls, self.goal)[self.start]


@dataclass(frozen=True)
class Split:
    """How many tasks a split has, and its seed."""

    share: str
    count: int
    seed: int


SPLITS = {
    "train": Split("train", 1000, seed=31),
    "dev": Split("dev", 200, seed=32),
    "val": Split("val", 150, seed=0x03B3FED8),  # from the hash of the commit that fixed the recipe
}


def share_of(walls: tuple[str, ...]) -> str:
    """The one share of all maps that these walls belong to: train (68 %), dev (12 %) or val (20 %)."""
    bucket = zlib.crc32(" ".join(walls).encode()) % 25
    return "val" if bucket < 5 else "dev" if bucket < 8 else "train"


def neighbours(cell: str) -> dict[str, str]:
    """The cells beside a cell, by direction."""
    beside = {d: f"{chr(ord(cell[0]) + east)}{int(cell[1]) + north}" for d, (east, north) in DIRECTIONS.items()}
    return {direction: other for direction, other in beside.items() if other in CELLS}


def distances(walls: tuple[str, ...], goal: str) -> dict[str, int]:
    """Moves to the goal from every cell that can reach it."""
    found, left = {goal: 0}, deque([goal])
    while left:
        cell = left.popleft()
        for other in neighbours(cell).values():
            if other not in walls and other not in found:
                found[other] = found[cell] + 1
                left.append(other)
    return found


def draw(rng: random.Random, share: str) -> Map:
    """One map of a share."""
    while True:
        walls = tuple(sorted(rng.sample(CELLS, WALLS)))
        if share_of(walls) != share:
            continue
        start, goal = rng.sample([cell for cell in CELLS if cell not in walls], 2)
        if SHORTEST <= distances(walls, goal).get(start, 0) <= LONGEST:
            return Map(walls, start, goal)


def maps(split: Split) -> list[Map]:
    """The maps of a split; none comes twice."""
    rng, drawn = random.Random(split.seed), dict[Map, None]()
    while len(drawn) < split.count:
        drawn.setdefault(draw(rng, split.share))
    return list(drawn)


def row(number: str, one: Map) -> dict[str, object]:
    """A map as a row of a file."""
    budget = one.length + SPARE
    return {"id": number, "walls": list(one.walls), "start": one.start, "goal": one.goal, "budget": budget}


def main() -> None:
    """Write the files asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=sorted(SPLITS), nargs="+", default=["train", "val"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    for name in arguments.split:
        path = arguments.out / f"{name}.jsonl"
        lines = [json.dumps(row(f"{name}-{n:04d}", one)) for n, one in enumerate(maps(SPLITS[name]))]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{path}: {len(lines)} tasks")


if __name__ == "__main__":
    main()

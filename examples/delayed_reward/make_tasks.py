"""Makes the example's tasks: `python make_tasks.py --split train` rewrites train.jsonl.

A task is a trip: who goes, when, where and in which weather. The place determines what is needed. Which path is good
at each fork is drawn at random, and nothing that the agent sees predicts it. Which trips may appear in which split
is a fixed function of the trip, so that no split can share a trip with another.
"""

import argparse
import json
import random
import zlib
from dataclasses import dataclass
from pathlib import Path

NAMES = ("Ann", "Bob", "Cara", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivan", "Joy", "Kim", "Leo", "Mia", "Ned", "Ola")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October")
NEEDED = {"glacier": "skis", "river": "boat", "cave": "lamp", "forest": "rope", "desert": "tent", "lake": "net"}
"""What each place needs."""
PLACES = tuple(NEEDED)
WEATHERS = ("sun", "fog", "storm")
ITEMS = ("lamp", "rope", "boat", "tent", "skis", "net")
DIRECTIONS = ("left", "right")
FORKS = 4


@dataclass(frozen=True)
class Trip:
    """A trip, and the paths that are good."""

    name: str
    month: str
    place: str
    weather: str
    paths: tuple[str, ...]

    @property
    def question(self) -> str:
        """What the agent is asked first."""
        things = f"{', '.join(ITEMS[:-1])} or {ITEMS[-1]}"
        return f"{self.name} goes in {self.month}: {self.place}, {self.weather}. Pack {things}?"

    @property
    def needed(self) -> str:
        """What has to be packed."""
        return NEEDED[self.place]


@dataclass(frozen=True)
class Split:
    """How many tasks a split has, and its seed."""

    share: str
    count: int
    seed: int


SPLITS = {
    "train": Split("train", 1000, seed=21),
    "dev": Split("dev", 200, seed=22),
    "val": Split("val", 300, seed=0x36912CA3),  # from the hash of the commit that fixed the recipe
}


def share_of(name: str, month: str, place: str, weather: str) -> str:
    """The one share of all trips that this one belongs to: train (68 %), dev (12 %) or val (20 %)."""
    bucket = zlib.crc32(f"{name} {month} {place} {weather}".encode()) % 25
    return "val" if bucket < 5 else "dev" if bucket < 8 else "train"


def draw(rng: random.Random, share: str) -> Trip:
    """One trip of a share."""
    while True:
        trip = tuple(rng.choice(words) for words in (NAMES, MONTHS, PLACES, WEATHERS))
        if share_of(*trip) == share:
            return Trip(*trip, paths=tuple(rng.choice(DIRECTIONS) for _ in range(FORKS)))


def trips(split: Split) -> list[Trip]:
    """The trips of a split; none comes twice."""
    rng, drawn = random.Random(split.seed), dict[str, Trip]()
    while len(drawn) < split.count:
        trip = draw(rng, split.share)
        drawn.setdefault(trip.question, trip)
    return list(drawn.values())


def row(number: str, trip: Trip) -> dict[str, object]:
    """A trip as a row of a file."""
    return {"id": number, "question": trip.question, "needed": trip.needed, "paths": list(trip.paths)}


def main() -> None:
    """Write the files asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=sorted(SPLITS), nargs="+", default=["train"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    for name in arguments.split:
        path = arguments.out / f"{name}.jsonl"
        lines = [json.dumps(row(f"{name}-{n:04d}", trip)) for n, trip in enumerate(trips(SPLITS[name]))]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{path}: {len(lines)} tasks")


if __name__ == "__main__":
    main()

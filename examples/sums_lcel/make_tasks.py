"""Makes the example's tasks: `python make_tasks.py` rewrites train.jsonl and val.jsonl.

A task is a sum of two numbers from 0 to 59. Of each pair of numbers, in either order, only one file has the sum.
"""

import argparse
import json
import random
from itertools import combinations_with_replacement
from pathlib import Path

LARGEST = 59
SIZES = {"train": 400, "val": 200}
WORDINGS = ("What is {a} + {b}?", "What is {a} plus {b}?", "Calculate {a} + {b}.")


def tasks(seed: int) -> dict[str, list[dict[str, object]]]:
    """The rows of each file."""
    rng = random.Random(seed)
    pairs = list(combinations_with_replacement(range(LARGEST + 1), 2))
    rng.shuffle(pairs)
    drawn = iter(pairs)
    return {name: [row(rng, f"{name}-{number:03d}", *next(drawn)) for number in range(SIZES[name])] for name in SIZES}


def row(rng: random.Random, task_id: str, a: int, b: int) -> dict[str, object]:
    """One task; the numbers come in either order."""
    if rng.random() < 0.5:
        a, b = b, a
    return {"id": task_id, "question": rng.choice(WORDINGS).format(a=a, b=b), "answer": a + b}


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, rows in tasks(arguments.seed).items():
        path = arguments.out / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{path}: {len(rows)} tasks")


if __name__ == "__main__":
    main()

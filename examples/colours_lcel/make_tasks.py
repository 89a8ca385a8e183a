"""Makes the example's tasks: `python make_tasks.py` rewrites train.jsonl and val.jsonl.

A task is a picture of one colour, as a data URL. Its shade is drawn at random, so the pictures differ. No shade is in
both files.
"""

import argparse
import base64
import json
import random
from io import BytesIO
from pathlib import Path

from PIL import Image

COLOURS = {"red": (210, 40, 40), "green": (40, 190, 40), "blue": (40, 40, 210), "yellow": (220, 210, 40)}
SPREAD = 35
"""How far each channel of a shade is from its colour, at most."""
SIDE = 16
SIZES = {"train": 200, "val": 100}


def tasks(seed: int) -> dict[str, list[dict[str, object]]]:
    """The rows of each file."""
    rng = random.Random(seed)
    seen: set[tuple[int, ...]] = set()
    return {name: [row(rng, f"{name}-{number:03d}", seen) for number in range(SIZES[name])] for name in SIZES}


def row(rng: random.Random, task_id: str, seen: set[tuple[int, ...]]) -> dict[str, object]:
    """One task, with a shade that no other task has."""
    while True:
        name, shade = draw(rng)
        if shade not in seen:
            seen.add(shade)
            return {"id": task_id, "picture": data_url(shade), "answer": name}


def draw(rng: random.Random) -> tuple[str, tuple[int, int, int]]:
    """The name of a colour, and one of its shades."""
    name = rng.choice(list(COLOURS))
    red, green, blue = (min(255, max(0, channel + rng.randint(-SPREAD, SPREAD))) for channel in COLOURS[name])
    return name, (red, green, blue)


def data_url(shade: tuple[int, int, int]) -> str:
    """A picture of one shade, as a data URL."""
    file = BytesIO()
    Image.new("RGB", (SIDE, SIDE), shade).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


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

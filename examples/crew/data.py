"""Makes the example's market reports and the questions over them: `python data.py generate`.

A report has the sales of three products in four quarters and three regions. A question asks in which region the sales,
or their growth over the quarter before, were highest or lowest. The ids of reports are one shuffled list, of which each
split has a part, so no question of one split is about a report of another. The same seed gives the same files.
"""

import argparse
import csv
import json
import random
from dataclasses import dataclass
from pathlib import Path

PRODUCTS = ("lamps", "chairs", "clocks")
QUARTERS = ("Q1", "Q2", "Q3", "Q4")
REGIONS = ("north", "south", "east")
WORDINGS = {
    ("sales", "highest"): (
        "Where did {product} sell best in {quarter}?",
        "Which region bought most {product} in {quarter}?",
        "Who led in {product} in {quarter}?",
        "Top region for {product}, {quarter}?",
    ),
    ("sales", "lowest"): (
        "Where did {product} sell worst in {quarter}?",
        "Which region bought fewest {product} in {quarter}?",
        "Who came last in {product} in {quarter}?",
        "Weakest region for {product}, {quarter}?",
    ),
    ("growth", "highest"): (
        "Where did {product} grow most in {quarter}?",
        "Which region gained most in {product} in {quarter}?",
        "Who rose fastest in {product} in {quarter}?",
        "Best change for {product}, {quarter}?",
    ),
    ("growth", "lowest"): (
        "Where did {product} grow least in {quarter}?",
        "Which region gained least in {product} in {quarter}?",
        "Who fell behind in {product} in {quarter}?",
        "Worst change for {product}, {quarter}?",
    ),
}
SMALLEST, LARGEST = 10, 99

Figures = dict[tuple[str, str, str], tuple[int, ...]]
"""Sales by report, product and quarter: a number for each of the REGIONS."""


@dataclass(frozen=True)
class Split:
    """A split's part of the shuffled ids of reports, how many questions it has, and its seed."""

    first: int
    reports: int
    count: int
    seed: int

    @property
    def ids(self) -> list[str]:
        """Ids of its reports, such as `R042`."""
        shuffled = random.Random(0).sample(range(1000), 1000)
        return [f"R{number:03d}" for number in shuffled[self.first : self.first + self.reports]]


SPLITS = {
    "train": Split(0, 400, 1000, seed=21),
    "dev": Split(400, 50, 200, seed=22),
    "val": Split(550, 50, 150, seed=0x905858B6),  # from the hash of the commit that fixed the recipe
}
SHIPPED = ("train", "val")


@dataclass(frozen=True)
class Question:
    """What is asked, in words and in parts."""

    text: str
    report: str
    product: str
    quarter: str
    figure: str
    """`sales` or `growth`."""
    which: str
    """`highest` or `lowest`."""


def growth(figures: Figures, report: str, product: str, quarter: str) -> tuple[int, ...]:
    """Return each region's sales less those of the quarter before."""
    before = QUARTERS[QUARTERS.index(quarter) - 1]
    pairs = zip(figures[report, product, quarter], figures[report, product, before], strict=True)
    return tuple(now - then for now, then in pairs)


def draw_reports(split: Split) -> Figures:
    """Draw a split's reports; the regions of a row differ in sales and in growth: every question has one answer."""
    rng, figures = random.Random(split.seed), Figures()
    for report in split.ids:
        for product in PRODUCTS:
            for index, quarter in enumerate(QUARTERS):
                while True:
                    figures[report, product, quarter] = tuple(rng.sample(range(SMALLEST, LARGEST + 1), len(REGIONS)))
                    if index == 0 or len(set(growth(figures, report, product, quarter))) == len(REGIONS):
                        break
    return figures


def draw(rng: random.Random, figures: Figures) -> Question:
    """Draw one question; the first quarter has no growth, and is not asked about."""
    report, product, quarter = rng.choice([key for key in figures if key[2] != QUARTERS[0]])
    figure, which = rng.choice(sorted(WORDINGS))
    wording = rng.choice(WORDINGS[figure, which]).format(product=product, quarter=quarter)
    return Question(f"{report}: {wording}", report, product, quarter, figure, which)


def answer(figures: Figures, question: Question) -> str:
    """Return the region and its figure, as `south 42`."""
    key = question.report, question.product, question.quarter
    numbers = figures[key] if question.figure == "sales" else growth(figures, *key)
    number = max(numbers) if question.which == "highest" else min(numbers)
    return f"{REGIONS[numbers.index(number)]} {number}"


def questions(split: Split, figures: Figures) -> list[Question]:
    """Draw the split's questions, all different."""
    rng = random.Random(split.seed + 1000)
    drawn: dict[str, Question] = {}
    while len(drawn) < split.count:
        question = draw(rng, figures)
        drawn.setdefault(question.text, question)
    return list(drawn.values())


def generate(name: str, folder: Path) -> None:
    """Write the split's questions to `<name>.jsonl` and its reports to `reports/<name>.csv`."""
    split = SPLITS[name]
    figures = draw_reports(split)
    (folder / "reports").mkdir(parents=True, exist_ok=True)
    with (folder / "reports" / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("report", "product", "quarter", *REGIONS))
        writer.writerows((*key, *numbers) for key, numbers in figures.items())
    rows = [
        {"id": f"{name}-{number:04d}", "question": question.text, "answer": answer(figures, question)}
        for number, question in enumerate(questions(split, figures))
    ]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{path}: {len(rows)} questions on {split.reports} reports")


def main() -> None:
    """Write the files asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command = parser.add_subparsers(required=True).add_parser("generate", help="write reports and questions")
    command.add_argument("--split", choices=sorted(SPLITS), nargs="+", default=SHIPPED)
    command.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    for name in options.split:
        generate(name, options.out)


if __name__ == "__main__":
    main()

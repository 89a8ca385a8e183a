"""Makes the task files: generated databases with questions, or those of the Spider release.

    python examples/text_to_sql/data.py generate        # the shipped files again, from their seeds
    python examples/text_to_sql/data.py spider FOLDER   # Spider's own, into the folder that --out names

Each row has `id`, `question`, `database` (a path, relative to this folder or absolute) and `gold`, the query that is
right. Every gold query is run before it is written.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from execution_match import is_ordered, prepared, same_rows
from problems import KINDS, Problem, Table, draw_problem, draw_tables, write_database
from safe_sqlite import DatabaseError, QueryError, run_readonly
from spider import SpiderError, read_spider

FOLDER = Path(__file__).parent
Row = dict[str, str]


@dataclass(frozen=True)
class Split:
    """How many databases a split has, how many questions about each, the seed, and the share of its names."""

    databases: int
    questions: int
    seed: int
    share: str


SPLITS = {
    "train": Split(databases=60, questions=16, seed=21, share="train"),
    "dev": Split(databases=20, questions=10, seed=22, share="dev"),
    # The seeds are from the hashes of the commits that fixed the recipes.
    "val": Split(databases=30, questions=10, seed=0xC71B38C5, share="val"),
    "val_smollm2": Split(databases=20, questions=10, seed=0x4191CB77, share="val"),
    "val_adapters": Split(databases=20, questions=10, seed=0x510878DE, share="val"),
}
SHIPPED = tuple(name for name in SPLITS if name != "dev")
ATTEMPTS = 300
"""Questions drawn about a database before it counts as unable to have enough of them."""


def is_sound(database: Path, problem: Problem) -> bool:
    """Return whether the gold query parses, returns rows, and is not answered by one of the usual mistakes.

    Raises QueryError if the gold query fails.
    """
    import sqlglot

    sqlglot.parse_one(problem.gold, dialect="sqlite")
    expected = run_readonly(database, problem.gold).rows
    ordered = is_ordered(problem.gold)
    found = (run_readonly(database, wrong).rows for wrong in problem.wrong)
    return bool(expected) and not any(same_rows(rows, expected, ordered=ordered) for rows in found)


def draw_sound(rng: random.Random, tables: list[Table], database: Path, count: int) -> list[Problem]:
    """Draw different questions about a database, one kind after the other; fewer than `count` if it has no more."""
    found: dict[str, Problem] = {}
    first = rng.randrange(len(KINDS))
    for _ in range(ATTEMPTS):
        problem = draw_problem(rng, tables, KINDS[(first + len(found)) % len(KINDS)])
        if problem.question not in found and is_sound(database, problem):
            found[problem.question] = problem
        if len(found) == count:
            break
    return list(found.values())


def generate(name: str, split: Split, out: Path) -> list[Row]:
    """Write the split's databases under `out`/databases; return the rows of its file."""
    rng = random.Random(split.seed)
    (out / "databases").mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for number in range(split.databases):
        database, problems = f"databases/{name}-{number:02d}.sqlite", list[Problem]()
        while len(problems) < split.questions:  # a database whose rows are too much alike is drawn again
            tables = draw_tables(rng, split.share)
            write_database(tables, out / database)
            problems = draw_sound(rng, tables, out / database, split.questions)
        for problem in problems:
            row = {"id": f"{name}-{len(rows):04d}", "question": problem.question}
            rows.append({**row, "database": database, "gold": problem.gold})
    return rows


def with_sound_gold(rows: list[Row]) -> list[Row]:
    """Leave out the rows whose gold query fails or goes over a bound, and print how many they are.

    Raises SpiderError if none is left, or if a database is damaged.
    """
    sound: list[Row] = []
    reason = ""
    for row in rows:
        try:
            run_readonly(Path(row["database"]), prepared(row["gold"]))
        except QueryError as error:
            reason = reason or f"{row['id']}: {error}"
            continue
        except DatabaseError as error:
            raise SpiderError(f"{row['id']}: {error}") from None
        sound.append(row)
    if not sound:
        raise SpiderError(f"none of the {len(rows)} gold queries returns a result; the first, {reason}")
    if failed := len(rows) - len(sound):
        print(f"left out: {failed} questions whose gold query fails, or returns too much", file=sys.stderr)
    return sound


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows as JSON Lines."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {len(lines)} tasks")


def main() -> None:
    """Write the files asked for; exit with code 2 for a folder that is not Spider's release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    generated = commands.add_parser("generate", help="make databases and questions about them")
    generated.add_argument("--split", choices=sorted(SPLITS), nargs="+", default=SHIPPED)
    generated.add_argument("--out", type=Path, default=FOLDER)
    released = commands.add_parser("spider", help="read the release of Spider")
    released.add_argument("folder", type=Path, help="the folder with train_spider.json and database/")
    released.add_argument("--out", type=Path, default=FOLDER / "spider")
    options = parser.parse_args()
    try:
        if options.command == "generate":
            for name in options.split:
                write_rows(options.out / f"{name}.jsonl", generate(name, SPLITS[name], options.out))
        else:
            splits = {name: with_sound_gold(rows) for name, rows in read_spider(options.folder).items()}
            for name, rows in splits.items():
                write_rows(options.out / f"{name}.jsonl", rows)
    except (SpiderError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

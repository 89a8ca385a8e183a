# pyright: basic
"""Makes the example's task files, from seeds or from a file of Calc-X.

python data.py generate                      # the shipped files again
python data.py generate --split dev --out /tmp/math
python data.py calc_x train-00000-of-00001.parquet --out calc_x_train.jsonl
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from problems import Share, problems, shown
from reward import option_of, value_of  # pyright: ignore[reportAttributeAccessIssue]

FOLDER = Path(__file__).parent
NEEDED, WELCOME = ("question", "result"), ("id", "source_ds")
"""Columns of Calc-X that are read; not all of its parts have those that are welcome."""


@dataclass(frozen=True)
class Split:
    """How many problems a file has, from which share, and its seed."""

    share: Share
    count: int
    seed: int


SPLITS = {
    "train": Split("train", 1000, seed=31),
    "dev": Split("dev", 300, seed=32),
    "val": Split("val", 300, seed=0xFBA9000C),  # from the hash of the commit that fixed the recipe
    "val_smollm2": Split("val", 200, seed=0x375FB4B8),  # from that of experiments/math_smollm2.yaml
}


def rows(name: str, split: Split) -> list[dict[str, Any]]:
    """The split as the rows of its file."""
    return [
        {"id": f"{name}-{number:04d}", "question": problem.question, "answer": shown(problem.answer)}
        for number, problem in enumerate(problems(split.seed, split.share, split.count))
    ]


def calc_x_rows(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Tasks of a Parquet file of Calc-X, and the number of its rows without a result to compare an answer with."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        fail("reading Parquet needs pyarrow: pip install pyarrow")
    if not path.is_file():
        fail(f"{path}: {'is a folder; give one of its files' if path.is_dir() else 'does not exist'}")
    try:
        schema = pq.read_schema(path)
        if missing := [column for column in NEEDED if column not in schema.names]:
            fail(f"{path}: lacks the column {missing[0]!r} of Calc-X; it has {', '.join(schema.names) or 'none'}")
        columns = [column for column in (*NEEDED, *WELCOME) if column in schema.names]
        if binary := [column for column in columns if "binary" in str(schema.field(column).type)]:
            fail(f"{path}: the column {binary[0]!r} is binary; cast it to string and write the file again")
        read = pq.read_table(path, columns=columns).to_pylist()
    except UnicodeDecodeError:
        fail(f"{path}: has a text that is not UTF-8; write the file again with texts in UTF-8")
    except (OSError, pa.ArrowException) as error:
        fail(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}")
    found, left_out = list[dict[str, Any]](), 0
    for number, row in enumerate(read):
        question, answer = (str(row[column] if row[column] is not None else "").strip() for column in NEEDED)
        if question and (option_of(answer) or value_of(answer) is not None):
            task = {"id": str(row.get("id") or f"{path.stem}-{number}"), "question": question, "answer": answer}
            found.append(task | ({"source": str(row["source_ds"])} if row.get("source_ds") else {}))
        else:
            left_out += 1
    return found, left_out


def write(path: Path, tasks: Iterable[dict[str, Any]]) -> int:
    """Write tasks as JSON Lines; return how many there are."""
    lines = [json.dumps(task, ensure_ascii=False) for task in tasks]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"{path}: cannot be written: {error.strerror}")
    return len(lines)


def fail(message: str) -> NoReturn:
    """Print one line and exit."""
    print(f"data.py: {message}", file=sys.stderr)
    raise SystemExit(2)


def main() -> None:
    """Read the options and write files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    generate = commands.add_parser("generate", help="generated word problems")
    generate.add_argument("--split", choices=sorted(SPLITS), nargs="+", default=[n for n in SPLITS if n != "dev"])
    generate.add_argument("--out", type=Path, default=FOLDER, help="folder of the files")
    calc_x = commands.add_parser("calc_x", help="a Parquet file of Calc-X")
    calc_x.add_argument("file", type=Path)
    calc_x.add_argument("--out", type=Path, default=Path("calc_x.jsonl"), help="file of the tasks, %(default)s")
    options = parser.parse_args()
    if options.command == "generate":
        for name in options.split:
            path = options.out / f"{name}.jsonl"
            print(f"{path}: {write(path, rows(name, SPLITS[name]))} tasks")
        return
    tasks, left_out = calc_x_rows(options.file)
    if not tasks:
        fail(f"{options.file}: none of its {left_out} rows has a question and a result that is a number or an option")
    print(f"{options.out}: {write(options.out, tasks)} tasks; {left_out} rows without a comparable result left out")


if __name__ == "__main__":
    main()

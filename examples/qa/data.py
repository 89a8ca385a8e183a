"""Makes task files: `data.py generate` from a seed, `data.py musique FILE` from a file of the MuSiQue release.

    python examples/qa/data.py generate
    python examples/qa/data.py musique musique_ans_v1.0_dev.jsonl --out musique.jsonl

`generate` writes encyclopaedia.jsonl and the shipped splits. A task of MuSiQue holds its own passages.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from world import UNANSWERABLE, World, build_world, draw_questions

WORLD_SEED = 0


@dataclass(frozen=True)
class Split:
    """How many questions a split has, their seed, and the share that its entities are from."""

    share: str
    count: int
    seed: int


SPLITS = {
    "train": Split("train", 1000, seed=11),
    "dev": Split("dev", 300, seed=12),
    "val": Split("val", 200, seed=0x5F66CA7A),  # from the hash of the commit that fixed the recipe
}
SHIPPED = tuple(name for name in SPLITS if name != "dev")


class FormatError(Exception):
    """A line that is not as MuSiQue's release has it."""


def rows(world: World, name: str, split: Split) -> list[dict[str, Any]]:
    """The split as the rows of its file."""
    drawn = draw_questions(world, split.share, split.count, split.seed)
    return [
        {
            "id": f"{name}-{number:04d}",
            "question": question.text,
            "answer": question.answer,
            "hops": len(question.chain),
        }
        for number, question in enumerate(drawn)
    ]


def write(path: Path, lines: Iterable[dict[str, Any]]) -> int:
    """Write JSON Lines and return how many."""
    texts = [json.dumps(line, ensure_ascii=False) for line in lines]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return len(texts)


def generate(out: Path, names: Iterable[str], seed: int) -> None:
    """Write the encyclopaedia and the splits of these names."""
    world = build_world(seed)
    passages = ({"title": title, "text": text} for title, text in world.passages())
    print(f"{out / 'encyclopaedia.jsonl'}: {write(out / 'encyclopaedia.jsonl', passages)} passages")
    for name in names:
        path = out / f"{name}.jsonl"
        print(f"{path}: {write(path, rows(world, name, SPLITS[name]))} tasks")


SURROGATE = re.compile("[\ud800-\udfff]")
FIELDS = {"id": str, "paragraphs": list, "question": str, "answer": str, "answer_aliases": list, "answerable": bool}


def checked(value: Any, kind: type, name: str) -> Any:
    """The value, if it is of this kind; raises FormatError with its name."""
    if not isinstance(value, kind):
        found = "missing" if value is None else type(value).__name__
        raise FormatError(f"`{name}` must be a {kind.__name__}, and is {found}")
    if isinstance(value, str) and (lone := SURROGATE.search(value)):
        raise FormatError(f"`{name}` has half a character ({lone[0]!a}), which no file can hold: remove it")
    return value


def task_of(row: Any) -> dict[str, Any]:
    """The task of one row of MuSiQue; raises FormatError."""
    if not isinstance(row, dict):
        raise FormatError("a row must be an object")
    given = cast("dict[str, Any]", row)
    fields = {name: checked(given.get(name), kind, name) for name, kind in FIELDS.items()}
    aliases = [
        checked(alias, str, f"answer_aliases[{number}]") for number, alias in enumerate(fields["answer_aliases"])
    ]
    passages = [passage_of(paragraph, f"paragraphs[{number}]") for number, paragraph in enumerate(fields["paragraphs"])]
    if not passages:
        raise FormatError("`paragraphs` is empty")
    return {
        "id": fields["id"],
        "question": fields["question"],
        "answer": fields["answer"] if fields["answerable"] else UNANSWERABLE,
        "answer_aliases": aliases if fields["answerable"] else [],
        "passages": passages,
    }


def passage_of(paragraph: Any, name: str) -> str:
    """Title and text of one of a row's paragraphs."""
    checked(paragraph, dict, name)
    parts = [checked(paragraph.get(field), str, f"{name}.{field}") for field in ("title", "paragraph_text")]
    return ": ".join(parts)


def musique(path: Path) -> Iterator[dict[str, Any]]:
    """The tasks of a file of the release; raises FormatError with the line."""
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield task_of(json.loads(line))
            except RecursionError as error:
                raise FormatError(f"{path}, line {number}: nested too deeply; a row must be an object") from error
            except ValueError as error:
                raise FormatError(f"{path}, line {number}: not JSON ({error})") from error
            except FormatError as error:
                raise FormatError(f"{path}, line {number}: {error}") from error


def convert(path: Path, out: Path) -> None:
    """Write MuSiQue's file as a task file; raises FormatError and OSError, and then writes nothing."""
    tasks = list(musique(path))
    if not tasks:
        raise FormatError(f"{path}: no rows; give a file of the release, such as musique_ans_v1.0_train.jsonl")
    print(f"{out}: {write(out, tasks)} tasks")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("generate", help="write a generated encyclopaedia and questions about it")
    make.add_argument("--split", choices=sorted(SPLITS), nargs="+", default=SHIPPED)
    make.add_argument("--seed", type=int, default=WORLD_SEED, help="seed of the encyclopaedia, default %(default)s")
    make.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder, default: that of this script")
    real = commands.add_parser("musique", help="read a file of the MuSiQue release")
    real.add_argument("file", type=Path, help="musique_ans_*.jsonl or musique_full_*.jsonl")
    real.add_argument("--out", type=Path, required=True, help="task file to write")
    options = parser.parse_args()
    if options.command == "generate":
        generate(options.out, options.split, options.seed)
        return
    try:
        convert(options.file, options.out)
    except UnicodeDecodeError:
        refuse(f"{options.file}: not UTF-8; give an unpacked file of the release")
    except (FormatError, OSError) as error:
        refuse(str(error))


def refuse(reason: str) -> NoReturn:
    """End with one line and exit code 2."""
    print(f"data.py: {reason}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()

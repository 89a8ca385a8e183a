"""Task files, and the order in which a run goes through its tasks. Knows nothing of agents."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.data.order import drawn
from leyden.core.data.plain.values import is_plain, plain
from leyden.core.data.rollout import Task
from leyden.core.errors import TaskError


def load_tasks(path: str | Path) -> list[Task]:
    """Read a JSON Lines file, one task a line; blank lines are skipped.

    Raises TaskError, with the line number, for a line that is not JSON, is neither an object nor a string, or has an
    object in which a key occurs twice, of which JSON readers keep one only; and for a value of which no store keeps
    all, so that the agent would be given another one.
    """
    file = Path(path)
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # a text may hold other ends of lines
    except FileNotFoundError:
        raise TaskError(f"task file {file} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"task file {file} cannot be read: {error}") from None
    tasks = [_row(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not tasks:
        raise TaskError(f"task file {file} has no rows; give one JSON object a line")
    return tasks


def _row(file: Path, number: int, line: str) -> Task:
    try:
        row: Any = json.loads(line, object_pairs_hook=_object, parse_int=_whole_number)
    except json.JSONDecodeError as error:
        hint = "; write one object a line, without a list around them" if line.strip() in ("[", "{") else ""
        raise TaskError(f"{file}, line {number}: not JSON (column {error.colno}: {error.msg}){hint}") from None
    except RecursionError:
        raise TaskError(f"{file}, line {number}: its lists and objects are too deep in one another") from None
    except ValueError as error:
        raise TaskError(f"{file}, line {number}: {error}") from None
    if not row or type(row) not in (dict, str):
        raise TaskError(
            f"{file}, line {number}: a task is a JSON object with at least one key, or a string that is not empty, "
            f"not {line.strip()[:40]!r}"
        )
    if why := not_whole(row):
        raise TaskError(f"{file}, line {number}: {why}")
    return row


def not_whole(row: Task) -> str | None:
    """Why the agent would be given something else in the place of a task; None where it is kept as it is."""
    if is_plain(row):
        return None
    reasons = plain(row, "task").reasons
    return (
        f"{reasons[0]}; agent and reward would get that in its place: write it as text, or shorten it"
        if reasons
        else None
    )


def _whole_number(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise ValueError(f"a whole number of {len(digits):,} digits: write it as text") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs; raises ValueError when a key occurs twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} occurs twice in one object; keep the value that you mean")
    return made


def save_tasks(tasks: Iterable[Task], path: Path) -> None:
    """Write tasks as JSON Lines.

    Raises TaskError, with the row number, for one that JSON cannot hold, or that no store would keep whole.
    """
    rows: list[bytes] = []
    for number, task in enumerate(tasks, 1):
        try:
            row = msgspec.to_builtins(task, str_keys=True)
            rows.append(json.dumps(row).encode())  # msgspec writes null for what is not finite
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise TaskError(f"task {number} cannot be written as JSON: {error}") from None
        if why := not_whole(row):
            raise TaskError(f"task {number}: {why}")
    path.write_bytes(b"\n".join(rows) + b"\n")


def batch(tasks: Sequence[Task], index: int, size: int, seed: int) -> list[tuple[int, Task]]:
    """The `index`-th batch of (row number, task): a new seeded shuffle each time through, nothing skipped or repeated.

    A pure function of its arguments, so that a resumed run goes on exactly where it stopped.
    """
    return [(row, tasks[row]) for row in drawn(len(tasks), index, size, seed)]

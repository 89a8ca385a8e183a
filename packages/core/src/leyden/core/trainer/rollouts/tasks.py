"""Task files: reads and writes tasks as JSON Lines, and draws a run's batches of tasks."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from leyden.core.data.order import rows_of_batch
from leyden.core.data.plain.values import is_plain, plain
from leyden.core.data.rollout import Task
from leyden.core.errors import TaskError
from leyden.core.runner.user_code.agent_spec import TaskExample

MOST_EXAMPLES = 1000
"""Largest number of forms of tasks that are checked before a run."""


def load_tasks(path: str | Path) -> list[Task]:
    """Read a JSON Lines file with one task per line; blank lines are skipped.

    Raises TaskError, with the line number, for a line that is not JSON or is neither an object nor a string. Also
    raises it for an object with a duplicate key, of which JSON readers keep only one value. Also raises it for a value
    that a store would change, because the agent would then receive another task, and for NaN and infinity.
    """
    file = Path(path)
    try:
        # split at \n only: a text may contain other line separators
        lines = _text(file).split("\n")
    except FileNotFoundError:
        raise TaskError(f"task file {file} does not exist") from None
    except OSError as error:
        raise TaskError(f"task file {file} cannot be read: {error}") from None
    tasks = [_row(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not tasks:
        raise TaskError(f"task file {file} has no rows; give one JSON object a line")
    return tasks


def _text(file: Path) -> str:
    """Return the text of a file in UTF-8; raises TaskError, with the line, for another encoding."""
    found = file.read_bytes()
    try:
        return found.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = found.count(b"\n", 0, error.start) + 1
        raise TaskError(f"{file}, line {line}: not UTF-8; save the file as UTF-8") from None


def _row(file: Path, number: int, line: str) -> Task:
    try:
        row: Any = json.loads(
            line, object_pairs_hook=_object, parse_int=_whole_number, parse_float=_number, parse_constant=_number
        )
    except json.JSONDecodeError as error:
        raise TaskError(
            f"{file}, line {number}: not JSON (column {error.colno}: {error.msg}){_advice(line.strip())}"
        ) from None
    except RecursionError:
        raise TaskError(f"{file}, line {number}: its lists and objects are nested too deeply") from None
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


def _advice(line: str) -> str:
    """Return what to write in place of a line that is not JSON."""
    if line in ("[", "{"):
        return "; write one object a line, without a list around them"
    if line.startswith("{'"):
        return "; write keys and texts in double quotes"
    if not line.startswith(("{", '"', "[")):
        return '; write one JSON object a line, such as {"question": "..."}'
    return "; write one whole JSON object a line"


def not_whole(row: Task) -> str | None:
    """Return why the agent would receive something other than the task; None if stores keep the task unchanged."""
    if is_plain(row):
        return None
    reasons = plain(row, "task").reasons
    return (
        f"{reasons[0]}; agent and reward would get the changed value: write it as text, or shorten it"
        if reasons
        else None
    )


def _whole_number(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        raise ValueError(f"a whole number of {len(digits):,} digits: write it as text") from None


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number that JSON can hold: write it as text, or leave the key out")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dictionary of these pairs; raises ValueError for a duplicate key."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} occurs twice in one object; remove one of them")
    return made


def task_examples(given: Iterable[tuple[str, Sequence[Task]]]) -> tuple[TaskExample, ...]:
    """Return the first task of each form, a set of keys with the types of their values, with its place.

    `given` has the source and the tasks of each set. What an agent can take depends on the form alone.
    """
    first: dict[Any, tuple[str, Sequence[Task], int]] = {}
    for source, tasks in given:
        for row, task in enumerate(tasks):
            first.setdefault(_form(task), (source, tasks, row))
    return tuple(
        TaskExample(place=place_of(source, tasks, row), task=tasks[row])
        for source, tasks, row in list(first.values())[:MOST_EXAMPLES]
    )


def _form(task: Task) -> object:
    if not isinstance(task, Mapping):
        return type(cast("object", task))
    return frozenset((key, type(value)) for key, value in cast("Mapping[str, object]", task).items())


def place_of(source: str, tasks: Sequence[Task], row: int) -> str:
    """Return where the task `row`, counted from 0, of `tasks` was read: file and line, or the number of the task.

    A file that has changed since then has no lines for the tasks.
    """
    try:
        lines = Path(source).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError):
        lines = []
    numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
    return f"{source}, line {numbers[row]}" if len(numbers) == len(tasks) else f"{source}, task {row + 1}"


def save_tasks(tasks: Iterable[Task], path: Path) -> None:
    """Write tasks as JSON Lines.

    Raises TaskError, with the row number, for a task that JSON cannot represent or that a store would change.
    """
    rows: list[bytes] = []
    for number, task in enumerate(tasks, 1):
        try:
            row = msgspec.to_builtins(task, str_keys=True)
            rows.append(json.dumps(row, allow_nan=False).encode())  # msgspec writes null for NaN and infinity
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise TaskError(f"task {number} cannot be written as JSON: {error}") from None
        if why := not_whole(row):
            raise TaskError(f"task {number}: {why}")
    path.write_bytes(b"\n".join(rows) + b"\n")


def batch(tasks: Sequence[Task], index: int, size: int, seed: int) -> list[tuple[int, Task]]:
    """Return batch `index` as pairs of row number and task.

    Each pass through the tasks has its own seeded shuffle, in which every task occurs exactly once. This is a pure
    function of its arguments, so that a resumed run continues exactly where it stopped.
    """
    return [(row, tasks[row]) for row in rows_of_batch(len(tasks), index, size, seed)]

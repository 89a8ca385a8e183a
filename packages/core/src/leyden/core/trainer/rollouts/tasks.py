"""Tasks: reads them from files and datasets, writes them as JSON Lines, and draws a run's batches of them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

from leyden.core.data.order import rows_of_batch
from leyden.core.data.plain.values import is_plain, plain
from leyden.core.data.rollout import Task
from leyden.core.errors import TaskError
from leyden.core.runner.user_code.agent_spec import TaskExample
from leyden.core.trainer.rollouts.task_rows import as_row
from leyden.core.trainer.rollouts.task_sources import PlacedTask, csv_file, hugging_face, json_lines, parquet_file

MOST_EXAMPLES = 1000
"""Largest number of forms of tasks that are checked before a run."""


def load_tasks(source: str | Path, most: int | None = None) -> list[Task]:
    """Read the tasks of a file, or of a Hugging Face dataset, at most the first `most`.

    A file whose name ends with `.csv` or `.parquet` is read as such, any other as JSON Lines. `hf:NAME:SPLIT` is a
    dataset. Raises TaskError, with the place of the task, for a row that is no task. Also raises it for a value that a
    store would change, because the agent would then receive another task, and for NaN and infinity.
    """
    tasks: list[Task] = []
    for place, task in islice(_read(str(source)), most):
        if why := not_whole(task):
            raise TaskError(f"{source}, {place}: {why}")
        tasks.append(task)
    if not tasks:
        kind = "" if is_dataset(str(source)) else "task file "
        raise TaskError(f"{kind}{source} has no rows; give at least one task")
    return tasks


def is_dataset(source: str) -> bool:
    """Whether a source of tasks is a Hugging Face dataset."""
    return source.startswith(hugging_face.PREFIX)


def _read(source: str) -> Iterator[PlacedTask]:
    if is_dataset(source):
        return hugging_face.read_hugging_face(source)
    readers = {".csv": csv_file.read_csv, ".parquet": parquet_file.read_parquet}
    return readers.get(Path(source).suffix.lower(), json_lines.read_json_lines)(Path(source))


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
    """Return where the task `row`, counted from 0, of `tasks` was read: source and line or row, or the task's number.

    A text file that has changed since then has no lines for the tasks.
    """
    suffix = Path(source).suffix.lower()
    if is_dataset(source) or suffix == ".parquet":
        return f"{source}, row {row + 1}"
    try:
        places = (csv_file.csv_places if suffix == ".csv" else json_lines.json_places)(Path(source))
    except TaskError:
        places = []
    return f"{source}, {places[row]}" if len(places) == len(tasks) else f"{source}, task {row + 1}"


def given_tasks(tasks: Iterable[object]) -> list[Task]:
    """Return tasks that were given in Python as the rows of JSON that agents receive.

    Raises TaskError, with the number of the task and the key, for a value that JSON does not have or a store would
    change.
    """
    rows: list[Task] = []
    for number, task in enumerate(tasks, 1):
        try:
            row = as_row(task)
        except TaskError as error:
            raise TaskError(f"task {number}: {error}") from None
        if why := not_whole(row):
            raise TaskError(f"task {number}: {why}")
        rows.append(row)
    return rows


def save_tasks(tasks: Iterable[object], path: Path) -> None:
    """Write tasks as JSON Lines. Raises TaskError for a task that `given_tasks` refuses."""
    rows = [json.dumps(row).encode() for row in given_tasks(tasks)]
    path.write_bytes(b"\n".join(rows) + b"\n")


def batch(tasks: Sequence[Task], index: int, size: int, seed: int) -> list[tuple[int, Task]]:
    """Return batch `index` as pairs of row number and task.

    Each pass through the tasks has its own seeded shuffle, in which every task occurs exactly once. This is a pure
    function of its arguments, so that a resumed run continues exactly where it stopped.
    """
    return [(row, tasks[row]) for row in rows_of_batch(len(tasks), index, size, seed)]

"""Datasets: writes a run's tasks as the parquet files that VERL's data loader reads.

VERL samples rows from these files. A row's `extra_info` identifies its task. Agents get the task itself from the run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from leyden.core.data.rollout import Task
from leyden.core.errors import UsageError

TRAIN = "train"
"""`data_source` of training tasks; that of held-out tasks is the name of their set."""


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """The task of a row in a file: its row number, and the name of its held-out set or None."""

    row: int
    held_out: str | None

    @classmethod
    def of(cls, extra_info: Mapping[str, Any]) -> "RowOrigin":
        """Return the origin that is stored in the row's `extra_info`."""
        return cls(int(extra_info["row"]), extra_info["held_out"] or None)


def write_training(path: Path, tasks: Sequence[Task], at_least: int) -> None:
    """Write all training tasks, repeated as a whole until there are `at_least` rows, the number that one step needs.

    Raises UsageError if pyarrow is missing.
    """
    times = max(1, -(-at_least // len(tasks)))
    _write(path, [_row(TRAIN, row, task) for _ in range(times) for row, task in enumerate(tasks)])


def write_held_out(path: Path, held_out: Mapping[str, Sequence[Task]]) -> None:
    """Write the tasks of all held-out sets, one set after another."""
    _write(path, [_row(name, row, task) for name, tasks in held_out.items() for row, task in enumerate(tasks)])


def _row(source: str, row: int, task: Task) -> dict[str, Any]:
    text = task if isinstance(task, str) else json.dumps(task, ensure_ascii=False)
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": text}],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": row, "row": row, "held_out": "" if source == TRAIN else source},
    }


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError(
            "VERL reads its tasks from Parquet files, which needs pyarrow: pip install 'leyden-core[verl]'"
        ) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.Table.from_pylist(rows), path)

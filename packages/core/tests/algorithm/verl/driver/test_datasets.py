"""A run's tasks as VERL's files: each row says which task it is."""

from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from leyden.core.algorithm.verl.driver.datasets import RowOrigin, write_held_out, write_training

TASKS = [{"question": "2 + 2"}, "how much is 2 + 3?"]


def rows(path: Path) -> list[dict[str, Any]]:
    table: Any = pyarrow.parquet
    return table.read_table(path).to_pylist()


@pytest.mark.parametrize(("at_least", "numbers"), [(1, [0, 1]), (2, [0, 1]), (3, [0, 1, 0, 1])])
def test_training_tasks_are_at_least_one_steps(tmp_path: Path, at_least: int, numbers: list[int]) -> None:
    write_training(tmp_path / "new/train.parquet", TASKS, at_least)
    found = rows(tmp_path / "new/train.parquet")
    assert [RowOrigin.of(row["extra_info"]) for row in found] == [RowOrigin(number, None) for number in numbers]
    assert [row["prompt"][0]["content"] for row in found[:2]] == ['{"question": "2 + 2"}', "how much is 2 + 3?"]


def test_held_out_tasks_say_which_set_they_are_of(tmp_path: Path) -> None:
    write_held_out(tmp_path / "held_out.parquet", {"val": TASKS, "other": TASKS[:1]})
    found = [RowOrigin.of(row["extra_info"]) for row in rows(tmp_path / "held_out.parquet")]
    assert found == [RowOrigin(0, "val"), RowOrigin(1, "val"), RowOrigin(0, "other")]

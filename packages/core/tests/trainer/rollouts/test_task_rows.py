import dataclasses
import datetime
import decimal
import enum
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
from pydantic import BaseModel

from leyden.core.errors import TaskError
from leyden.core.trainer.rollouts.task_rows import as_row
from leyden.core.trainer.rollouts.tasks import load_tasks, save_tasks
from leyden.core.trainer.trainer import task_rows


class Question(BaseModel):
    text: str
    due: datetime.date


@dataclasses.dataclass
class Part:
    raw: Any


class Point(msgspec.Struct):
    x: int


class Level(enum.Enum):
    HARD = 3


class Name(str):
    __slots__ = ()


NOON = datetime.datetime(2024, 5, 6, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("given", "received"),
    [
        (Question(text="a", due=datetime.date(2024, 5, 6)), {"text": "a", "due": "2024-05-06"}),
        (Part(Part((1, 2))), {"raw": {"raw": [1, 2]}}),
        ({"a": Point(3), "b": Level.HARD, "c": {3, 1, 2}}, {"a": {"x": 3}, "b": 3, "c": [1, 2, 3]}),
        ({"a": NOON, "b": decimal.Decimal("12.50")}, {"a": "2024-05-06T12:00:00Z", "b": "12.50"}),
        ({Name("a"): Name("b"), "n": numpy.float32(0.5)}, {"a": "b", "n": 0.5}),
        (Name("text"), "text"),
    ],
)
def test_python_values_are_the_same_row_in_every_use(given: Any, received: Any, tmp_path: Path) -> None:
    """`Trainer.dev` takes its rows from `task_rows`, and `Trainer.fit` from the file of a run."""
    save_tasks([given], tmp_path / "t.jsonl")
    (dev,), (fit,) = task_rows([given]), load_tasks(tmp_path / "t.jsonl")
    assert dev == fit == received
    assert type(dev) is type(fit)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"a": [{"raw": b"x"}]}, r"task\.a\[0\]\.raw: JSON has no bytes; give text, such as base64"),
        ({"a": Part(bytearray(b"x"))}, r"task\.a\.raw: JSON has no bytes"),
        ({"a": {1: 2}}, r"task\.a: the key 1 is no text"),
        ({"a": {"b": math.nan}}, r"task\.a\.b: NaN is no number that JSON can hold"),
        ({"a": [-math.inf]}, r"task\.a\[0\]: -Infinity is no number"),
        ({"a": {1, "b"}}, r"task\.a: a set whose members have no order; give a list"),
        (
            {"a": numpy.zeros(2)},
            r"task\.a: JSON has no value for an object of type numpy\.ndarray; give text, or a dict",
        ),
        (3, "a task is an object with at least one key, or a text that is not empty, not a value of type int"),
        ({}, "a task is an object with at least one key"),
    ],
)
def test_what_json_does_not_have_is_refused_with_its_key(given: Any, why: str) -> None:
    with pytest.raises(TaskError, match=f"^{why}"):
        as_row(given)
    with pytest.raises(TaskError, match=f"^task 2: {why}"):
        task_rows(["a", given])


def test_a_row_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TaskError, match="nested too deeply"):
        as_row({"a": endless})

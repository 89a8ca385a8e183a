"""JSON Lines: one task a line, an object or a string."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leyden.core.data.rollout import Task
from leyden.core.errors import TaskError
from leyden.core.trainer.rollouts.task_sources import PlacedTask
from leyden.core.trainer.rollouts.task_sources.text_lines import text_lines


def read_json_lines(file: Path) -> Iterator[PlacedTask]:
    """Yield the tasks of a file; blank lines are skipped.

    Raises TaskError, with the line number, for a line that is not JSON or is neither an object nor a string. Also
    raises it for an object with a duplicate key, of which JSON readers keep only one value, and for NaN and infinity.
    """
    for number, line in enumerate(text_lines(file), 1):
        if line.strip():
            yield PlacedTask(f"line {number}", _row(file, number, line.removesuffix("\n")))


def json_places(file: Path) -> list[str]:
    """Return the place of each task of a file."""
    return [f"line {number}" for number, line in enumerate(text_lines(file), 1) if line.strip()]


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
        advice = "; write one object a line, without a list around them" if isinstance(row, list) else ""
        raise TaskError(
            f"{file}, line {number}: a task is a JSON object with at least one key, or a string that is not empty, "
            f"not {line.strip()[:40]!r}{advice}"
        )
    return row


def _advice(line: str) -> str:
    """Return what to write in place of a line that is not JSON."""
    if line in ("[", "{"):
        return "; write one object a line, without a list around them"
    if line.startswith("{'"):
        return "; write keys and texts in double quotes"
    if line.startswith("PAR1"):
        return "; for a Parquet file, end its name with .parquet"
    if not line.startswith(("{", '"', "[")):
        return '; write one JSON object a line, such as {"question": "..."}, or end the name of a CSV file with .csv'
    return "; write one whole JSON object a line"


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

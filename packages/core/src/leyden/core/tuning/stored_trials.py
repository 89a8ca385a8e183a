"""Trials as the storage of a study holds them, read from a copy: without Optuna, a lock, or a write.

A program that reads an SQLite file in place locks it, which a writer has to wait for. The file is therefore read like
any other, with the journal of a write that was cut off.
"""

import math
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.errors import RunError
from leyden.core.tuning.space import Value
from leyden.core.tuning.trial import DEFAULT, REASON, RUNS, STATES, Trial

STORAGE_FILE = "study.db"
TRIES = 20
PAUSE = 0.05
"""Seconds until the next try, if the file changed while it was read."""
_VALUES = "SELECT trial_id, param_name, param_value, distribution_json FROM trial_params ORDER BY param_id"
_REPORTED = "SELECT trial_id, step, intermediate_value FROM trial_intermediate_values ORDER BY step"
_ATTRIBUTES = "SELECT trial_id, key, value_json FROM trial_user_attributes"
_SCORES = "SELECT trial_id, value FROM trial_values WHERE objective = 0"
_TRIALS = "SELECT trial_id, number, state FROM trials ORDER BY number"


def stored_trials(folder: Path, keys: Sequence[str]) -> list[Trial]:
    """Return the trials of the study in `folder`, by number; none before it has a storage.

    `keys` are those that the study searches. Raises RunError if the storage cannot be read.
    """
    path = folder / STORAGE_FILE
    reason = "it does not stop changing"
    for _ in range(TRIES):
        if not path.exists():
            return []
        try:
            found = _bytes_of(path)
            if found is not None:
                return _trials_in(*found, keys)
        except sqlite3.Error as error:  # a copy of a file that is written in this moment
            reason = str(error)
        time.sleep(PAUSE)
    raise RunError(f"{path} cannot be read: {reason}")


def _bytes_of(path: Path) -> tuple[bytes, bytes] | None:
    """Return the storage, and the journal of a write to it; None if they changed while they were read."""
    journal = path.with_name(f"{path.name}-journal")
    before = [_stamp(one) for one in (path, journal)]
    data, undo = path.read_bytes(), b""
    with suppress(FileNotFoundError):
        undo = journal.read_bytes()
    return (data, undo) if [_stamp(one) for one in (path, journal)] == before else None


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def _trials_in(data: bytes, undo: bytes, keys: Sequence[str]) -> list[Trial]:
    if not undo:
        with closing(sqlite3.connect(":memory:")) as memory:
            memory.deserialize(data)
            return _read(memory, keys)
    with tempfile.TemporaryDirectory(prefix="leyden-study-") as name:
        copy = Path(name) / STORAGE_FILE
        copy.write_bytes(data)
        copy.with_name(f"{STORAGE_FILE}-journal").write_bytes(undo)
        with closing(sqlite3.connect(copy)) as file:
            return _read(file, keys)


def _read(storage: sqlite3.Connection, keys: Sequence[str]) -> list[Trial]:
    values: dict[int, dict[str, Value]] = {}
    for trial, key, number, distribution in storage.execute(_VALUES):
        values.setdefault(trial, {})[key] = _value(number, msgspec.json.decode(distribution))
    attributes: dict[int, dict[str, Any]] = {}
    for trial, key, text in storage.execute(_ATTRIBUTES):
        attributes.setdefault(trial, {})[key] = msgspec.json.decode(text)
    reported: dict[int, dict[int, float]] = {}
    for trial, position, score in storage.execute(_REPORTED):
        if score is not None:
            reported.setdefault(trial, {})[position] = score
    scores = dict(storage.execute(_SCORES).fetchall())
    found: list[Trial] = []
    for trial, number, name in storage.execute(_TRIALS):
        state, own = STATES.get(name, "running"), attributes.get(trial, {})
        score = scores.get(trial)
        if score is None and state == "pruned":
            score = _last(reported.get(trial, {}))
        found.append(
            Trial(
                number=number,
                values={key: values[trial][key] for key in keys if key in values.get(trial, {})},
                state=state,
                score=score,
                reported=reported.get(trial, {}),
                is_default=bool(own.get(DEFAULT, False)),
                runs=tuple(own.get(RUNS, ())),
                reason=own.get(REASON),
            )
        )
    return found


def _last(reported: dict[int, float]) -> float | None:
    """Return the last score that a trial reported, which is the score of a stopped one."""
    if not reported:
        return None
    score = reported[max(reported)]
    return score if math.isfinite(score) else None


def _value(number: float, distribution: dict[str, Any]) -> Value:
    """Return the value that a number stands for: itself, or the number of a choice."""
    if "choices" in distribution["attributes"]:
        choice: Value = distribution["attributes"]["choices"][int(number)]
        return choice
    return int(number) if distribution["name"] == "IntDistribution" else float(number)

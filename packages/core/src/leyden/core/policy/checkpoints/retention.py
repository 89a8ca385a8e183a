"""Retention: the checkpoint folders of a run by step, how they are written, and which are removed to make room.

A folder is called `step-00000012`, and `.2`, `.3` follow if the same step was saved again. It is complete once it holds
`progress.json`.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leyden.core.errors import RunError, TrainingError
from leyden.core.policy.checkpoints.atomic import remove_unfinished, whole_folder

PROGRESS, MARK = "progress.json", "KEEP"
_NAME = re.compile(r"step-(\d{8})(?:\.(\d+))?")


def mark_checkpoint(path: Path) -> None:
    """Mark this checkpoint, so that it is never removed to make room for later ones."""
    (path / MARK).touch()


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint of the highest step, the last one saved if there are several; None without one."""
    found = _checkpoints(folder)
    return found[-1] if found else None


def step_of(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was saved, by its name."""
    return _order(checkpoint)[0]


def write_checkpoint(
    folder: Path,
    step: int,
    progress: str,
    keep: int,
    *,
    mark: bool = False,
    write_state: Callable[[Path], None] | None = None,
) -> Path:
    """Write a checkpoint of `step` and return its folder; `write_state` writes the state of the policies into it.

    `progress` is JSON. Of the checkpoints in `folder` that are not marked, the `keep` latest are kept. Raises
    TrainingError if it cannot be written.
    """
    target = unused_folder(folder, step)
    try:
        with whole_folder(target) as pending:
            if write_state is not None:
                write_state(pending)
            (pending / PROGRESS).write_text(progress, encoding="utf-8")
            if mark:
                (pending / MARK).touch()
    except Exception as error:  # the libraries raise errors of different types for a full disk
        raise TrainingError(f"the checkpoint {target} could not be written: {error}") from error
    remove_old(folder, keep)
    return target


def read_progress(checkpoint: Path) -> dict[str, Any]:
    """Return the progress that a checkpoint holds; raises RunError if it cannot be read."""
    try:
        return json.loads((checkpoint / PROGRESS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"checkpoint {checkpoint} cannot be read: {error}") from error


def unused_folder(folder: Path, step: int) -> Path:
    """Return the path of a new checkpoint of `step`."""
    name = f"step-{step:08d}"
    times = [_order(path)[1] for path in _checkpoints(folder) if _order(path)[0] == step]
    return folder / (f"{name}.{max(times) + 1}" if times else name)


def remove_old(folder: Path, keep: int) -> None:
    """Remove checkpoints that are not marked, except the `keep` latest, and what killed processes left unfinished."""
    remove_unfinished(folder)
    unmarked = [path for path in _checkpoints(folder) if not (path / MARK).exists()]
    for path in unmarked[: -max(1, keep)]:
        # The file that marks it complete is removed first: an interrupted removal leaves no valid checkpoint.
        (path / PROGRESS).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def _checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    whole = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and (path / PROGRESS).is_file()]
    return sorted(whole, key=_order)


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 1)) if match else (-1, -1)

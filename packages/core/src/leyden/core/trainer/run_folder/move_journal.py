"""Move journal: moves files of a run all together or not at all, even if the process is killed.

The list of moves is a file in the folder that the moves go to. The rename that creates this folder decides: before it
nothing has happened; after it, the next process that opens the run completes the moves.
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from leyden.core.policy.checkpoints.atomic import remove_unfinished, sync

SET_ASIDE = "set_aside"
LIST = "moves.json"
NEW = "new"
"""Subfolder for replacement files, which the moves put in place of files of the run."""

Move = tuple[str, str]
"""Source and target of a move, relative to the run's folder. An existing target file is replaced."""


def plan_moves(pending: Path, moves: Sequence[Move]) -> None:
    """Write `moves` into the folder `pending`, which will be renamed to a folder below `SET_ASIDE`.

    Moves whose source does not exist are skipped when the moves are made.
    """
    (pending / LIST).write_text(json.dumps(moves), encoding="utf-8")


def is_under_way(run: Path) -> bool:
    """Whether the folder `run` has decided moves that are not complete."""
    return any(run.glob(f"{SET_ASIDE}/[!.]*/{LIST}"))


def end_moves(run: Path) -> None:
    """Complete the decided moves. The caller must have locked the folder for this process."""
    remove_unfinished(run / SET_ASIDE)
    for file in sorted(run.glob(f"{SET_ASIDE}/[!.]*/{LIST}")):
        moves: list[list[str]] = json.loads(file.read_text(encoding="utf-8"))
        for source, target in moves:
            if (run / source).exists():
                os.replace(run / source, run / target)
        for folder in sorted({(run / path).parent for move in moves for path in move}):
            if folder.exists():
                sync(folder)
        shutil.rmtree(file.with_name(NEW), ignore_errors=True)
        file.unlink()
        sync(file.parent)  # a list that came back after a crash would move files the run has made since

"""Moves of a run's files that all happen or none, even when the process is killed. Knows nothing of what they mean.

The list of moves lies in the folder that they move things into, and the rename that makes that folder appear decides:
before it nothing has happened, after it everything has, since whoever opens the run next ends what was begun.
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
"""What takes the place of files of the run, in the folder of the moves until it does."""

Move = tuple[str, str]
"""From where to where, both relative to the run's folder; a file that is there makes way."""


def plan_moves(pending: Path, moves: Sequence[Move]) -> None:
    """Write `moves` into a folder that is to appear below `SET_ASIDE`; those of what is not there are left out then."""
    (pending / LIST).write_text(json.dumps(moves), encoding="utf-8")


def is_under_way(run: Path) -> bool:
    """Whether moves were decided in the folder `run` that have not all been made."""
    return any(run.glob(f"{SET_ASIDE}/[!.]*/{LIST}"))


def end_moves(run: Path) -> None:
    """Make the moves that were decided and not made; the folder must be locked for this process."""
    remove_unfinished(run / SET_ASIDE)
    for file in sorted(run.glob(f"{SET_ASIDE}/[!.]*/{LIST}")):
        moves: list[list[str]] = json.loads(file.read_text(encoding="utf-8"))
        for source, target in moves:
            if (run / source).exists():
                os.replace(run / source, run / target)
        for folder in sorted({(run / place).parent for move in moves for place in move}):
            if folder.exists():
                sync(folder)
        shutil.rmtree(file.with_name(NEW), ignore_errors=True)
        file.unlink()
        sync(file.parent)  # or a list that came back would move what the run has made since

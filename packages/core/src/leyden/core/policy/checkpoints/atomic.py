"""Folders that exist whole or not at all, even when the machine stops while one is written.

What is being written is locked by its process for as long as that lives, so that leftovers are told from work.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

_PENDING = ".writing-"


@contextmanager
def whole_folder(target: Path, *, private: bool = False) -> Generator[Path]:
    """Yield an empty folder beside `target` to write into; it becomes `target` when the block ends without an error.

    Everything is on the disk before the rename. `private`: no other user can open the folder. Raises FileExistsError,
    at once, when `target` is there already.
    """
    if target.exists():
        raise FileExistsError(f"{target} is there already")
    with _held(f"{_PENDING}{target.name}-", target.parent) as pending:
        yield pending
        pending.chmod(0o700 if private else 0o755)
        for path in (*pending.rglob("*"), pending):
            sync(path)
        pending.rename(target)
        sync(target.parent)


@contextmanager
def replaced_folder(target: Path) -> Generator[Path]:
    """Like `whole_folder`, but an older `target` makes way at the end; between two renames there is none."""
    with _held(f"{_PENDING}old-", target.parent) as aside:
        with whole_folder(aside / target.name) as fresh:
            yield fresh
        if target.exists():
            target.rename(aside / "old")
        (aside / target.name).rename(target)
        sync(target.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left half written in `folder`, and nothing that is being written."""
    for path in folder.glob(f"{_PENDING}*"):
        with suppress(OSError), closing(_Lock(path)):
            shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """Have a file, or what a folder lists, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _held(prefix: str, parent: Path) -> Generator[Path]:
    """Yield a new, empty folder that others leave alone; it is removed at the end if it is still there."""
    parent.mkdir(parents=True, exist_ok=True)
    pending = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    with ExitStack() as held:
        held.callback(shutil.rmtree, pending, ignore_errors=True)
        with suppress(OSError):  # where folders cannot be locked, none is taken for a leftover either
            held.enter_context(closing(_Lock(pending)))
        yield pending


class _Lock:
    """Holds a folder until it is closed or the process ends; OSError where another one, or this one already, does."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Let go."""
        os.close(self._descriptor)

"""Atomic files and folders: they exist completely or not at all, even if the machine stops during a write.

The writing process of a folder locks an unfinished folder as long as it lives, so that leftovers can be recognised.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

PENDING = ".writing-"
"""Beginning of the names of unfinished folders."""


@contextmanager
def whole_folder(target: Path, *, private: bool = False) -> Generator[Path]:
    """Yield an empty folder beside `target` to write into; it becomes `target` if the block ends without an error.

    Everything is synced to disk before the rename. With `private`, no other user can open the folder. Raises
    FileExistsError at once if `target` exists.
    """
    if target.exists():
        raise FileExistsError(f"{target} already exists")
    with _locked_folder(f"{PENDING}{target.name}-", target.parent) as pending:
        yield pending
        pending.chmod(0o700 if private else 0o755)
        for path in (*pending.rglob("*"), pending):
            sync(path)
        pending.rename(target)
        sync(target.parent)


@contextmanager
def replaced_folder(target: Path) -> Generator[Path]:
    """Like `whole_folder`, but replaces an existing `target`; between two renames there is none."""
    with _locked_folder(f"{PENDING}old-", target.parent) as old_folder:
        with whole_folder(old_folder / target.name) as fresh:
            yield fresh
        if target.exists():
            target.rename(old_folder / "old")
        (old_folder / target.name).rename(target)
        sync(target.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove unfinished folders of killed processes from `folder`, but none that is being written."""
    for path in folder.glob(f"{PENDING}*"):
        with suppress(OSError), closing(_Lock(path)):
            shutil.rmtree(path, ignore_errors=True)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in the place of an earlier one, if there is one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def sync(path: Path) -> None:
    """Sync a file, or the listing of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked_folder(prefix: str, parent: Path) -> Generator[Path]:
    """Yield a new, empty, locked folder; it is removed at the end if it still exists."""
    parent.mkdir(parents=True, exist_ok=True)
    pending = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, pending, ignore_errors=True)
        with suppress(OSError):  # if folders cannot be locked, `remove_unfinished` removes none
            stack.enter_context(closing(_Lock(pending)))
        yield pending


class _Lock:
    """Lock on a folder until it is closed or the process ends; OSError if the folder is already locked."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

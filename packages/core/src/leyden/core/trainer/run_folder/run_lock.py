"""Lock of a run: one process at a time trains it or changes its folder. The lock's file names that process."""

import fcntl
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from leyden.core.errors import RunError

LOCK = "run.lock"


class Holder(msgspec.Struct, frozen=True):
    """The process that holds a run's lock."""

    pid: int
    host: str
    """Name of its machine."""

    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.host == socket.gethostname()


@contextmanager
def run_lock(folder: Path) -> Generator[None]:
    """Context manager: locks the run in `folder` for this process; raises RunError if another process has it."""
    handle = (folder / LOCK).open("a+")  # not "w", which would erase the name of the process that has the lock
    if not _lock(handle):
        handle.close()
        raise RunError(f"run {folder.name!r} is being trained by another process")
    try:
        handle.truncate(0)
        handle.write(msgspec.json.encode(Holder(os.getpid(), socket.gethostname())).decode())
        handle.flush()
        yield
    finally:
        handle.close()


def is_locked(folder: Path) -> bool:
    """Whether a process has the lock."""
    return is_file_locked(folder / LOCK)


def is_file_locked(path: Path) -> bool:
    """Whether a process has locked a file, which need not exist."""
    if not path.exists():
        return False
    with path.open("r") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def lock_holder(folder: Path) -> Holder | None:
    """Return the process that has the lock; None if none has it, or if an older version of Leyden does."""
    return last_holder(folder) if is_locked(folder) else None


def last_holder(folder: Path) -> Holder | None:
    """Return the process that has or had the lock; None if none ever had it, or only an older version of Leyden."""
    try:
        return msgspec.json.decode((folder / LOCK).read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return None


def _lock(handle: IO[str]) -> bool:
    """Lock a file for this process and return whether that worked.

    Retries twice, because commands that only read the run hold the lock for a moment.
    """
    for pause in (0.02, 0.1, None):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if pause is not None:
                time.sleep(pause)
        else:
            return True
    return False

"""`locked`: lets one process at a time run a block; for short blocks that read and write small files."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold the lock of the file at `path` inside the block; the lock of a process that dies is free."""
    import fcntl  # Windows has no such module, and a gateway there has one process

    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""Snapshot: the files of a run's folder as they are at one moment, while the run goes on."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from leyden.core.policy.checkpoints.atomic import PENDING

PART = 1 << 20
"""Bytes that are read at once."""
STAMP = "artifacts_stamp"
"""File with the stamp of the artifacts that this folder was written to, or read from, last.

While artifacts are written, and after a process that was killed then, it has the stamps of before and after.
"""
LOCAL = ("store.db", "store.db-wal", "store.db-shm", "run.lock", STAMP)
"""Files of a run's folder that belong to one machine."""


class SnapshotFile:
    """A file as it was at one moment. What is appended later does not belong to it."""

    def __init__(self, path: Path, size: int, modified: int) -> None:
        self.path, self.size, self.modified = path, size, modified

    def parts(self) -> Iterator[bytes]:
        """Yield its content."""
        left = self.size
        with self.path.open("rb") as file:
            while left and (part := file.read(min(PART, left))):
                left -= len(part)
                yield part
        if left:
            raise OSError(f"{self.path.name} became shorter while it was read")

    def sha256(self) -> str:
        """Return the SHA-256 of its content."""
        digest = hashlib.sha256()
        for part in self.parts():
            digest.update(part)
        return digest.hexdigest()


@contextmanager
def snapshot(folder: Path) -> Generator[dict[str, SnapshotFile]]:
    """Yield the files of a run's folder as they are now, by path, without unfinished ones.

    Files are linked, not copied: the run replaces files or appends to them, and removes checkpoints.
    """
    pending = Path(tempfile.mkdtemp(prefix=f"{PENDING}artifacts-", dir=folder))
    try:
        found: dict[str, SnapshotFile] = {}
        for path in _files(folder):
            inside = path.relative_to(folder)
            link = pending / str(len(found))
            try:
                try:
                    os.link(path, link)
                except PermissionError:  # a file system without hard links
                    shutil.copy2(path, link)
                state = link.stat()
            except FileNotFoundError:  # it has been removed since the folder was listed
                continue
            found[inside.as_posix()] = SnapshotFile(link, state.st_size, state.st_mtime_ns)
        yield found
    finally:
        shutil.rmtree(pending, ignore_errors=True)


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(PENDING))
        is_top = Path(parent) == folder
        for name in sorted(files):
            path = Path(parent) / name
            if (
                not name.endswith(".tmp")
                and not (is_top and name in LOCAL)
                and path.is_file()
                and not path.is_symlink()
            ):
                yield path

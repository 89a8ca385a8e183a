"""Metrics of a run while it is written: the lines of `metrics.jsonl`, read as the file grows."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leyden.core.trainer.run_folder.folder import decoded_metrics

Line = dict[str, Any]


@dataclass(slots=True)
class MetricsLines:
    """Lines of a run's metrics. Another `generation` means that earlier lines have changed, as by a rollback."""

    lines: list[Line] = field(default_factory=list[Line])
    generation: str = ""


class MetricsFile:
    """Reader of a growing file of JSON lines; a line that a crash cut off is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._inode = 0
        self._rewritten = 0
        self._found = MetricsLines()

    def lines(self) -> MetricsLines:
        """Return all complete lines, and the file's generation."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._forget()
            return self._found
        if status.st_ino != self._inode or status.st_size < self._read:
            self._forget()
            self._inode = status.st_ino
        if status.st_size > self._read:
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            self._found.lines += [line for raw in whole.split(b"\n") if (line := decoded_metrics(raw)) is not None]
        return self._found

    def _forget(self) -> None:
        self._read, self._inode = 0, 0
        self._rewritten += 1
        self._found = MetricsLines(generation=str(self._rewritten))

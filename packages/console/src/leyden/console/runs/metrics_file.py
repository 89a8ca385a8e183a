"""Metrics of a run while it is written: the lines of `metrics.jsonl`, read as the file grows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

from leyden.core.trainer.run_folder.folder import decoded_metrics

Line = dict[str, Any]


@dataclass(slots=True)
class MetricsLines:
    """Lines of a run's metrics. Another `generation` means that earlier lines have changed, as by a rollback."""

    lines: list[Line] = field(default_factory=list[Line])
    generation: str = ""
    damage: str = ""
    """The first line that cannot be read and is left out; empty without one."""


class MetricsFile:
    """Reader of a growing file of JSON lines; a line that a crash cut off is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._inode = 0
        self._whole = 0
        """Number of complete lines that have been read."""
        self._found = MetricsLines(generation=token_hex(4))

    def lines(self) -> MetricsLines:
        """Return all complete lines, and the file's generation."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            if self._inode:
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
            if newline:
                self._add(whole.split(b"\n"))
        return self._found

    def _add(self, lines: Sequence[bytes]) -> None:
        for raw in lines:
            self._whole += 1
            if (line := decoded_metrics(raw)) is not None:
                self._found.lines.append(line)
            elif raw and not self._found.damage:
                why = "it is no JSON object with a step"
                self._found.damage = f"{self._path}, line {self._whole} cannot be read: {why}"

    def _forget(self) -> None:
        self._read, self._inode, self._whole = 0, 0, 0
        self._found = MetricsLines(generation=token_hex(4))


def number(value: Any) -> float | None:
    """Return a number of a line; None for anything else, as in a file that was edited."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)

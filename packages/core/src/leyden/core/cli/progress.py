"""Progress of a long command on standard error: a bar for a person, JSON lines for a program."""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from leyden.core.data.encoding.json_line import json_line

PROGRESS = "LEYDEN_PROGRESS"
"""Environment variable: with `json`, progress is one JSON line for each finished part of the work."""
Progress = Callable[[int, int], None]
"""Function that receives the number of finished parts, and of all."""


@contextmanager
def progress(what: str, *, total: int | None = None, quiet: bool = False) -> Generator[Progress]:
    """Context manager: gives a function that reports the progress of `what`.

    A bar is shown on a terminal, unless `quiet`.
    """
    if os.environ.get(PROGRESS) == "json":
        yield _print_line
    elif quiet or not sys.stderr.isatty():
        yield lambda done, total: None
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
            bar = bars.add_task(what, total=total)
            yield lambda done, total: bars.update(bar, completed=done, total=total)


def _print_line(done: int, total: int) -> None:
    sys.stderr.write(json_line({"progress": {"done": done, "total": total}}))
    sys.stderr.flush()

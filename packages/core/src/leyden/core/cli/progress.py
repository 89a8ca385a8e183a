"""Progress of a long command on standard error: a bar for a person, JSON lines for a program."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from leyden.core.data.encoding.json_line import json_line

PROGRESS = "LEYDEN_PROGRESS"
"""Environment variable: with `json`, progress is one JSON line for each finished part of the work."""


class Progress(Protocol):
    """Function that reports progress."""

    def __call__(self, done: int, total: int, phase: str = "", /) -> None:
        """Receive the number of finished parts, and of all; in work of several phases, those of the named phase."""


@contextmanager
def progress(what: str, *, total: int | None = None, quiet: bool = False) -> Generator[Progress]:
    """Context manager: gives a function that reports the progress of `what`.

    A bar is shown on a terminal, unless `quiet`.
    """
    if os.environ.get(PROGRESS) == "json":
        yield _print_line
    elif quiet or not sys.stderr.isatty():
        yield lambda done, total, phase="": None
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
            bar, shown = bars.add_task(what, total=total), ""

            def show(done: int, total: int, phase: str = "", /) -> None:
                nonlocal shown
                if phase != shown:  # the time that remains is that of the phase
                    bars.reset(bar, description=f"{what}, {phase}")
                    shown = phase
                bars.update(bar, completed=done, total=total)

            yield show


def _print_line(done: int, total: int, phase: str = "", /) -> None:
    named = {"phase": phase} if phase else {}
    sys.stderr.write(json_line({"progress": {"done": done, "total": total, **named}}))
    sys.stderr.flush()

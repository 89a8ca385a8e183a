"""Progress of an experiment: which runs are under way, at which step, and when the last one is expected to end."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from leyden.core.experiments.plan import Job
from leyden.core.experiments.record import ENDED, State
from leyden.core.masking import printable
from leyden.core.trainer.run_folder.folder import RunFolder

if TYPE_CHECKING:
    from rich.progress import TaskID

Pruned = Literal["pruned"]
"""How a run ended that a search for settings stopped early."""
Count = Callable[[int, int], None]
"""Function that receives the number of ended runs, and of all, whenever one of them changes."""
USUAL_STEPS = 25
"""Steps of a run whose settings give no number."""


class Progress:
    """Progress as plain lines, one for each begin and end; also what the other kinds of progress count."""

    def __init__(
        self,
        total: int,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
        count: Count | None = None,
    ) -> None:
        self._total, self._quiet, self._clock, self._count = total, quiet, clock, count
        self._began = clock()
        self._done = self._made = 0
        self._shares: dict[str, float] = {}

    def start(self) -> None:
        """Start the display."""
        self._report()

    def stop(self) -> None:
        """End the display."""

    def show(self, text: str) -> None:
        """Show one line."""
        if not self._quiet:
            sys.stderr.write(f"{printable(text)}\n")
            sys.stderr.flush()

    def begin(self, job: Job, *, resumes: bool) -> None:
        """Show that a job begins."""
        self._shares[job.name] = 0.0
        self.show(f"{job.label}: {'resumed' if resumes else 'started'} ({self._done} of {self._total} done)")

    def advance(self, job: Job) -> None:
        """Take notice of the steps that a running job has taken."""
        step, steps = steps_of(job)
        self._shares[job.name] = min(1.0, step / steps) if steps else 0.0

    def end(self, job: Job, state: State | Pruned, error: str | None, *, was_there: bool) -> None:
        """Show how a job ended; with `was_there`, it had ended before this command."""
        self._shares.pop(job.name, None)
        self._done += 1
        self._made += not was_there
        self._report()
        if was_there:
            self.show(f"{job.label}: {state}, made before")
            return
        reason = "" if error is None or state in ENDED else f": {error}"
        self.show(f"{job.label}: {state}{reason} ({self._done} of {self._total} done{self._end_text()})")

    def leave_out(self, count: int) -> None:
        """Count jobs that will not be run."""
        self._total -= count
        self._report()

    def _report(self) -> None:
        if self._count is not None:
            self._count(self._done, self._total)

    def seconds_left(self) -> float | None:
        """Return the expected time until all jobs have ended; None before anything can be said."""
        taken = self._made + sum(self._shares.values())
        left = self._total - self._done - sum(self._shares.values())
        return None if taken < 0.05 else (self._clock() - self._began) * left / taken

    def _end_text(self) -> str:
        left = self.seconds_left()
        if left is None or not left:
            return ""
        end = time.strftime("%H:%M", time.localtime(time.time() + left))
        return f", about {max(1, round(left / 60)):,} min left, until {end}"


class ProgressBars(Progress):
    """Progress on a terminal: a bar for the whole, one for each running job, and lines above them."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic, count: Count | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        super().__init__(total, clock=clock, count=count)
        self._console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._console,
        )
        self._whole = self._bars.add_task("runs", total=total, note="")
        self._of: dict[str, TaskID] = {}

    def start(self) -> None:
        """Show the bars."""
        super().start()
        self._bars.start()

    def stop(self) -> None:
        """Remove the bars."""
        for task in self._of.values():
            self._bars.remove_task(task)
        self._of.clear()
        self._bars.stop()

    def show(self, text: str) -> None:
        """Print a line above the bars."""
        self._console.print(printable(text), highlight=False, markup=False, emoji=False)

    def begin(self, job: Job, *, resumes: bool) -> None:
        """Add the job's bar."""
        super().begin(job, resumes=resumes)
        self._of[job.name] = self._bars.add_task(job.label, total=steps_of(job)[1] or None, note="")

    def advance(self, job: Job) -> None:
        """Move the job's bar."""
        super().advance(job)
        self._bars.update(self._of[job.name], completed=steps_of(job)[0])
        self._bars.update(self._whole, note=self._end_text().removeprefix(", "))

    def end(self, job: Job, state: State | Pruned, error: str | None, *, was_there: bool) -> None:
        """Remove the job's bar, and move that of the whole."""
        super().end(job, state, error, was_there=was_there)
        self._bars.update(self._whole, total=self._total)
        if (task := self._of.pop(job.name, None)) is not None:
            self._bars.remove_task(task)
        self._bars.update(self._whole, completed=self._done)


def steps_of(job: Job) -> tuple[int, int]:
    """Return how many steps a job has taken, and how many it will take; (0, 0) for a command."""
    if job.settings is None:
        return 0, 0
    run, steps = RunFolder(job.folder), int(job.settings.get("steps", USUAL_STEPS))
    lines: list[dict[str, Any]] = run.metrics() if run.metrics_file.exists() else []
    return max((int(line.get("step", 0)) for line in lines), default=0), steps


def make_progress(total: int, *, quiet: bool, count: Count | None = None) -> Progress:
    """Return bars on a terminal, else lines, or nothing if `quiet`."""
    if quiet or not sys.stderr.isatty():
        return Progress(total, quiet=quiet, count=count)
    return ProgressBars(total, count=count)

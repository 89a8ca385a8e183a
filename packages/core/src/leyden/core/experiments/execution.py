"""Execution of an experiment's jobs: one process each, several at once, each after those that it needs."""

import contextlib
import signal
import time
from collections.abc import Generator, Sequence

from leyden.core.errors import UsageError
from leyden.core.experiments.plan import Job
from leyden.core.experiments.processes import Processes
from leyden.core.experiments.progress import Progress
from leyden.core.experiments.record import ENDED, Records, State
from leyden.core.trainer.run_folder.folder import RunFolder

PAUSE = 0.3


def check_unchanged(records: Records, jobs: Sequence[Job]) -> None:
    """Raise UsageError, with one line, if what a job has made was made with other settings or files."""
    for job in jobs:
        change = records.change(job)
        if change is not None and _is_made(records, job):
            raise UsageError(
                f"{job.folder} was made with other settings: {change}; to make it again, remove this folder, or give "
                "another --runs"
            )


def _is_made(records: Records, job: Job) -> bool:
    """Whether a job has made something that a new start would replace."""
    if job.settings is not None:
        return job.folder.exists() and RunFolder(job.folder).failure() is None
    record = records.read(job)
    return job.folder.exists() and record is not None and record.last is not None and record.last.exit_code == 0


class Execution:
    """Runs jobs until each has ended or cannot start. What has already ended is not run again."""

    def __init__(self, records: Records, jobs: Sequence[Job], progress: Progress, *, at_once: int = 1) -> None:
        self._records, self._jobs, self._progress, self._at_once = records, jobs, progress, at_once
        self._processes = Processes(records)
        self._ended: dict[str, State] = {}
        self._announced: set[str] = set()

    def run(self) -> dict[str, State]:
        """Run the jobs, and return the state in which each ended.

        On KeyboardInterrupt the running processes are stopped; they continue from their checkpoints when the experiment
        is run again.
        """
        waiting: list[Job] = []
        for job in self._jobs:
            if (state := self._records.state(job)) in ENDED:
                self._end(job, state, was_there=True)
            else:
                waiting.append(job)
        try:
            with sigterm_interrupts():
                while waiting or len(self._processes):
                    waiting = [job for job in waiting if not self._begin(job)]
                    self._poll()
                    time.sleep(PAUSE)
        except BaseException:
            self._processes.stop()
            raise
        return self._ended

    def _begin(self, job: Job) -> bool:
        """Start a job if it can start now, or end it if it never can; return whether it no longer waits."""
        if failed := [name for name in job.needs if self._ended.get(name, "finished") not in ENDED]:
            self._processes.note(job, f"it needs {failed[0]}, which failed")
            self._end(job, "failed")
            return True
        if not all(name in self._ended for name in job.needs) or len(self._processes) >= self._at_once:
            return False
        if self._is_in_use(job):
            return False
        if (state := self._records.state(job)) in ENDED:  # another process has just ended it
            self._end(job, state, was_there=True)
            return True
        resumes = self._processes.resumes(job)
        if self._processes.start(job):
            self._progress.begin(job, resumes=resumes)
        else:
            self._end(job, "failed")
        return True

    def _is_in_use(self, job: Job) -> bool:
        if not is_in_use(job):
            return False
        if job.name not in self._announced:
            self._announced.add(job.name)
            self._progress.show(f"{job.label}: another process trains it; waiting for its end")
        return True

    def _poll(self) -> None:
        for job, state in self._processes.ended():
            self._end(job, state)
        for job in self._processes.jobs:
            self._progress.advance(job)

    def _end(self, job: Job, state: State, *, was_there: bool = False) -> None:
        self._ended[job.name] = state
        self._progress.end(job, state, self._processes.error(job), was_there=was_there)


def is_in_use(job: Job) -> bool:
    """Whether another process trains the run of a job."""
    return job.settings is not None and job.folder.exists() and RunFolder(job.folder).is_in_use()


@contextlib.contextmanager
def sigterm_interrupts() -> Generator[None]:
    """Context manager: SIGTERM raises KeyboardInterrupt, so that no process is left behind."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

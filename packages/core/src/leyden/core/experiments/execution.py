"""Execution of an experiment's jobs: one process each, several at once, each after those that it needs."""

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from leyden.core.errors import UsageError
from leyden.core.experiments.plan import Job
from leyden.core.experiments.progress import Progress
from leyden.core.experiments.provenance import leyden_version, load
from leyden.core.experiments.record import ENDED, Records, Session, State
from leyden.core.trainer.run_folder.folder import RunFolder

SECONDS_TO_STOP = 60.0
"""Time that a run has to end after SIGTERM; it is killed then."""
PAUSE = 0.3
_ERROR = re.compile(r"^(?:leyden|[\w.]*Error): .*", re.MULTILINE)
MOST_CHARACTERS = 500
LOG_TAIL = 65_536


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


def _is_empty(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


@dataclass(slots=True)
class _Running:
    job: Job
    process: "subprocess.Popen[bytes]"
    log: IO[bytes]
    began_at: int
    """Size of the log when the process began."""


class Execution:
    """Runs jobs until each has ended or cannot start. What has already ended is not run again."""

    def __init__(self, records: Records, jobs: Sequence[Job], progress: Progress, *, at_once: int = 1) -> None:
        self._records, self._jobs, self._progress, self._at_once = records, jobs, progress, at_once
        self._running: list[_Running] = []
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
            with _sigterm_interrupts():
                while waiting or self._running:
                    waiting = [job for job in waiting if not self._begin(job)]
                    self._poll()
                    time.sleep(PAUSE)
        except BaseException:
            self._stop()
            raise
        return self._ended

    def _begin(self, job: Job) -> bool:
        """Start a job if it can start now, or end it if it never can; return whether it no longer waits."""
        if failed := [name for name in job.needs if self._ended.get(name, "finished") not in ENDED]:
            self._note(job, f"it needs {failed[0]}, which failed")
            self._end(job, "failed")
            return True
        if not all(name in self._ended for name in job.needs) or len(self._running) >= self._at_once:
            return False
        if self._is_in_use(job):
            return False
        if (state := self._records.state(job)) in ENDED:  # another process has just ended it
            self._end(job, state, was_there=True)
            return True
        self._start(job)
        return True

    def _is_in_use(self, job: Job) -> bool:
        if job.settings is None or not job.folder.exists() or not RunFolder(job.folder).is_in_use():
            return False
        if job.name not in self._announced:
            self._announced.add(job.name)
            self._progress.show(f"{job.label}: another process trains it; waiting for its end")
        return True

    def _start(self, job: Job) -> None:
        run = RunFolder(job.folder)
        resumes = job.settings is not None and run.config_file.exists() and run.failure() is None
        if job.settings is not None:
            file = self._records.write_settings(job)
            what = ["--resume", job.name] if resumes else ["--config", str(file)]
            given = ["train", *what, "--runs", str(job.folder.parent), "--quiet"]
            shown, command = ["leyden", *given], [sys.executable, "-m", "leyden.core.cli", *given]
        else:
            shutil.rmtree(job.folder, ignore_errors=True)
            job.folder.mkdir(parents=True)
            shown = command = list(job.command)
        record = self._records.read(job) if resumes else None
        record = record or self._records.new(job)
        record.sessions.append(Session(command=shown, leyden=leyden_version(), began=time.time(), load_before=load()))
        self._records.write(job, record)
        log = self._records.log_file(job).open("ab")
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        except OSError as error:
            log.write(f"leyden: {command[0]} cannot be started: {error.strerror}\n".encode())
            log.close()
            self._close(job, 127, f"{command[0]} cannot be started: {error.strerror}")
            self._end(job, "failed")
            return
        self._running.append(_Running(job, process, log, log.tell()))
        self._progress.begin(job, resumes=resumes)

    def _poll(self) -> None:
        for one in list(self._running):
            code = one.process.poll()
            if code is None:
                self._progress.advance(one.job)
                continue
            self._running.remove(one)
            one.log.close()
            if code == 0 and one.job.settings is None and _is_empty(one.job.folder):
                self._close(one.job, 1, f"the command wrote nothing into {one.job.folder}")
            else:
                self._close(one.job, code, None if code == 0 else self._error(one, code))
            state = self._records.state(one.job)
            if state == "unfinished":  # killed by something else than this command
                state = "failed"
            self._end(one.job, state)

    def _error(self, one: _Running, code: int) -> str:
        """Return the error that a process printed last, as one line."""
        path = self._records.log_file(one.job)
        with path.open("rb") as file:
            file.seek(max(one.began_at, path.stat().st_size - LOG_TAIL))
            text = file.read().decode(errors="replace")
        found = [match.start() for match in _ERROR.finditer(text)]
        last = " ".join(text[found[-1] :].split()).removeprefix("leyden: ") if found else ""
        if not last:
            last = f"killed by signal {-code}" if code < 0 else f"exit code {code}, see {path}"
        return last if len(last) <= MOST_CHARACTERS else f"{last[:MOST_CHARACTERS]}…"

    def _close(self, job: Job, code: int | None, error: str | None) -> None:
        record = self._records.read(job)
        assert record is not None and record.last is not None
        session = record.last
        session.ended, session.load_after, session.exit_code, session.error = time.time(), load(), code, error
        self._records.write(job, record)

    def _note(self, job: Job, error: str) -> None:
        """Record why a job could not start."""
        record = self._records.new(job)
        now = time.time()
        record.sessions.append(
            Session(
                command=[], leyden=leyden_version(), began=now, ended=now, load_before=load(), exit_code=1, error=error
            )
        )
        self._records.write(job, record)

    def _end(self, job: Job, state: State, *, was_there: bool = False) -> None:
        self._ended[job.name] = state
        record = self._records.read(job)
        error = None if record is None or record.last is None else record.last.error
        self._progress.end(job, state, error, was_there=was_there)

    def _stop(self) -> None:
        """Stop all processes with SIGTERM; kill those that do not end.

        They would ignore SIGINT if a shell had started this command in the background.
        """
        for one in self._running:
            with contextlib.suppress(ProcessLookupError):
                one.process.terminate()
        deadline = time.monotonic() + SECONDS_TO_STOP
        for one in self._running:
            try:
                one.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
            one.log.close()
            self._close(one.job, None, None)


@contextlib.contextmanager
def _sigterm_interrupts() -> Generator[None]:
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

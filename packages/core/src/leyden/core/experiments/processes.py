"""Processes of jobs: starts each as `leyden train` or as its command, records its sessions, and stops it."""

import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from leyden.core.experiments.plan import Job
from leyden.core.experiments.provenance import leyden_version, load
from leyden.core.experiments.record import Records, Session, State
from leyden.core.trainer.run_folder.folder import RunFolder

SECONDS_TO_STOP = 60.0
"""Time that a run has to end after SIGTERM; it is killed then."""
_ERROR = re.compile(r"^(?:leyden|[\w.]*Error): .*", re.MULTILINE)
MOST_CHARACTERS = 500
LOG_TAIL = 65_536


@dataclass(slots=True)
class _Running:
    job: Job
    process: "subprocess.Popen[bytes]"
    log: IO[bytes]
    began_at: int
    """Size of the log when the process began."""


class Processes:
    """Processes of the jobs that this process has started and that have not ended."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._running: list[_Running] = []

    def __len__(self) -> int:
        return len(self._running)

    @property
    def jobs(self) -> list[Job]:
        """Jobs whose processes run."""
        return [one.job for one in self._running]

    def resumes(self, job: Job) -> bool:
        """Whether the job's run was begun before, so that `start` continues it."""
        run = RunFolder(job.folder)
        return job.settings is not None and run.config_file.exists() and run.failure() is None

    def start(self, job: Job) -> bool:
        """Start the process of a job, which continues a run that was begun; return False if it cannot be started.

        The reason is in the job's record then.
        """
        resumes = self.resumes(job)
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
            return False
        self._running.append(_Running(job, process, log, log.tell()))
        return True

    def ended(self) -> Iterator[tuple[Job, State]]:
        """Return the jobs whose processes have ended since the last call, each with its state."""
        for one in list(self._running):
            code = one.process.poll()
            if code is None:
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
            yield one.job, state

    def error(self, job: Job) -> str | None:
        """Return why the last process of a job failed; None if it did not, or if there was none."""
        record = self._records.read(job)
        return None if record is None or record.last is None else record.last.error

    def note(self, job: Job, error: str) -> None:
        """Record why a job could not start."""
        record = self._records.new(job)
        now = time.time()
        record.sessions.append(
            Session(
                command=[], leyden=leyden_version(), began=now, ended=now, load_before=load(), exit_code=1, error=error
            )
        )
        self._records.write(job, record)

    def stop(self, jobs: Sequence[Job] | None = None) -> None:
        """Stop the processes of `jobs`, or all, with SIGTERM; kill those that do not end.

        They would ignore SIGINT if a shell had started this command in the background.
        """
        names = None if jobs is None else {job.name for job in jobs}
        stopped = [one for one in self._running if names is None or one.job.name in names]
        for one in stopped:
            with contextlib.suppress(ProcessLookupError):
                one.process.terminate()
        deadline = time.monotonic() + SECONDS_TO_STOP
        for one in stopped:
            try:
                one.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
            one.log.close()
            self._running.remove(one)
            self._close(one.job, None, None)

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


def _is_empty(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))

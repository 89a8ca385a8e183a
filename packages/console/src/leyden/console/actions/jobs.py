"""`Jobs`: commands of `leyden` that the console runs, each in a process of its own.

A job can neither slow the console's own answers nor end with its state unclear: what it prints goes to files, and its
exit code says how it ended. A job that is `detached` is a training: it goes on when the console ends.
"""

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from leyden.core.cli.progress import PROGRESS
from leyden.core.errors import LeydenError, RunError
from leyden.core.masking import mask_text, without_own_tokens

State = Literal["waiting", "running", "finished", "failed", "stopped"]
STOPPED = (130, 143)
"""Exit codes of a command of `leyden` that SIGINT or SIGTERM stopped; `leyden stop` sends SIGTERM."""
AT_ONCE = 2
"""Number of jobs that run at the same time; detached ones and servers are not counted, and begin at once."""
KEPT = 100
"""Number of ended jobs that are remembered."""
LINES, CHARACTERS = 200, 2_000
"""The end of a job's output that pages show: so many lines, each cut to so many characters."""
POLL_SECONDS = 0.25
STOP_SECONDS = 10.0
"""Time that a job has to end after SIGTERM."""
REFUSAL_SECONDS = 60.0
"""Time that a command has to validate what it is given."""
STDOUT = "stdout"


class Job(msgspec.Struct, kw_only=True):
    """A command and what became of it."""

    id: str
    kind: str
    """What it does, such as "rescore"."""
    title: str
    command: str
    """The command as a shell reads it, with secrets masked."""
    subject: dict[str, str] = {}
    """What it is about, by name, such as the key of a run; for links of pages."""
    detached: bool = False
    state: State = "waiting"
    created: float
    began: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    """Exit code; negative if a signal ended the process."""
    done: int | None = None
    """Finished parts of the work, out of `total`; None if the command does not report them."""
    total: int | None = None
    phase: str = ""
    """Phase of the work of which they are parts; empty for work of one phase."""
    output: list[str] = []
    """The last lines that it printed for a person."""
    result: Any = None
    """The last JSON line on its standard output; None before its end, or if it prints none."""


class _Work(msgspec.Struct, kw_only=True):
    """A job with what runs it."""

    job: Job
    words: list[str]
    folder: Path
    environment: dict[str, str]
    shown: dict[str, str] = {}
    """What pages show in the place of texts of its output."""
    at_once: bool = False
    """Whether it waits for no other job."""
    stop_is_wanted: bool = False
    kill_at: float | None = None
    """Monotonic time after which it is killed; None: never, as a training may need long for its last checkpoint."""
    process: Any = None
    task: Any = None


class Jobs:
    """The jobs of one console, the newest last.

    `program` is the command line of `leyden`, which the arguments of a job follow.
    """

    def __init__(self, program: Sequence[str] = (sys.executable, "-m", "leyden.core.cli")) -> None:
        self._program = list(program)
        self._works: dict[str, _Work] = {}
        self._free = asyncio.Semaphore(AT_ONCE)
        self._folder: Path | None = None
        self._number = 0

    def folder_of(self, job_id: str) -> Path:
        """Return the folder with the files of a job; raises RunError if there is none."""
        return self._work(job_id).folder

    def new_folder(self) -> Path:
        """Return an empty folder for the files of a job that is about to start; only this user can read it."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="leyden-console-"))
        return Path(tempfile.mkdtemp(prefix="job-", dir=self._folder))

    def start(
        self,
        kind: str,
        title: str,
        arguments: Sequence[str],
        *,
        folder: Path | None = None,
        subject: Mapping[str, str] | None = None,
        detached: bool = False,
        at_once: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Job:
        """Run `leyden ARGUMENTS` in the console's working directory, and return the job.

        `folder` is what `new_folder` returned, if the command needs files there. `environment` has further variables.
        A detached job goes on when the console ends. It and one that is to begin `at_once` wait for no other job.
        """
        self._forget()
        self._number += 1
        job = Job(
            id=str(self._number),
            kind=kind,
            title=title,
            command=mask_text(shlex.join(["leyden", *arguments])),
            subject=dict(subject or {}),
            detached=detached,
            created=time.time(),
        )
        work = _Work(
            job=job,
            words=[*self._program, *arguments],
            folder=folder or self.new_folder(),
            at_once=at_once or detached,
            environment={**without_own_tokens(os.environ), PROGRESS: "json", **(environment or {})},
        )
        self._works[job.id] = work
        work.task = asyncio.create_task(self._run(work), name=f"job {job.id}")
        return job

    def show_as(self, job_id: str, texts: Mapping[str, str]) -> None:
        """Show texts of a job's output, such as the path of a file of its own, as other texts."""
        self._work(job_id).shown |= texts

    async def refusal(self, arguments: Sequence[str]) -> str | None:
        """Run `leyden ARGUMENTS`, which is short and no job; return the line with which it fails, None if it does not.

        Raises LeydenError if it takes longer than `REFUSAL_SECONDS`.
        """
        process = await asyncio.create_subprocess_exec(
            *self._program,
            *arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=without_own_tokens(os.environ),
        )
        try:
            async with asyncio.timeout(REFUSAL_SECONDS):
                _, said = await process.communicate()
        except TimeoutError:
            words = shlex.join(["leyden", *arguments])
            raise LeydenError(f"{words} has not ended after {REFUSAL_SECONDS:g} s; try it in a terminal") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode == 0:
            return None
        lines = said.decode("utf-8", "replace").strip().splitlines() or [f"exit code {process.returncode}"]
        return mask_text(lines[-1].removeprefix("leyden: "))

    def printed(self, job_id: str) -> Path:
        """Return the file with what a job has printed on its standard output; it may not exist yet."""
        return self._work(job_id).folder / STDOUT

    def listing(self) -> list[Job]:
        """Return all jobs, the newest first, without their results."""
        return [msgspec.structs.replace(work.job, result=None) for work in reversed(self._works.values())]

    def job(self, job_id: str) -> Job:
        """Return a job; raises RunError if there is none."""
        return self._work(job_id).job

    def stop(self, job_id: str) -> Job:
        """Request that a job ends, which may take some seconds. Does nothing to a job that has ended."""
        work = self._work(job_id)
        if work.job.ended is None and not work.stop_is_wanted:
            work.stop_is_wanted = True
            if work.process is None:
                work.task.cancel()
                return work.job
            work.kill_at = None if work.job.detached else time.monotonic() + STOP_SECONDS
            _signal(work.process, signal.SIGTERM)
        return work.job

    async def ended(self, job_id: str) -> Job:
        """Wait until a job has ended, and return it."""
        work = self._work(job_id)
        with suppress(asyncio.CancelledError):
            await asyncio.shield(work.task)
        return work.job

    async def close(self) -> None:
        """End all jobs but the detached ones, and remove their files."""
        for work in self._works.values():
            if work.job.ended is None and not work.job.detached:
                self.stop(work.job.id)
        ending = [work for work in self._works.values() if not work.job.detached]
        await asyncio.gather(*(work.task for work in ending), return_exceptions=True)
        kept = [work for work in self._works.values() if work.job.ended is None]
        for work in kept:
            work.task.cancel()
            if work.process is not None:
                work.process.returncode = 0  # Popen would warn of a process that is meant to outlive it
        if self._folder is not None and not kept:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _work(self, job_id: str) -> _Work:
        if job_id not in self._works:
            raise RunError(f"there is no job {job_id!r}")
        return self._works[job_id]

    def _forget(self) -> None:
        ended = [work for work in self._works.values() if work.job.ended is not None]
        for work in ended[: max(0, len(ended) - KEPT)]:
            del self._works[work.job.id]
            shutil.rmtree(work.folder, ignore_errors=True)

    async def _run(self, work: _Work) -> None:
        job = work.job
        try:
            if work.at_once:
                await self._run_process(work)
            else:
                async with self._free:
                    await self._run_process(work)
        except OSError as error:
            job.output = [f"the command could not be started: {error}"]
            job.state = "failed"
        except asyncio.CancelledError:
            if not work.stop_is_wanted:
                raise
            job.state = "stopped"
        finally:
            job.ended = time.time()

    async def _run_process(self, work: _Work) -> None:
        job = work.job
        printed, said = work.folder / STDOUT, work.folder / "stderr"
        with printed.open("wb") as out, said.open("wb") as err:
            # Not asyncio's own subprocess, which kills a process that is to outlive the event loop.
            work.process = process = subprocess.Popen(
                work.words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=work.environment,
                start_new_session=True,
            )
        job.began, job.state = time.time(), "running"
        output = _Output(said, work.shown)
        while process.poll() is None:
            await asyncio.sleep(POLL_SECONDS)
            output.read_into(job)
            if work.kill_at is not None and time.monotonic() > work.kill_at:
                _signal(process, signal.SIGKILL)
        while output.read_into(job):
            pass
        job.exit_code = process.returncode
        job.result = _last_json(printed)
        if job.result is None:
            output.add(job, _last_lines(printed))
        is_stopped = work.stop_is_wanted or job.exit_code in STOPPED
        job.state = "finished" if job.exit_code == 0 else "stopped" if is_stopped else "failed"


class _Output:
    """What a process prints for a person: lines, among them those of its progress."""

    def __init__(self, path: Path, shown: Mapping[str, str]) -> None:
        self._path, self._shown, self._at, self._rest = path, shown, 0, b""

    def read_into(self, job: Job) -> bool:
        """Read what is new; returns whether something was."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read(1 << 20)
        self._at += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        self._rest = self._rest[-CHARACTERS * 4 :]
        self.add(job, [line for line in lines if not _is_progress(job, line)])
        return bool(new)

    def add(self, job: Job, lines: Sequence[bytes]) -> None:
        """Append lines to the job's output."""
        texts = [self._text(line.decode("utf-8", "replace").rstrip()) for line in lines]
        if texts:
            job.output = [*job.output, *texts][-LINES:]

    def _text(self, line: str) -> str:
        for text, other in self._shown.items():
            line = line.replace(text, other)
        return mask_text(line[:CHARACTERS])


def _is_progress(job: Job, line: bytes) -> bool:
    """Whether a line is one of the command's progress, which then becomes that of the job."""
    if not line.startswith(b'{"progress"'):
        return False
    with suppress(msgspec.MsgspecError, KeyError, TypeError):
        found = msgspec.json.decode(line)["progress"]
        job.done, job.total, job.phase = int(found["done"]), int(found["total"]), str(found.get("phase", ""))
        return True
    return False


def _last_json(path: Path) -> Any:
    """Return the last line of a file, if it is a JSON object."""
    lines = path.read_bytes().rstrip().rsplit(b"\n", 1)
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(lines[-1], type=dict[str, Any])
    return None


def _last_lines(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - LINES * 400))
        text = file.read().strip()
    return text.split(b"\n")[-LINES:] if text else []


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Send a signal to a process and to all that it has started."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)

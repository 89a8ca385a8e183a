"""Records of jobs: with which settings a job was run, each of its sessions, and how it ended."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from leyden.core.data.reasons import NO_SPREAD
from leyden.core.errors import UsageError
from leyden.core.experiments.plan import Job
from leyden.core.experiments.settings import changed_file, difference, used_files, wherever
from leyden.core.masking import mask_values
from leyden.core.policy.checkpoints.atomic import replace_file
from leyden.core.trainer.run_folder.folder import RunFolder

RECORDS = "records"
"""Folder of the records, beside the runs."""
NOTHING_TO_LEARN = 2
"""Exit code of a run that ended because it had nothing to learn."""

State = Literal["new", "finished", "no spread", "failed", "unfinished", "in use", "other settings"]
"""`no spread`: the run ended because all rollouts of each task earned the same reward, which is a result. `unfinished`:
it was interrupted. `in use`: another process trains it."""
ENDED: frozenset[State] = frozenset({"finished", "no spread"})


class Session(msgspec.Struct, kw_only=True):
    """One process of a job. Times are Unix seconds; loads are averages over 1 minute."""

    command: list[str]
    leyden: str
    """Version of Leyden, and its commit if known."""
    began: float
    load_before: float
    ended: float | None = None
    """None: the session was cut off, or has not ended."""
    load_after: float | None = None
    exit_code: int | None = None
    error: str | None = None


class JobRecord(msgspec.Struct, kw_only=True):
    """Record of one job."""

    settings: dict[str, Any] = {}
    command: list[str] = []
    files: dict[str, str] = {}
    """Digests of the files that it used."""
    sessions: list[Session] = []

    @property
    def last(self) -> Session | None:
        """The latest session."""
        return self.sessions[-1] if self.sessions else None


class Records:
    """Records of the jobs of an experiment whose runs are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / RECORDS

    def settings_file(self, job: Job) -> Path:
        """Path of the run file that a job's process reads."""
        return self.folder / f"{job.name}.yaml"

    def log_file(self, job: Job) -> Path:
        """Path of what a job's processes print."""
        return self.folder / f"{job.name}.log"

    def read(self, job: Job) -> JobRecord | None:
        """Return the record of a job; None if it never started."""
        path = self.folder / f"{job.name}.json"
        if not path.exists():
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=JobRecord)
        except msgspec.DecodeError as error:
            raise UsageError(f"{path} cannot be read: {error}") from None

    def write(self, job: Job, record: JobRecord) -> None:
        """Write the record of a job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(
            self.folder / f"{job.name}.json", msgspec.json.format(msgspec.json.encode(mask_values(record)), indent=1)
        )

    def write_settings(self, job: Job) -> Path:
        """Write the run file that a job's process reads, and return its path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.settings_file(job)
        path.write_text(yaml.safe_dump(msgspec.to_builtins(job.settings), sort_keys=False, allow_unicode=True))
        return path

    def new(self, job: Job) -> JobRecord:
        """Return the record of a job that starts now."""
        settings: dict[str, Any] = msgspec.to_builtins(job.settings or {})
        return JobRecord(settings=settings, command=list(job.command), files=used_files(settings))

    def change(self, job: Job) -> str | None:
        """Return how a job differs from the one that was run, as text; None if it is the same or was never run.

        It is the same if the experiment's folder has been moved, or Python is another one.
        """
        record = self.read(job)
        if record is None:
            return None
        prepared = (*job.needs, job.name)
        before, now = (_comparable(one, prepared) for one in (record, self.new(job)))
        if before.command != now.command:
            return f"the command was {record.command}, and is now {list(job.command)}"
        found = difference(mask_values(before.settings), mask_values(now.settings))
        return found or changed_file(before.files, now.files)

    def state(self, job: Job) -> State:
        """Return what became of a job so far."""
        record = self.read(job)
        last = None if record is None else record.last
        if last is None:
            return "new"
        if self.change(job) is not None:
            return "other settings"
        if job.settings is None:
            if last.exit_code == 0:
                return "finished"
            return "unfinished" if last.exit_code is None else "failed"
        run = RunFolder(job.folder)
        if run.report_file.exists():
            return "finished"
        if run.path.exists() and run.is_in_use():
            return "in use"
        if last.exit_code is None or last.exit_code < 0 or last.exit_code in (130, 143):
            return "unfinished"
        if last.exit_code == NOTHING_TO_LEARN and has_no_spread(run):
            return "no spread"
        return "failed"


def _comparable(record: JobRecord, prepared: Sequence[str]) -> JobRecord:
    """Return what decides the results of a job, wherever its experiment and its Python are."""
    command = wherever(record.command, prepared)
    if command and Path(command[0]).name.startswith("python"):
        command[0] = "python"
    files = {wherever(path, prepared): digest for path, digest in record.files.items()}
    return JobRecord(settings=wherever(record.settings, prepared), command=command, files=files)


def has_no_spread(run: RunFolder) -> bool:
    """Whether the rollouts of the last batch were all left out because each group earned one and the same reward."""
    learned = run.learned() if run.learned_file.exists() else []
    if not learned:
        return False
    account = learned[-1].account
    return not account.trained and set(account.rollouts) == {NO_SPREAD}

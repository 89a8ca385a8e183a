"""Records of a server's runs: what must survive the server's end, one JSON file for each run.

The configuration and the tasks of a run are in its run folder. A record adds what only the server knows. It holds the
run's token, so that only the owner can read it.
"""

import os
import secrets
import time
from pathlib import Path
from typing import Literal

import msgspec

from leyden.core.errors import RunError, UsageError
from leyden.core.masking import remember_secret
from leyden.core.policy.checkpoints.atomic import replace_file, sync
from leyden.core.server.budget import Budget

FOLDER = ".server"
"""Folder for the server's own files, in the folder of its runs."""

Ended = Literal["finished", "stopped", "failed", "interrupted"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the last session of a run ended."""

    state: Ended
    reason: str | None = None
    at: float = msgspec.field(default_factory=time.time)
    """Seconds since the epoch."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A process that trains a run."""

    pid: int
    start_time: int
    """Clock ticks from the machine's start to that of the process; with the pid, this names it for ever."""
    boot: str
    """Id of the machine's boot."""
    began: float
    """Seconds since the epoch."""
    step: int
    """Number of steps that the run had taken before."""
    slots: tuple[int, ...] = ()
    """Core slots of the run."""


class RunRecord(msgspec.Struct, kw_only=True):
    """What the server knows of a run. It is written whenever it changes."""

    name: str
    order: int
    """Place in the queue: the lowest number starts first."""
    submitted: float
    budget: Budget
    port: int
    """Port of the run's gateway. It stays the same, so that `leyden run` finds a resumed run."""
    token: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(32))
    """LEYDEN_RUN_TOKEN of the run."""
    wanted: bool = True
    """Whether the run is to be trained: it has a process, or waits for one."""
    steps: int | None = None
    """Planned steps, if they were changed on a resumption."""
    session: Session | None = None
    """Process that trains the run; None if it has none."""
    kills: int = 0
    """Number of sessions in a row that were killed without a new step."""
    outcome: Outcome | None = None

    def __repr__(self) -> str:
        return f"RunRecord({self.name!r})"


class Records:
    """The records in the folder of a server's runs."""

    def __init__(self, runs: Path) -> None:
        self.path = runs / FOLDER
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise UsageError(f"the folder of the runs, {runs}, cannot be used: {error.strerror}") from None

    def read(self) -> list[RunRecord]:
        """Return all records, in the order of the queue; raises RunError for a file that cannot be read."""
        found: list[RunRecord] = []
        for path in sorted(self.path.glob("*.json")):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=RunRecord)
            except (OSError, msgspec.MsgspecError) as error:
                raise RunError(f"{path} cannot be read: {error}; move it away to start without this run") from None
            remember_secret(record.token)
            found.append(record)
        return sorted(found, key=lambda record: record.order)

    def write(self, record: RunRecord) -> None:
        """Write a record; it is on disk when this returns."""
        remember_secret(record.token)
        replace_file(self._file(record.name), msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
        sync(self.path)

    def remove(self, name: str) -> None:
        """Remove a record and the output of its run."""
        self._file(name).unlink(missing_ok=True)
        self.output(name).unlink(missing_ok=True)
        sync(self.path)

    def output(self, name: str) -> Path:
        """Path of what the processes of a run printed."""
        return self.path / f"{name}.log"

    def lock_file(self) -> int:
        """Return an open descriptor of the file that a server locks."""
        return os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.json"

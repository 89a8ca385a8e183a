"""Status of a run as the server's clients see it, read from its record and its folder."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from leyden.core.server.records import Outcome, RunRecord
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.versions import VersionFile
from leyden.core.trainer.run_state import state_and_reason

ServedState = Literal["queued", "running", "stopping", "finished", "stopped", "failed", "interrupted"]
"""`queued`: waits for its budget. `stopping`: has been requested to stop. `interrupted`: its process was killed again
and again. The last four have no process; the last three can be resumed."""
ENDED = ("finished", "stopped", "failed", "interrupted")


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a server."""

    name: str
    state: ServedState
    reason: str | None = None
    """Why the run waits, or why it ended early."""
    step: int = 0
    """Number of steps that the run has taken."""
    steps: int = 0
    """Number of planned steps."""
    reward: float | None = None
    """Mean reward of the last step."""
    memory: int = 0
    """Memory budget in bytes."""
    memory_used: int | None = None
    """Bytes that the processes of a running run used when they were last measured."""
    cores: int = 0
    runners: str = "local"
    """`remote`: agents attach with `leyden run --server`."""
    submitted: float = 0.0
    """Seconds since the epoch."""
    version: int | None = None
    """Newest version of the policy; None before the first."""

    @property
    def has_ended(self) -> bool:
        """Whether the run has no process and waits for none."""
        return self.state in ENDED

    def line(self) -> str:
        """Return the status as one line of text."""
        reward = "" if self.reward is None else f", reward {self.reward:.3f}"
        reason = "" if self.reason is None else f": {self.reason}"
        return f"run {self.name} is {self.state} after {self.step} of {self.steps} steps{reward}{reason}"


def steps_taken(folder: RunFolder) -> int:
    """Return the number of steps that a run has taken."""
    return _last_step(folder)[0]


def _last_step(folder: RunFolder) -> tuple[int, float | None]:
    """Return the number of steps that a run has taken, and the mean reward of the last one that has one."""
    lines = folder.metrics()  # a step may have a second line, with its evaluation
    rewards = [float(line["reward"]) for line in lines if line.get("reward") is not None]
    return max((int(line.get("step", 0)) for line in lines), default=0), rewards[-1] if rewards else None


def status_of(record: RunRecord, folder: RunFolder, waits_for: str | None, memory_used: int | None) -> RunStatus:
    """Return the status of a run; `waits_for` is why it has no process yet."""
    state, reason = state_of(record, folder, waits_for)
    (step, reward), written = _last_step(folder), folder.written_config()
    runners: dict[str, Any] = written.get("runners") or {}
    return RunStatus(
        name=record.name,
        state=state,
        reason=reason,
        step=step,
        steps=int(written.get("steps", 0)) if record.steps is None else record.steps,
        reward=reward,
        memory=record.budget.memory,
        memory_used=memory_used,
        cores=record.budget.cores,
        runners=str(runners.get("where", "local")),
        submitted=record.submitted,
        version=_newest_version(folder),
    )


def state_of(record: RunRecord, folder: RunFolder, waits_for: str | None) -> tuple[ServedState, str | None]:
    """Return the state of a run and its reason, without a look at its metrics, its versions and its configuration."""
    if record.session is not None:
        return ("running", None) if record.wanted else ("stopping", None)
    if record.wanted:
        return "queued", waits_for
    if folder.is_in_use():
        return "running", "another command trains it, outside of its budget here"
    outcome = record.outcome
    if outcome is None or is_written_since(folder.session_stop_file, outcome.at):  # by a rollback
        outcome = outcome_of(folder)
    return outcome.state, outcome.reason


def outcome_of(folder: RunFolder) -> Outcome:
    """Return how the last session of a run ended, as its folder says."""
    state, reason = state_and_reason(folder)
    if state == "finished" or state == "stopped" or state == "interrupted":
        return Outcome(state=state, reason=reason)
    if state == "not finished":
        return Outcome(state="stopped", reason=reason or "it has not begun")
    return Outcome(state="failed", reason=reason)


def is_written_since(path: Path, time: float) -> bool:
    """Whether a file exists that was written at `time`, in seconds since the epoch, or later."""
    try:
        return path.stat().st_mtime >= time
    except OSError:
        return False


def _newest_version(folder: RunFolder) -> int | None:
    versions = VersionFile(folder.path).read()
    return max(versions) if versions else None

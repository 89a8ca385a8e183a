"""Run folder: the files of a run on disk; writes them so that a crash leaves no half-written file."""

import os
import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
import yaml

from leyden.core.algorithm.account import Account
from leyden.core.data.resources import LLM, NamedResources
from leyden.core.data.rollout import Task
from leyden.core.errors import RunError, first_line
from leyden.core.masking import mask_text, mask_values
from leyden.core.policy.checkpoints.atomic import remove_unfinished, replace_file, whole_folder
from leyden.core.runner.user_code.agent_spec import TaskExample
from leyden.core.trainer.config import RunConfig, check_name, load_config, save_config
from leyden.core.trainer.rollouts.tasks import load_tasks, save_tasks, task_examples
from leyden.core.trainer.run_folder.move_journal import end_moves, is_under_way
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.run_folder.run_lock import is_locked, run_lock
from leyden.core.trainer.run_folder.sharing.shared_runs import folder_of, is_address
from leyden.core.trainer.run_folder.sharing.store_location import StoreLocation, usable_uri
from leyden.core.trainer.run_folder.token_records import TokenRecords

Metrics = dict[str, Any]
Line = TypeVar("Line")
LEARNED = "learned.jsonl"
SESSION_STOP = "session_stop.json"
RUNS = "runs"
"""Default folder of all runs."""


class LearnedLine(msgspec.Struct, frozen=True, kw_only=True):
    """Line of `learned.jsonl`: what became of the rollouts of one batch."""

    step: int
    """Step that learned from the batch. For a batch that taught nothing, the step it was collected for."""
    account: Account


class RunFolder:
    """Files of one run, under `runs/<name>`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.learned_file = path / LEARNED
        """What each step learned from, and what was left out and why; one line for each batch."""
        self.report_file = path / "report.json"
        self.curve_file = path / "reward_curve.png"
        self.engine_log = path / "engine.jsonl"
        self.check_file = path / "check.json"
        self.failed_file = path / "failed.json"
        """Reason why the run ended before its first step; exists only in that case."""
        self.session_error_file = path / "session_error.json"
        """Error that ended the last session; exists only if one did."""
        self.session_stop_file = path / SESSION_STOP
        """What stopped the last session on request; exists only if something did."""
        self.worker_log = path / "agents.log"
        self.checkpoints = path / "checkpoints"
        self.policy = path / "policy"
        self.last_policy = path / "policy-last"
        """Last version, if another version is kept."""
        self.prompts = path / "prompts"
        """Prompt templates of the kept version, if it has some."""
        self.token_records = TokenRecords(path)
        """What each step computed for every trained token."""
        self.state_file = path / "algorithm_state.json"
        """State that the algorithm saved within the latest steps."""
        self.trackers = path / "trackers"
        self.stored_file = path / "stored.json"
        self.store_file = path / "store.db"
        self._run_id_file = path / "run_id"

    @property
    def store_location(self) -> StoreLocation:
        """Where the run's rollouts are. Raises RunError if its configuration, or a password, is missing or damaged."""
        try:
            recorded: str | None = self.written_config().get("store")
        except (yaml.YAMLError, AttributeError) as error:  # AttributeError: the file holds no mapping
            raise RunError(f"{self.config_file} cannot be read: {first_line(error)}") from None
        if recorded is None:
            return StoreLocation(f"sqlite:///{self.store_file}")
        return StoreLocation(usable_uri(recorded, self.path.name), self.run_id(self.path.name))

    def kept_rollouts(self) -> StoreLocation:
        """Return where the run's rollouts are; raises RunError where there are none to read."""
        location = self.store_location
        if not location.is_kept:
            raise RunError(f"run {self.path.name!r} kept its rollouts in memory, which ended with its process")
        if not location.exists:
            raise RunError(f"run {self.path.name!r} has no rollouts: {self.failure() or 'it has not started'}")
        return location

    @classmethod
    def create(cls, runs: Path, config: RunConfig, tasks: list[Task], held_out: dict[str, list[Task]]) -> "RunFolder":
        """Create the folder of a new run, completely or not at all; raises RunError when the name is taken.

        Only its owner can open the folder, because it holds prompts, answers and logs. The folder of a run that ended
        before its first step is replaced. Unfinished folders in `runs`, left by a killed process, are removed.
        """
        path = runs / config.name
        check_free(runs, config.name)
        shutil.rmtree(path, ignore_errors=True)
        try:
            remove_unfinished(runs)
            with whole_folder(path, private=True) as pending:
                folder = cls(pending)
                if tasks:
                    save_tasks(tasks, folder.tasks_file())
                for name, rows in held_out.items():
                    save_tasks(rows, folder.tasks_file(name))
                save_config(config, folder.config_file)
                folder.run_id(config.name)
        except OSError as error:
            raise RunError(f"run folder {path} cannot be made: {error.strerror}") from None
        return cls(path)

    @classmethod
    def open(cls, runs: Path, name: str) -> tuple["RunFolder", RunConfig]:
        """Return the run of this name, path or address URI#RUN, and its configuration; raises RunError without one.

        Completes a decided rollback of a killed process first, unless another process holds the run.
        """
        if is_address(name):
            path = folder_of(name, runs)
        else:
            path = Path(name) if Path(name).joinpath("config.yaml").exists() else runs / check_name(name)
        if not path.is_dir():
            known = sorted(p.parent.name for p in runs.glob("*/config.yaml") if cls(p.parent).failure() is None)
            raise RunError(f"no run {name!r} in {runs}; runs there: {', '.join(known) if known else 'none yet'}")
        folder = cls(path)
        if is_under_way(path):
            with suppress(RunError), folder.locked():
                pass
        return folder, load_config(path / "config.yaml")

    def task_examples(self, config: RunConfig) -> tuple[TaskExample, ...]:
        """Return one task for each form that the tasks of the run and its held-out sets have."""
        given = [(config.tasks, self.tasks())] if config.tasks else []
        given += [(held.source, self.tasks(held.name)) for held in config.held_out]
        return task_examples(given)

    def command(self, name: str) -> str:
        """Return the command line of `leyden NAME` for this run."""
        where = "" if self.path.parent == Path(RUNS) else f" --runs {self.path.parent}"
        return f"leyden {name} {self.path.name}{where}"

    def note_failure(self, error: Exception) -> None:
        """Record that the run ended before its first step.

        Its folder stays for inspection, and its name is free again.
        """
        _write_error(self.failed_file, error)

    def failure(self) -> str | None:
        """Return why the run ended before its first step; None if it did not."""
        return _error_in(self.failed_file)

    def note_session_error(self, error: Exception) -> None:
        """Record the error that ended a session. The run can be resumed, which removes the record."""
        _write_error(self.session_error_file, error)

    def session_error(self) -> str | None:
        """Return the error that ended the last session; None if none did."""
        return _error_in(self.session_error_file)

    def note_session_stop(self, request: str) -> None:
        """Record what stopped a session on request. The run can be resumed, which removes the record."""
        write_session_stop(self.path, request)

    def session_stop(self) -> str | None:
        """Return what stopped the last session on request; None if nothing did."""
        return _error_in(self.session_stop_file)

    def forget_session_end(self) -> None:
        """Remove the record of how the last session ended: another one begins."""
        self.session_error_file.unlink(missing_ok=True)
        self.session_stop_file.unlink(missing_ok=True)

    def written_config(self) -> dict[str, Any]:
        """Return the configuration as stored in the folder, with credentials masked; empty if there is none."""
        return yaml.safe_load(self.config_file.read_text()) if self.config_file.exists() else {}

    def run_id(self, name: str) -> str:
        """Return the run's id in a store: `name` with a random suffix. It is created on the first call."""
        if (known := self.known_run_id()) is not None:
            return known
        made = f"{name}-{uuid4().hex[:8]}"
        replace_file(self._run_id_file, f"{made}\n".encode())
        return made

    def known_run_id(self) -> str | None:
        """Return the run's id in its store; None before it has one."""
        return self._run_id_file.read_text().strip() if self._run_id_file.exists() else None

    def tasks_file(self, held_out: str | None = None) -> Path:
        """Path of the rows of the training tasks, or of a held-out set."""
        return self.path / ("tasks.jsonl" if held_out is None else f"held_out.{held_out}.jsonl")

    def tasks(self, held_out: str | None = None) -> list[Task]:
        """Return the rows that `create` stored."""
        return load_tasks(self.tasks_file(held_out))

    def save_resources(self, resources: NamedResources) -> None:
        """Store the named resources of the agents.

        API keys of LLMs are left out, because the policy answers their calls.
        """
        bare = {n: msgspec.structs.replace(r, api_key=None) if isinstance(r, LLM) else r for n, r in resources.items()}
        replace_file(self.path / "resources.json", msgspec.json.encode(bare))

    def resources(self) -> NamedResources:
        """Return the resources that `save_resources` stored; empty if it was never called."""
        file = self.path / "resources.json"
        return msgspec.json.decode(file.read_bytes(), type=NamedResources) if file.exists() else {}

    def note_rollouts(self, source: str, ids: Sequence[str]) -> None:
        """Record which rollouts of another store the run learns from. That store may grow later."""
        known = {**self._stored(), mask_text(source): list(ids)}
        replace_file(self.stored_file, msgspec.json.encode(known))

    def read_rollouts(self, source: str) -> list[str] | None:
        """Return what `note_rollouts` recorded for `source`; None before it was called."""
        known = self._stored()
        return known.get(mask_text(source), known.get(source))  # earlier versions stored the source unmasked

    def sources(self) -> list[str]:
        """Return the stores or runs that the run learns from, as the user gave them, with secrets masked."""
        return list(self._stored())

    def _stored(self) -> dict[str, list[str]]:
        file = self.stored_file
        return msgspec.json.decode(file.read_bytes(), type=dict[str, list[str]]) if file.exists() else {}

    @contextmanager
    def locked(self) -> Generator[None]:
        """Context manager: locks the run for this process; raises RunError when another process trains it.

        Removes unfinished files of a killed process, and completes its decided moves.
        """
        with run_lock(self.path):
            remove_unfinished(self.path)
            end_moves(self.path)
            yield

    def is_in_use(self) -> bool:
        """Whether a process currently trains or checks the run."""
        return is_locked(self.path)

    # --- Metrics and report

    def append_metrics(self, metrics: Metrics) -> None:
        """Append one line to `metrics.jsonl`; it is on disk when this returns."""
        _append(self.metrics_file, [msgspec.json.encode(metrics)])

    def metrics(self) -> list[Metrics]:
        """Return all complete lines of `metrics.jsonl`; a line cut off by a crash is left out.

        Raises RunError for any other line that cannot be read.
        """
        return read_lines(self.metrics_file, dict[str, Any])

    def last_metrics(self, size: int = 1 << 16) -> list[Metrics]:
        """Return the complete lines in the last `size` bytes of `metrics.jsonl`, without damaged ones."""
        try:
            with self.metrics_file.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - size))
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        return [line for raw in lines[end > size :] if (line := decoded_metrics(raw)) is not None]

    def append_learned(self, step: int, accounts: Sequence[Account]) -> None:
        """Append a line to `learned.jsonl` for each account of a batch that was collected for `step`."""
        if accounts:
            _append(self.learned_file, [msgspec.json.encode(LearnedLine(step=step, account=one)) for one in accounts])

    def learned(self) -> list["LearnedLine"]:
        """Return all complete lines of `learned.jsonl`. Raises RunError for one that cannot be read."""
        return read_lines(self.learned_file, LearnedLine)

    def rewind_metrics(self, step: int, *, evaluations: bool = True) -> None:
        """Remove what was recorded of the steps after `step`: they will be repeated.

        Without `evaluations`, the evaluations of `step` itself are removed too, because they will be repeated.
        """

        def stays(line: Metrics) -> bool:
            return line["step"] < step or (line["step"] == step and (evaluations or "held_out" not in line))

        if self.metrics_file.exists():
            kept = [msgspec.json.encode(line) + b"\n" for line in self.metrics() if stays(line)]
            replace_file(self.metrics_file, b"".join(kept))
        if self.learned_file.exists():
            learned = [msgspec.json.encode(line) + b"\n" for line in self.learned() if line.step <= step]
            replace_file(self.learned_file, b"".join(learned))
        self.token_records.rewind(step)

    def report(self) -> RunReport | None:
        """Return the report; None while the run is not finished. Raises RunError if the file cannot be read."""
        try:
            return msgspec.json.decode(self.report_file.read_bytes(), type=RunReport)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RunError(f"{self.report_file} cannot be read: {error}") from None

    def write_report(self, report: RunReport) -> None:
        """Write `report.json`."""
        replace_file(self.report_file, _readable(report.written()))


def write_session_stop(folder: Path, request: str) -> None:
    """Write into a folder what stopped a session on request."""
    replace_file(folder / SESSION_STOP, _readable({"message": request}))


def _write_error(path: Path, error: Exception) -> None:
    failure = {"error": type(error).__name__, "message": str(error), "time": time.time()}
    replace_file(path, _readable(failure))


def _error_in(path: Path) -> str | None:
    """Return the message in a file that `_write_error` wrote, or that it cannot be read; None without the file."""
    try:
        return str(msgspec.json.decode(path.read_bytes(), type=dict[str, Any])["message"])
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        return f"{path} cannot be read"


def _readable(value: Any) -> bytes:
    """Return `value` as indented JSON with secrets masked."""
    return msgspec.json.format(msgspec.json.encode(mask_values(value)), indent=2) + b"\n"


def is_free(path: Path) -> bool:
    """Whether `path` can become a run's folder: it does not exist, or its run ended before the first step."""
    return not path.exists() or RunFolder(path).failed_file.exists()


def check_free(runs: Path, name: str) -> None:
    """Raise RunError if there is a run of this name that took a step."""
    if not is_free(runs / name):
        raise RunError(
            f"run {name!r} exists in {runs}; resume it with `leyden train --resume {name}`, or choose another --name"
        )


def _append(path: Path, lines: Sequence[bytes]) -> None:
    with path.open("ab") as file:
        file.write(b"".join(line + b"\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())


def decoded_metrics(raw: bytes) -> Metrics | None:
    """Return a line of `metrics.jsonl`; None for one that is damaged, or has no step."""
    try:
        line = msgspec.json.decode(raw, type=dict[str, Any]) if raw else {}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return line if isinstance(line.get("step"), int) else None


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """Return the complete JSON lines of a file that may still grow; a line cut off by a crash is left out.

    Returns nothing without the file. Raises RunError for any other line that cannot be read.
    """
    found: list[Line] = []
    for number, raw in enumerate(path.read_bytes().split(b"\n")[:-1] if path.exists() else (), 1):
        try:
            found += [msgspec.json.decode(raw, type=kind)] if raw else []
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RunError(f"{path}, line {number} cannot be read: {error}") from None
    return found

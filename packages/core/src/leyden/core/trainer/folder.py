"""`RunFolder`: a run on disk. Knows the names of its files and how to write them without leaving halves."""

import fcntl
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import msgspec
import yaml

from leyden.core.data.resources import LLM, NamedResources
from leyden.core.data.rollout import Task
from leyden.core.errors import RunError
from leyden.core.policy.atomic import remove_unfinished, whole_folder
from leyden.core.trainer.config import RunConfig, check_name, load_config, save_config
from leyden.core.trainer.moves import end_moves, is_under_way
from leyden.core.trainer.tasks import load_tasks, save_tasks

Metrics = dict[str, Any]


class RunFolder:
    """The files of one run, under `runs/<name>`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.report_file = path / "report.json"
        self.curve_file = path / "reward_curve.png"
        self.engine_log = path / "engine.jsonl"
        self.check_file = path / "check.json"
        self.worker_log = path / "agents.log"
        self.checkpoints = path / "checkpoints"
        self.policy = path / "policy"
        self.last_policy = path / "policy-last"
        """Where the last version is, when another is kept."""
        self.trackers = path / "trackers"
        self.stored_file = path / "stored.json"
        self.store_file = path / "store.db"
        self._run_id_file = path / "run_id"

    @property
    def store_uri(self) -> str:
        """URI of the run's store."""
        return f"sqlite:///{self.store_file}"

    @classmethod
    def create(cls, runs: Path, config: RunConfig, tasks: list[Task], held_out: dict[str, list[Task]]) -> "RunFolder":
        """Make the folder of a new run, whole or not at all; raises RunError when the name is taken.

        What a process left in `runs` that was killed while it made one is removed.
        """
        path = runs / config.name
        if path.exists():
            raise RunError(
                f"run {config.name!r} exists in {runs}; resume it with `leyden train --resume {config.name}`, "
                "or choose another --name"
            )
        try:
            remove_unfinished(runs)
            with whole_folder(path) as pending:
                folder = cls(pending)
                if tasks:
                    save_tasks(tasks, folder.tasks_file())
                for name, rows in held_out.items():
                    save_tasks(rows, folder.tasks_file(name))
                save_config(config, folder.config_file)
        except OSError as error:
            raise RunError(f"run folder {path} cannot be made: {error.strerror}") from None
        return cls(path)

    @classmethod
    def open(cls, runs: Path, name: str) -> tuple["RunFolder", RunConfig]:
        """Find an existing run by name or path; raises RunError when there is none.

        A rollback that was killed once it was decided is ended first, unless another process has the run.
        """
        path = Path(name) if Path(name).joinpath("config.yaml").exists() else runs / check_name(name)
        if not path.is_dir():
            known = sorted(p.parent.name for p in runs.glob("*/config.yaml"))
            raise RunError(f"no run {name!r} in {runs}; there is {', '.join(known) if known else 'none yet'}")
        folder = cls(path)
        if is_under_way(path):
            with suppress(RunError), folder.locked():
                pass
        return folder, load_config(path / "config.yaml")

    def written_config(self) -> dict[str, Any]:
        """The run's configuration as it lies in the folder, credentials masked; nothing if there is none."""
        return yaml.safe_load(self.config_file.read_text()) if self.config_file.exists() else {}

    def run_id(self, name: str) -> str:
        """The id of the run called `name` in a store: that name, and letters that no other run of the name has."""
        if (known := self.known_run_id()) is not None:
            return known
        made = f"{name}-{uuid4().hex[:8]}"
        self._replace(self._run_id_file, f"{made}\n".encode())
        return made

    def known_run_id(self) -> str | None:
        """The run's id in its store, once it has one."""
        return self._run_id_file.read_text().strip() if self._run_id_file.exists() else None

    def tasks_file(self, held_out: str | None = None) -> Path:
        """Where the rows of the training tasks, or of a held-out set, are kept."""
        return self.path / ("tasks.jsonl" if held_out is None else f"held_out.{held_out}.jsonl")

    def tasks(self, held_out: str | None = None) -> list[Task]:
        """The rows kept by `create`."""
        return load_tasks(self.tasks_file(held_out))

    def save_resources(self, resources: NamedResources) -> None:
        """Keep what agents run with beside the endpoint; keys of LLMs are left out: the policy answers for them."""
        bare = {n: msgspec.structs.replace(r, api_key=None) if isinstance(r, LLM) else r for n, r in resources.items()}
        self._replace(self.path / "resources.json", msgspec.json.encode(bare))

    def resources(self) -> NamedResources:
        """What `save_resources` kept; nothing if it was never called."""
        file = self.path / "resources.json"
        return msgspec.json.decode(file.read_bytes(), type=NamedResources) if file.exists() else {}

    def note_rollouts(self, source: str, ids: Sequence[str]) -> None:
        """Keep which rollouts of another store, which goes on growing perhaps, the run learns from."""
        self._replace(self.stored_file, msgspec.json.encode({**self._stored(), source: list(ids)}))

    def read_rollouts(self, source: str) -> list[str] | None:
        """What `note_rollouts` kept for `source`; None before it was called."""
        return self._stored().get(source)

    def _stored(self) -> dict[str, list[str]]:
        file = self.stored_file
        return msgspec.json.decode(file.read_bytes(), type=dict[str, list[str]]) if file.exists() else {}

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the run for this process; raises RunError when another one is training it.

        What a killed process was writing is removed, and what it was moving is moved.
        """
        handle = (self.path / "run.lock").open("w")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.close()
            raise RunError(f"run {self.path.name!r} is being trained by another process") from None
        try:
            remove_unfinished(self.path)
            end_moves(self.path)
            yield
        finally:
            handle.close()

    # --- Metrics and report

    def append_metrics(self, metrics: Metrics) -> None:
        """Add one line to `metrics.jsonl`, on disk before this returns."""
        with self.metrics_file.open("ab") as file:
            file.write(msgspec.json.encode(metrics) + b"\n")
            _sync(file)

    def metrics(self) -> list[Metrics]:
        """All whole lines of `metrics.jsonl`; a line cut off by a crash is left out."""
        if not self.metrics_file.exists():
            return []
        lines = self.metrics_file.read_bytes().split(b"\n")[:-1]
        return [msgspec.json.decode(line) for line in lines if line]

    def rewind_metrics(self, step: int, *, evaluations: bool = True) -> None:
        """Drop what was written after `step`: those steps are about to be taken again.

        Without `evaluations`, the evaluations after `step` go too: they are about to be repeated.
        """

        def stays(line: Metrics) -> bool:
            return line["step"] < step or (line["step"] == step and (evaluations or "held_out" not in line))

        if self.metrics_file.exists():
            kept = [msgspec.json.encode(line) + b"\n" for line in self.metrics() if stays(line)]
            self._replace(self.metrics_file, b"".join(kept))

    def write_report(self, report: msgspec.Struct) -> None:
        """Write `report.json`."""
        self._replace(self.report_file, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")

    def _replace(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(data)
            _sync(file)
        os.replace(temporary, path)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())

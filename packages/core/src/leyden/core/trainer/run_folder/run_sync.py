"""Run recording: copies metrics and versions from a run's folder into its store, where other processes read them.

A run is resumed from its folder; the store follows the folder step by step. Store records that a crash kept out of the
folder are removed when the next session begins.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.data.route import POLICY
from leyden.core.data.run import PolicyVersion, Run, RunStatus, StepMetrics
from leyden.core.errors import StoreError
from leyden.core.store.base import LightningStore
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.monitoring.trackers import numbers
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.sharing.artifacts import url_of_run
from leyden.core.trainer.run_folder.sharing.shared_runs import place_of_run
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile, is_checkpoint

logger = logging.getLogger(__name__)


class StoreSync:
    """Store records of the run in `folder`."""

    def __init__(self, store: LightningStore, folder: RunFolder, config: RunConfig) -> None:
        self._store, self._folder, self._config = store, folder, config
        self._run_id = ""
        self._metrics, self._versions = _Tail(folder.metrics_file), _Tail(VersionFile(folder.path).path)
        self._kept: dict[int, Path] = {}
        """Checkpoints by version, for versions whose weights are kept."""

    async def begin(self, step: int) -> None:
        """Record that the run continues after `step`, to which the folder was rewound."""
        self._run_id = self._folder.run_id(self._config.name)
        config, experiment = self._folder.written_config(), self._config.experiment
        place = place_of_run(self._folder.path, url_of_run(self._config.artifacts, self._run_id))
        await self._store.add_run(
            Run(run_id=self._run_id, name=self._config.name, experiment=experiment, config=config, metadata=place)
        )
        await self._store.update_run(
            self._run_id, experiment=experiment, status="running", config=config, metadata=place
        )
        await self._store.rewind_run(self._run_id, step)
        for tail in (self._metrics, self._versions):
            tail.rewind()
        self._kept.clear()
        await self.catch_up()

    async def catch_up(self) -> None:
        """Write new lines of the folder into the store; does nothing before `begin`."""
        if not self._run_id:
            return
        lines = [step_metrics(msgspec.json.decode(line)) for line in self._metrics.read()]
        if lines:
            await self._store.add_metrics(self._run_id, lines)
        latest = {v.version: v for v in (msgspec.json.decode(x, type=ModelVersion) for x in self._versions.read())}
        await self._write_versions(list(latest.values()))
        for number in [number for number, path in self._kept.items() if not is_checkpoint(path)]:
            del self._kept[number]
            for policy in self._config.policies or (POLICY,):
                await self._store.update_policy_version(self._run_id, number, policy, path=None)

    async def _write_versions(self, changed: list[ModelVersion]) -> None:
        wanted = [one for version in changed for one in self._records_of(version)]
        if not wanted:
            return
        for new, stored in zip(wanted, await self._store.add_policy_versions(wanted), strict=True):
            if (stored.path, stored.metrics) != (new.path, new.metrics):
                key = (new.run_id, new.version, new.policy)
                await self._store.update_policy_version(*key, path=new.path, metrics=new.metrics)

    def _records_of(self, version: ModelVersion) -> list[PolicyVersion]:
        """Return one record for each policy; of a run without a policy, one record under the usual name.

        `path` is that of the checkpoint, or for version 0 of the initial policy.
        """
        checkpoint = None if version.weights is None else self._folder.path.resolve() / version.weights
        if checkpoint is not None and is_checkpoint(checkpoint):
            self._kept[version.version] = checkpoint
        else:
            checkpoint = None
        records: list[PolicyVersion] = []
        metadata: dict[str, Any] = {"algorithm": version.algorithm, "seed": version.seed}
        if version.resources_id is not None:
            metadata["resources_id"] = version.resources_id
        sources: Mapping[str, str | None] = self._config.policies or {POLICY: None}
        for policy, source in sources.items():
            path = None if checkpoint is None else str(checkpoint / policy if self._config.has_names else checkpoint)
            own = version.of_side(policy) if policy in version.sides else version
            records.append(
                PolicyVersion(
                    run_id=self._run_id,
                    policy=policy,
                    version=version.version,
                    parent=version.parent,
                    path=source if version.version == 0 else path,
                    metrics=version_metrics(own),
                    metadata=metadata,
                    create_time=version.created,
                )
            )
        return records

    async def end(self) -> None:
        """Record that the run succeeded."""
        await self.catch_up()
        if self._run_id:
            await self._store.update_run(self._run_id, status="succeeded")

    async def end_badly(self, status: RunStatus) -> None:
        """Record that the run failed or was stopped. Errors of the store are logged: another error came first."""
        try:
            await self.catch_up()
            if self._run_id:
                await self._store.update_run(self._run_id, status=status)
        except (StoreError, OSError) as error:
            logger.warning("run %s: its status %s could not be stored: %s", self._run_id, status, error)


def status_after(error: BaseException) -> RunStatus:
    """Return the status of a run whose session was ended by `error`."""
    return "stopped" if isinstance(error, asyncio.CancelledError | KeyboardInterrupt) else "failed"


def step_metrics(line: Mapping[str, Any]) -> StepMetrics:
    """Convert a line of `metrics.jsonl` into the metrics of its step."""
    step = int(line["step"])
    if "alert" in line:
        return StepMetrics(step=step, notes={f"alert/{line['alert']}": str(line["message"])})
    if "held_out" not in line:
        return StepMetrics(step=step, values=numbers(line), notes=line.get("notes", {}))
    how = "success" if "success" in line else "sampled"
    name = f"held_out/{line['held_out']}/{how}"
    sides = {f"{side}/{name}": success for side, success in line.get("sides", {}).items()}
    return StepMetrics(step=step, values=numbers({name: line[how], **sides}))


def version_metrics(version: ModelVersion) -> dict[str, float]:
    """Return the metrics of the step that produced a version, and its scores."""
    evaluations = {"success": version.held_out, "sampled": version.sampled}
    scores = {f"held_out/{name}/{how}": own.success for how, sets in evaluations.items() for name, own in sets.items()}
    return numbers({**version.metrics, **scores})


class _Tail:
    """Reader of a growing file: returns the complete lines added since the last read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def rewind(self) -> None:
        self._read = 0

    def read(self) -> list[bytes]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, _, _ = file.read().rpartition(b"\n")
        if not whole:
            return []
        self._read += len(whole) + 1
        return [line for line in whole.split(b"\n") if line]

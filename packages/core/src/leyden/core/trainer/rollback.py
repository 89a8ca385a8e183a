"""Takes a run back to an earlier version: what came after is set aside in the run's folder, and nothing destroyed.

The next sitting goes on from there, and runs rollouts of its own for the steps it takes again. Killed at any moment, a
rollback can be done again.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.errors import RunError
from leyden.core.policy.atomic import whole_folder
from leyden.core.trainer.folder import RunFolder
from leyden.core.trainer.keeping import Kept
from leyden.core.trainer.models import Models
from leyden.core.trainer.versions import ModelVersion, write_versions
from leyden.core.trainer.weights import weights_of

_STEP = re.compile(r"step-(\d{8})(\.\d+)?")
RESULTS = ("report.json", "reward_curve.png", "policy", "policy-last", "policy-adapter", "policy-last-adapter")


class RolledBack(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollback did."""

    run: str
    version: int
    """The version that the run goes on from."""
    versions: list[int]
    """Those that were set aside."""
    set_aside: str
    """The folder they are in now."""


def roll_back(models: Models, version: ModelVersion) -> RolledBack:
    """Take the run back to `version`.

    Raises RunError when its checkpoint is not kept, nothing came after it, or the run is being trained.
    """
    folder, number = models.folder, version.version
    name = folder.path.name
    if number == 0:
        raise RunError(f"version 0 is what run {name!r} began with, and no checkpoint; begin a new run instead")
    checkpoint = weights_of(models.file, version)
    with folder.locked():
        later = _later(folder, number)
        versions = [known for known in models.versions.values() if known.version > number]
        if not later and not versions:
            raise RunError(f"version {number} is the last of run {name!r}; there is nothing to set aside")
        place = _next(folder.path / "set_aside")
        with whole_folder(place) as pending:
            (pending / "checkpoints").mkdir()
            write_versions(pending / "versions.jsonl", versions)
            lines = [msgspec.json.encode(line) + b"\n" for line in folder.metrics() if line["step"] > number]
            (pending / "metrics.jsonl").write_bytes(b"".join(lines))
        _change_progress(checkpoint, models, version, lineage=f"r{place.name}-")
        for path in later:
            path.rename(place / "checkpoints" / path.name)
        for result in RESULTS:
            if (folder.path / result).exists():
                shutil.move(folder.path / result, place / result)
        folder.rewind_metrics(number)
        models.file.rewind(number)
    return RolledBack(run=name, version=number, versions=[known.version for known in versions], set_aside=str(place))


def _later(folder: RunFolder, number: int) -> list[Path]:
    """Checkpoints of later steps, the last first: moved one by one, what is left is always a run that can go on."""
    found = [(match, path) for path in folder.checkpoints.iterdir() if (match := _STEP.fullmatch(path.name))]
    later = [path for match, path in found if int(match[1]) > number]
    return sorted(later, key=lambda path: path.name, reverse=True)


def _next(place: Path) -> Path:
    taken = [int(path.name) for path in place.glob("*") if path.name.isdecimal()]
    return place / str(max(taken, default=0) + 1)


def _change_progress(checkpoint: Path, models: Models, version: ModelVersion, *, lineage: str) -> None:
    """Let the checkpoint know that its future is a new one."""
    file = checkpoint / "progress.json"
    progress: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    standing: dict[str, Any] = {**progress.get("standing", {}), "stopped": None}
    kept = standing.get("kept")
    if kept is not None and kept["version"] and models.versions[kept["version"]].weights is None:
        standing["kept"] = _kept_now(models, version, kept["evaluations"])
    temporary = file.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as opened:
        json.dump({**progress, "lineage": lineage, "standing": standing}, opened)
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(temporary, file)


def _kept_now(models: Models, version: ModelVersion, evaluations: int) -> dict[str, Any] | None:
    """The best version then has made way for a better one since: what is left to be kept is where the run is now."""
    headline = models.config.held_out[0].name
    evaluation = version.held_out.get(headline)
    if evaluation is None or evaluation.success is None:
        return None
    kept = Kept.first(version.version, evaluation)
    return msgspec.to_builtins(msgspec.structs.replace(kept, evaluations=evaluations))

"""Takes a run back to an earlier version: what came after is set aside in the run's folder, and nothing destroyed.

The next sitting goes on from there, and runs rollouts of its own for the steps it takes again. Killed at any moment, a
rollback has not happened, or it has: what is left to be moved then is moved by whoever opens the run next.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.errors import NotFound, RunError, StoreError, UsageError
from leyden.core.policy.checkpoints.atomic import whole_folder
from leyden.core.store.open import open_store
from leyden.core.trainer.rollouts.interrupted import set_aside
from leyden.core.trainer.run_folder.early_stopping import Kept
from leyden.core.trainer.run_folder.folder import LEARNED, RunFolder
from leyden.core.trainer.run_folder.models import Models
from leyden.core.trainer.run_folder.move_journal import NEW, SET_ASIDE, Move, end_moves, plan_moves
from leyden.core.trainer.run_folder.versions import ModelVersion, write_versions
from leyden.core.trainer.run_folder.weights import weights_of

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
    untold: str | None = None
    """Why the run's store could not be told, where it could not: it is when the run goes on."""


def roll_back(models: Models, version: ModelVersion) -> RolledBack:
    """Take the run back to `version`, in its folder and then in the records of its store. Not for event loops.

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
        place = _next(folder.path / SET_ASIDE)
        with whole_folder(place) as pending:
            (pending / "checkpoints").mkdir()
            (pending / NEW).mkdir()
            write_versions(pending / "versions.jsonl", versions)
            write_versions(pending / NEW / "versions.jsonl", [v for v in models.versions.values() if v not in versions])
            _divide_metrics(folder, number, pending)
            progress = _changed_progress(checkpoint, models, version, lineage=f"r{place.name}-")
            (pending / NEW / "progress.json").write_text(json.dumps(progress), encoding="utf-8")
            plan_moves(pending, _moves(folder, checkpoint, later, place))
        end_moves(folder.path)
        untold = asyncio.run(_tell_store(folder, number))  # while nobody can go on with the run, and write to it
    aside = [known.version for known in versions]
    return RolledBack(run=name, version=number, versions=aside, set_aside=str(place), untold=untold)


async def _tell_store(folder: RunFolder, number: int) -> str | None:
    """Have the run's records end at a version; returns why they do not, if they do not."""
    run_id = folder.known_run_id()
    if run_id is None or not folder.store_file.exists():
        return None  # nothing was recorded yet
    try:
        await set_aside(folder.store_uri)  # what a killed sitting left must not fall due meanwhile
        store = await open_store(folder.store_uri)
        try:
            await store.rewind_run(run_id, number)
            await store.update_run(run_id, status="stopped")
        finally:
            await store.close()
    except NotFound:
        return None
    except (StoreError, UsageError, OSError) as error:
        return " ".join(str(error).split())
    return None


def _moves(folder: RunFolder, checkpoint: Path, later: list[Path], place: Path) -> list[Move]:
    """What is set aside in `place`, and what takes the place of what the run keeps."""
    aside, kept = f"{SET_ASIDE}/{place.name}", checkpoint.relative_to(folder.path)
    return [
        *((f"checkpoints/{path.name}", f"{aside}/checkpoints/{path.name}") for path in later),
        *((result, f"{aside}/{result}") for result in RESULTS),
        (f"{aside}/{NEW}/progress.json", f"{kept}/progress.json"),
        (f"{aside}/{NEW}/metrics.jsonl", "metrics.jsonl"),
        (f"{aside}/{NEW}/{LEARNED}", LEARNED),
        (f"{aside}/{NEW}/versions.jsonl", "versions.jsonl"),
    ]


def _divide_metrics(folder: RunFolder, number: int, pending: Path) -> None:
    """Write the lines after step `number`, which are set aside, and those that the run keeps."""
    after: list[bytes] = []
    kept: list[bytes] = []
    for line in folder.metrics():
        (after if line["step"] > number else kept).append(msgspec.json.encode(line) + b"\n")
    (pending / "metrics.jsonl").write_bytes(b"".join(after))
    (pending / NEW / "metrics.jsonl").write_bytes(b"".join(kept))
    learned = folder.learned()
    for place, lines in (
        (pending / LEARNED, [line for line in learned if line.step > number]),
        (pending / NEW / LEARNED, [line for line in learned if line.step <= number]),
    ):
        place.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _later(folder: RunFolder, number: int) -> list[Path]:
    """Checkpoints of later steps."""
    found = [(match, path) for path in folder.checkpoints.iterdir() if (match := _STEP.fullmatch(path.name))]
    return sorted(path for match, path in found if int(match[1]) > number)


def _next(place: Path) -> Path:
    taken = [int(path.name) for path in place.glob("*") if path.name.isdecimal()]
    return place / str(max(taken, default=0) + 1)


def _changed_progress(checkpoint: Path, models: Models, version: ModelVersion, *, lineage: str) -> dict[str, Any]:
    """The progress in the checkpoint, which is to know that its future is a new one."""
    progress: dict[str, Any] = json.loads((checkpoint / "progress.json").read_text(encoding="utf-8"))
    standing: dict[str, Any] = {**progress.get("standing", {}), "stopped": None}
    kept = standing.get("kept")
    if kept is not None and kept["version"] and models.versions[kept["version"]].weights is None:
        standing["kept"] = _kept_now(models, version, kept["evaluations"])
    return {**progress, "lineage": lineage, "standing": standing}


def _kept_now(models: Models, version: ModelVersion, evaluations: int) -> dict[str, Any] | None:
    """The best version then has made way for a better one since: what is left to be kept is where the run is now."""
    headline = models.config.held_out[0].name
    evaluation = version.held_out.get(headline)
    if evaluation is None or evaluation.success is None:
        return None
    kept = Kept.first(version.version, evaluation)
    return msgspec.to_builtins(msgspec.structs.replace(kept, evaluations=evaluations))

"""Rollback: returns a run to an earlier version; everything later is moved aside within its folder, not deleted.

The next session continues from that version, with new rollouts for the steps it repeats. If the process is killed, the
rollback has either not happened or happened: the next process that opens the run completes the remaining moves.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.errors import NotFound, RunError, StoreError, UsageError
from leyden.core.policy.checkpoints.atomic import whole_folder
from leyden.core.trainer.rollouts.interrupted import set_aside
from leyden.core.trainer.run_folder.early_stopping import BestVersion
from leyden.core.trainer.run_folder.folder import LEARNED, RunFolder
from leyden.core.trainer.run_folder.models import Models
from leyden.core.trainer.run_folder.move_journal import NEW, SET_ASIDE, Move, end_moves, plan_moves
from leyden.core.trainer.run_folder.token_records import TOKENS
from leyden.core.trainer.run_folder.versions import ModelVersion, write_versions
from leyden.core.trainer.run_folder.weights import weights_of

_STEP = re.compile(r"step-(\d{8})(\.\d+)?")
RESULTS = (
    *("report.json", "reward_curve.png", "algorithm_state.json", "prompts"),
    *("policy", "policy-last", "policy-adapter", "policy-last-adapter"),
)


class RolledBack(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a rollback."""

    run: str
    version: int
    """Version from which the run continues."""
    versions: list[int]
    """Versions that were moved aside."""
    set_aside: str
    """Folder that now holds them."""
    untold: str | None = None
    """Why the run's store could not be updated; None if it was. The store is otherwise updated when the run is
    resumed."""


def roll_back(models: Models, version: ModelVersion) -> RolledBack:
    """Return the run to `version`, in its folder and then in the records of its store.

    Do not call this on an event loop: it starts one. Raises RunError when the version's checkpoint is not kept, nothing
    came after it, or the run is being trained.
    """
    folder, number = models.folder, version.version
    name = folder.path.name
    if number == 0:
        raise RunError(f"version 0 is what run {name!r} began with, and has no checkpoint; start a new run instead")
    checkpoint = weights_of(models.file, version)
    with folder.locked():
        later = _later(folder, number)
        versions = [known for known in models.versions.values() if known.version > number]
        if not later and not versions:
            raise RunError(f"version {number} is the last of run {name!r}; there is no later version to set aside")
        target = _next(folder.path / SET_ASIDE)
        with whole_folder(target) as pending:
            (pending / "checkpoints").mkdir()
            (pending / TOKENS).mkdir()
            (pending / NEW).mkdir()
            write_versions(pending / "versions.jsonl", versions)
            write_versions(pending / NEW / "versions.jsonl", [v for v in models.versions.values() if v not in versions])
            _divide_metrics(folder, number, pending)
            progress = _changed_progress(checkpoint, models, version, lineage=f"r{target.name}-")
            (pending / NEW / "progress.json").write_text(json.dumps(progress), encoding="utf-8")
            plan_moves(pending, _moves(folder, checkpoint, number, later, target))
        end_moves(folder.path)
        # inside the lock, so that no other process resumes the run and writes to it
        untold = asyncio.run(_rewind_store(folder, number))
    aside = [known.version for known in versions]
    return RolledBack(run=name, version=number, versions=aside, set_aside=str(target), untold=untold)


async def _rewind_store(folder: RunFolder, number: int) -> str | None:
    """Remove later records of the run from its store; return why this failed, or None."""
    run_id = folder.known_run_id()
    if run_id is None:
        return None  # nothing was recorded yet
    try:
        location = folder.store_location
        if not location.exists:
            return None
        await set_aside(location)  # rollouts of a killed session must not time out meanwhile
        store = await location.open()
        try:
            await store.rewind_run(run_id, number)
            await store.update_run(run_id, status="stopped")
        finally:
            await store.close()
    except NotFound:
        return None
    except (StoreError, RunError, UsageError, OSError) as error:
        return " ".join(str(error).split())
    return None


def _moves(folder: RunFolder, checkpoint: Path, number: int, later: list[Path], target: Path) -> list[Move]:
    """Return the moves of later files into `target`, and of replacement files into the run's folder."""
    aside, kept = f"{SET_ASIDE}/{target.name}", checkpoint.relative_to(folder.path)
    return [
        *((f"checkpoints/{path.name}", f"{aside}/checkpoints/{path.name}") for path in later),
        *((result, f"{aside}/{result}") for result in RESULTS),
        *((f"{TOKENS}/{path.name}", f"{aside}/{TOKENS}/{path.name}") for path in folder.token_records.after(number)),
        (f"{aside}/{NEW}/progress.json", f"{kept}/progress.json"),
        (f"{aside}/{NEW}/metrics.jsonl", "metrics.jsonl"),
        (f"{aside}/{NEW}/{LEARNED}", LEARNED),
        (f"{aside}/{NEW}/versions.jsonl", "versions.jsonl"),
    ]


def _divide_metrics(folder: RunFolder, number: int, pending: Path) -> None:
    """Split metrics and `learned.jsonl`: lines after step `number` are set aside, the others are kept."""
    after: list[bytes] = []
    kept: list[bytes] = []
    for line in folder.metrics():
        (after if line["step"] > number else kept).append(msgspec.json.encode(line) + b"\n")
    (pending / "metrics.jsonl").write_bytes(b"".join(after))
    (pending / NEW / "metrics.jsonl").write_bytes(b"".join(kept))
    learned = folder.learned()
    for file, lines in (
        (pending / LEARNED, [line for line in learned if line.step > number]),
        (pending / NEW / LEARNED, [line for line in learned if line.step <= number]),
    ):
        file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _later(folder: RunFolder, number: int) -> list[Path]:
    """Return the checkpoints of later steps."""
    found = [(match, path) for path in folder.checkpoints.iterdir() if (match := _STEP.fullmatch(path.name))]
    return sorted(path for match, path in found if int(match[1]) > number)


def _next(parent: Path) -> Path:
    taken = [int(path.name) for path in parent.glob("*") if path.name.isdecimal()]
    return parent / str(max(taken, default=0) + 1)


def _changed_progress(checkpoint: Path, models: Models, version: ModelVersion, *, lineage: str) -> dict[str, Any]:
    """Return the checkpoint's progress with a new lineage, and without an early stop."""
    progress: dict[str, Any] = json.loads((checkpoint / "progress.json").read_text(encoding="utf-8"))
    selection: dict[str, Any] = {**progress.get("standing", {}), "stopped": None}
    kept = selection.get("kept")
    if kept is not None and kept["version"] and models.versions[kept["version"]].weights is None:
        selection["kept"] = _kept_now(models, version, kept["evaluations"])
    return {**progress, "lineage": lineage, "standing": selection}


def _kept_now(models: Models, version: ModelVersion, evaluations: int) -> dict[str, Any] | None:
    """Return the new kept state: the weights of the version that was best then are gone, so the current one is kept."""
    headline = models.config.held_out[0].name
    evaluation = version.held_out.get(headline)
    if evaluation is None or evaluation.success is None:
        return None
    kept = BestVersion.first(version.version, evaluation)
    return msgspec.to_builtins(msgspec.structs.replace(kept, evaluations=evaluations))

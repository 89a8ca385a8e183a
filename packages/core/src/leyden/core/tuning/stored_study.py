"""A study as its folder holds it, wherever that was copied to: read without Optuna, a lock, or a write."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from leyden.core.errors import LeydenError, RunError, first_line
from leyden.core.experiments.record import has_no_spread
from leyden.core.masking import mask_values
from leyden.core.trainer.config import EvaluationSet
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.run_lock import is_file_locked
from leyden.core.tuning.plan import STUDY_FILE, StudyPlan, WrittenStudy
from leyden.core.tuning.results import Confirmation, StudyResult, confirmation_of
from leyden.core.tuning.settings import values_of
from leyden.core.tuning.space import read_space
from leyden.core.tuning.trial import Trial

BEST_FILE, LOCK_FILE = "best.yaml", "study.lock"
_CONFIRMATION = re.compile(r"confirm-(\d+)-seed-(\d+)")


def read_plan(folder: Path) -> StudyPlan:
    """Return the plan of the study in `folder`, as `study.json` has it; raises RunError if that cannot be read."""
    path = folder / STUDY_FILE
    try:
        written = msgspec.json.decode(path.read_bytes(), type=WrittenStudy)
        settings = written.settings
        return StudyPlan(
            name=str(settings["experiment"]),
            folder=folder,
            base=settings,
            space=read_space([f"{key}={domain}" for key, domain in written.search.items()], f"{path}: search"),
            measured=msgspec.convert(settings["held_out"][0], EvaluationSet),
            eval_every=int(settings["eval_every"]),
            seeds=tuple(written.seeds),
            sampler_seed=written.sampler_seed,
            prunes=written.prunes,
        )
    except (OSError, msgspec.MsgspecError, LeydenError, KeyError, IndexError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {first_line(error)}") from None


def is_running(folder: Path) -> bool:
    """Whether a `leyden tune` works on the study in `folder` on this machine."""
    try:
        return is_file_locked(folder / LOCK_FILE)
    except OSError:  # a file that may not be read
        return False


def stored_confirmation(plan: StudyPlan, result: StudyResult) -> tuple[int, Confirmation] | None:
    """Return what the newest confirmation in a study's folder came to, and the number of the trial that it measured.

    None if there is none. A run that has not ended is among the failures.
    """
    if result.default is None:
        return None
    runs: dict[int, dict[int, Path]] = {}
    for path in plan.folder.glob("confirm-*-seed-*/config.yaml"):
        if (found := _CONFIRMATION.fullmatch(path.parent.name)) is not None:
            runs.setdefault(int(found[1]), {})[int(found[2])] = path.parent
    default = runs.pop(result.default.number, {})
    if not runs:
        return None
    best = result.best.number if result.best is not None else -1
    number = best if best in runs else max(runs, key=lambda one: max(map(_began, runs[one].values())))
    arms = runs[number], default
    seeds = tuple(sorted(runs[number].keys() | default.keys()))
    failures = [
        f"{path.name}: {RunFolder(path).failure() or 'it has not ended'}"
        for arm in arms
        for path in arm.values()
        if not _has_ended(path)
    ]
    ended = [{seed: path for seed, path in arm.items() if _has_ended(path)} for arm in arms]
    return number, confirmation_of(plan, _measured(arms), seeds, (ended[0], ended[1]), failures)


def _has_ended(path: Path) -> bool:
    """Whether a run has a result: it took its last step, or had nothing left to learn."""
    run = RunFolder(path)
    return run.report_file.exists() or (has_no_spread(run) and not run.is_in_use())


def _began(run: Path) -> float:
    return (run / "config.yaml").stat().st_mtime


def _measured(arms: tuple[Mapping[int, Path], ...]) -> EvaluationSet:
    path = next(path for arm in arms for path in arm.values())
    return msgspec.convert(RunFolder(path).written_config()["held_out"][0], EvaluationSet)


def stored_best(plan: StudyPlan, best: Trial | None) -> tuple[str, bool] | None:
    """Return the settings in `best.yaml` as YAML with secrets masked, and whether they are those of the best trial.

    None if the study has not reported yet. Raises RunError if the file cannot be read.
    """
    path = plan.folder / BEST_FILE
    try:
        settings: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict):
        raise RunError(f"{path} holds no mapping")
    own = cast("dict[str, Any]", settings)
    text = yaml.safe_dump(mask_values(own), sort_keys=False, allow_unicode=True)
    return text, best is not None and values_of(own, plan.space) == dict(best.values)

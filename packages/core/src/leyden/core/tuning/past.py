"""Past runs as trials: finished runs that differ from a study's default configuration only in the searched keys."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from leyden.core.algorithm.registry import make_algorithm
from leyden.core.data.rollout import Task
from leyden.core.errors import LeydenError, first_line
from leyden.core.experiments.settings import difference, used_files
from leyden.core.trainer.config import RunConfig, load_config
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.tuning.evaluations import last_scores, scores_on_the_way
from leyden.core.tuning.plan import StudyPlan
from leyden.core.tuning.settings import values_of, with_settings
from leyden.core.tuning.space import Value

UNIMPORTANT = (
    *("name", "experiment", "seed", "check", "checkpoint_every", "keep_checkpoints", "tracker", "engine_log"),
    *("evaluate_sampled", "held_out", "tasks", "sides", "acting"),
)
"""Settings that change nothing that a run learns, and those that are compared by what they name."""
MOST_REASONS = 5


@dataclass(frozen=True, slots=True)
class PastTrial:
    """Past runs with the same values, one for each seed of the study."""

    values: Mapping[str, Value]
    runs: tuple[Path, ...]
    score: float
    reported: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class PastRuns:
    """What was found of past runs."""

    trials: list[PastTrial] = field(default_factory=list[PastTrial])
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Number of runs that are of no use, by the reason why."""

    def lines(self) -> list[str]:
        """Return what to show a user."""
        count = sum(len(trial.runs) for trial in self.trials)
        if not count and not self.left_out:
            return ["past runs: none were found"]
        lines = [f"past runs: {count} became {len(self.trials)} trials; {self.left_out.total()} were left out"]
        reasons = self.left_out.most_common()
        lines += [f"  {count}: {reason}" for reason, count in reasons[:MOST_REASONS]]
        rest = sum(count for _, count in reasons[MOST_REASONS:])
        return lines + ([f"  {rest}: for other reasons"] if rest else [])


def find_past(runs: Path, plan: StudyPlan, tasks: Sequence[Task], held_out: Sequence[Task]) -> PastRuns:
    """Look through the runs in `runs` and in its experiments. `tasks` and `held_out` are those of the study.

    A run is used if it has finished, has one of the study's seeds, and would be a trial with the values that it has.
    Files of the agent, the reward and the policy must not have changed since it began.
    """
    found = PastRuns()
    by_values: dict[tuple[tuple[str, Value], ...], dict[int, Path]] = {}
    for config_file in sorted([*runs.glob("*/config.yaml"), *runs.glob("*/*/config.yaml")]):
        path = config_file.parent
        if plan.folder.resolve() in path.resolve().parents:
            continue
        try:
            config = load_config(config_file)
            reason = _unusable(path, config, plan, tasks, held_out)
            values = values_of(msgspec.to_builtins(config), plan.space) if reason is None else {}
        except LeydenError as error:
            config, values, reason = None, {}, first_line(error)
        if config is None or reason is not None:
            found.left_out[str(reason)] += 1
        elif config.seed in (same := by_values.setdefault(tuple(sorted(values.items())), {})):
            found.left_out["another run has the same settings and seed"] += 1
        else:
            same[config.seed] = path
    for values, by_seed in by_values.items():
        _add(found, dict(values), by_seed, plan)
    return found


def _add(found: PastRuns, values: dict[str, Value], by_seed: Mapping[int, Path], plan: StudyPlan) -> None:
    if missing := [seed for seed in plan.seeds if seed not in by_seed]:
        found.left_out[f"no run with the same settings has seed {missing[0]}"] += len(by_seed)
        return
    paths = tuple(by_seed[seed] for seed in plan.seeds)
    scores = [last_scores(path, plan.measure) for path in paths]
    score = fmean(fmean(one.values()) for one in scores if one)
    found.trials.append(PastTrial(values, paths, score, scores_on_the_way(paths, plan.measure)))


def _unusable(
    path: Path, config: RunConfig, plan: StudyPlan, tasks: Sequence[Task], held_out: Sequence[Task]
) -> str | None:
    """Return why a run cannot be a trial; None if it can."""
    folder = RunFolder(path)
    if not folder.report_file.exists():
        return "it has not finished"
    settings: dict[str, Any] = msgspec.to_builtins(config)
    values = values_of(settings, plan.space)
    if (outside := next((key for key in plan.space if key not in values), None)) is not None:
        return f"its {outside} is outside the search"
    ours = {**with_settings(plan.settings(None), plan.space, values), "name": path.name}
    change = difference(_comparable(config), _comparable(msgspec.convert(ours, RunConfig)))
    if change is not None:
        return change
    if config.seed not in plan.seeds:
        return f"seed {config.seed} is none of the study's"
    return _other_content(folder, config, plan, tasks, held_out)


def _other_content(
    folder: RunFolder, config: RunConfig, plan: StudyPlan, tasks: Sequence[Task], held_out: Sequence[Task]
) -> str | None:
    if plan.measured.name not in [held.name for held in config.held_out]:
        return f"it was not evaluated on {plan.measured.name}"
    if folder.tasks(plan.measured.name) != list(held_out):
        return f"its held-out set {plan.measured.name} has other tasks"
    if (folder.tasks() if config.tasks else []) != list(tasks):
        return "it has other training tasks"
    began = folder.tasks_file(plan.measured.name).stat().st_mtime
    for path in used_files({"agent": config.agent, "reward": config.reward, "policy": config.policy}):
        if Path(path).stat().st_mtime > began:
            return f"{path} was changed after it began"
    if not last_scores(folder.path, plan.measure):
        return f"it has no result on {plan.measured.name}"
    return None


def _comparable(config: RunConfig) -> dict[str, Any]:
    """Return what decides what a run learns, in one form: every option of the algorithm, and no names."""
    found: dict[str, Any] = msgspec.to_builtins(config)
    algorithm = make_algorithm(config.algorithm, config.algorithm_config)
    # An evaluation changes what is learned only if it may end the run.
    left_out = UNIMPORTANT if config.patience is not None else (*UNIMPORTANT, "eval_every")
    return {**{k: v for k, v in found.items() if k not in left_out}, "algorithm_config": algorithm.settings()}

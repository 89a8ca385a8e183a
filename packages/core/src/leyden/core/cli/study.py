"""Study of `leyden tune`: reads its options into a plan, and checks every value of the search before anything runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leyden.core.cli.experiment_file import read_seeds
from leyden.core.cli.options import held_out_name, read_held_out
from leyden.core.cli.run_file import read_run_file, run_config
from leyden.core.data.rollout import Task
from leyden.core.errors import UsageError, did_you_mean
from leyden.core.experiments.settings import Settings
from leyden.core.policy.source import check_source
from leyden.core.trainer.config import NAME, EvaluationSet
from leyden.core.trainer.rollouts.tasks import load_tasks
from leyden.core.tuning.optuna_library import check_installed
from leyden.core.tuning.plan import STUDY_FILE, StudyPlan, evaluations_every
from leyden.core.tuning.settings import setting_path
from leyden.core.tuning.space import Range, Space, Value, example_combinations, read_space, value_text

MOST_CHECKED = 300
"""Largest number of combinations that are checked before anything runs, in addition to every value alone."""
PER_RUN = ("name", "experiment", "seed")
"""Settings of a run file that the study gives each run."""
MOST_NAME = 40
FRESH_SEEDS = 3
"""Number of seeds of a confirmation if none are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """Options of `leyden tune` that decide what is searched, as given."""

    config: Path
    search: Sequence[str]
    name: str | None
    seeds: str
    steps: int | None
    val: Sequence[str]
    measure: str | None
    eval_every: int | None
    prune: bool
    sampler_seed: int
    confirm: str | None
    confirm_seeds: str | None
    runs: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A checked study: its plan and its tasks, and what confirms its best trial."""

    plan: StudyPlan
    tasks: list[Task]
    held_out: list[Task]
    confirm: EvaluationSet | None
    """Held-out set of the confirmation; None without one."""
    confirm_seeds: tuple[int, ...]


def read_study(given: StudyOptions) -> Study:
    """Return the study that the options describe.

    Raises UsageError, with one line, if the run file, a key, a range, a set or any value of the search cannot work.
    """
    check_installed()
    base = _base(given)
    space = read_space(given.search)
    for key in space:
        setting_path(key, base)
    seeds = read_seeds(given.seeds, "--seeds")
    sets = [EvaluationSet(name=one["name"], source=one["source"]) for one in base.get("held_out") or ()]
    plan = StudyPlan(
        name=_name(given),
        folder=given.runs / _name(given),
        base=base,
        space=space,
        measured=_measured(given, sets),
        eval_every=evaluations_every(given.eval_every, base, int(base.get("steps", 25))),
        seeds=seeds,
        sampler_seed=given.sampler_seed,
        prunes=given.prune,
    )
    confirm, fresh = _confirmation(given, plan, sets)
    tasks = load_tasks(base["tasks"]) if base.get("tasks") else []
    loaded = read_held_out([{"name": plan.measured.name, "source": plan.measured.source}])
    if confirm is not None:
        read_held_out([{"name": confirm.name, "source": confirm.source}])
    _check_values(plan, space, tasks)
    _check_folder(plan)
    return Study(plan=plan, tasks=tasks, held_out=loaded[plan.measured.name], confirm=confirm, confirm_seeds=fresh)


def _base(given: StudyOptions) -> Settings:
    """Return the settings of the run file with those of the command, without what each trial has of its own."""
    if not given.config.is_file():
        raise UsageError(f"--config: there is no file {given.config}")
    base = {key: value for key, value in read_run_file(given.config).items() if key not in PER_RUN}
    if given.val:
        base["held_out"] = [{"name": held_out_name(source), "source": source} for source in given.val]
    if given.steps is not None:
        base["steps"] = given.steps
    if base.get("steps") == 0:
        raise UsageError("steps 0 trains nothing, so no setting can be better; give --steps")
    return base


def _name(given: StudyOptions) -> str:
    stem = "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in given.config.stem)
    name = given.name or f"{stem[: MOST_NAME - 5]}-tune".lstrip("-._")
    if not NAME.fullmatch(name) or len(name) > MOST_NAME:
        raise UsageError(f"--name must match {NAME.pattern} and have at most {MOST_NAME} characters, not {name!r}")
    return name


def _measured(given: StudyOptions, sets: Sequence[EvaluationSet]) -> EvaluationSet:
    if not sets:
        raise UsageError(f"{given.config} has no held-out set, by which trials are compared; give --val SOURCE")
    if given.measure is None:
        return sets[0]
    found = next((one for one in sets if one.name == given.measure), None)
    if found is None:
        names = [one.name for one in sets]
        advice = did_you_mean(given.measure, names) or f"; there is {', '.join(names)}"
        raise UsageError(f"--measure: there is no held-out set {given.measure!r}{advice}")
    return found


def _confirmation(
    given: StudyOptions, plan: StudyPlan, sets: Sequence[EvaluationSet]
) -> tuple[EvaluationSet | None, tuple[int, ...]]:
    """Return the held-out set and the seeds of the confirmation; no set without a confirmation."""
    first = max(plan.seeds) + 1
    seeds = tuple(range(first, first + FRESH_SEEDS))
    if given.confirm_seeds is not None:
        seeds = read_seeds(given.confirm_seeds, "--confirm-seeds")
        if used := [seed for seed in seeds if seed in plan.seeds]:
            raise UsageError(f"--confirm-seeds: the study has trained with seed {used[0]}; give other seeds")
    if given.confirm is None:
        return (None if given.confirm_seeds is None else plan.measured), seeds
    named = next((one for one in sets if one.name == given.confirm), None)
    return named or EvaluationSet(name=held_out_name(given.confirm), source=given.confirm), seeds


def _check_folder(plan: StudyPlan) -> None:
    """Raise UsageError if the study's folder is something else."""
    folder = plan.folder
    if folder.exists() and not (folder / STUDY_FILE).exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} exists and is no study; give another --name")


def _check_values(plan: StudyPlan, space: Space, tasks: list[Task]) -> None:
    """Raise UsageError, with one line, for a value that no run can have: each alone, then together with others."""
    _check_run(plan.settings(None), str(plan.name), tasks)
    for key, domain in space.items():
        for value in domain.examples():
            _check(plan, {key: value}, tasks)
            _check_files(key, value)
    for values in example_combinations(space, MOST_CHECKED):
        _check(plan, values, tasks)


def _check_files(key: str, value: Value) -> None:
    """Raise UsageError for tasks or a policy of the search that are not there."""
    try:
        if key == "tasks":
            load_tasks(str(value))
        if key == "policy":
            check_source(str(value))
    except UsageError as error:
        raise UsageError(f"--search {key}={value_text(value)}: {error}") from None


def _check(plan: StudyPlan, values: Mapping[str, Value], tasks: list[Task]) -> None:
    label = " ".join(f"--search {key}={value_text(value)}" for key, value in values.items())
    try:
        _check_run(plan.settings(values), label, tasks)
    except UsageError as error:
        text = str(error)
        needs_int = "whole number" in text and any(
            isinstance(one, Range) and not one.whole for one in plan.space.values()
        )
        hint = "; end the range in :int" if needs_int else ""
        raise UsageError(f"{text if text.startswith(label) else f'{label}: {text}'}{hint}") from None


def _check_run(settings: Mapping[str, Any], label: str, tasks: list[Task]) -> None:
    from leyden.core.trainer.launch import check_needed, with_sides

    config = run_config({**settings, "name": "trial"}, label)
    check_needed(config, tasks)
    with_sides(config)

"""Experiment file: reads the definition of an experiment from YAML, and checks the settings of every arm."""

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, cast

import msgspec

from leyden.core.algorithm.registry import make_algorithm
from leyden.core.cli.options import read_yaml
from leyden.core.cli.run_file import check_names, check_settings, converted, read_run_file, run_config
from leyden.core.errors import UsageError, did_you_mean
from leyden.core.experiments.definition import Expected, Experiment, Measure, Preparation
from leyden.core.experiments.plan import PREPARED, Plan
from leyden.core.experiments.settings import USUAL, overridden, references
from leyden.core.trainer.config import NAME

FOLDER = Path("experiments")
"""Folder in which an experiment is found by its name."""
PER_RUN = ("name", "experiment", "seed")
"""Settings that the experiment gives each run."""
MOST_ARM_NAME = 40


class ExperimentFile(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment that was read, with the settings of its run file."""

    name: str
    path: Path
    experiment: Experiment
    base: dict[str, Any]


def find_experiment(name: str) -> Path:
    """Return the file of the experiment `name`: a path, `experiments/NAME.yaml` or `NAME.yaml`.

    Raises UsageError that names the places and the nearest known experiment.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        if not Path(name).is_file():
            raise UsageError(f"there is no file {name}")
        return Path(name)
    tried = [FOLDER / f"{name}.yaml", Path(f"{name}.yaml")]
    found = next((path for path in tried if path.is_file()), None)
    if found is None:
        advice = did_you_mean(name, (path.stem for path in FOLDER.glob("*.yaml")))
        raise UsageError(f"there is no experiment {name!r}: neither {tried[0]} nor {tried[1]} is a file{advice}")
    return found


def read_experiment(path: Path) -> ExperimentFile:
    """Read and check an experiment; raises UsageError, with one line that names the file and the place in it."""
    found = read_yaml(path)
    if not NAME.fullmatch(path.stem):
        raise UsageError(f"{path}: the name of the file, without .yaml, must match {NAME.pattern}")
    check_names(path, found, Experiment)
    parts: list[tuple[str, Any, type[msgspec.Struct]]] = [
        ("expected", found.get("expected"), Expected),
        ("measure", found.get("measure"), Measure),
        *((f"prepare.{name}", value, Preparation) for name, value in _mapping(found.get("prepare")).items()),
    ]
    for place, value, kind in parts:
        check_names(path, _mapping(value), kind, f"{place}.")
    if missing := [name for name in ("title", "question", "expected", "arms") if name not in found]:
        raise UsageError(f"{path}: {missing[0]} is missing")
    experiment: Experiment = converted(path, found, Experiment)
    base = {} if experiment.run is None else _base(path, experiment.run)
    read = ExperimentFile(name=path.stem, path=path, experiment=experiment, base=base)
    _check_choices(path, experiment)
    _check_preparations(path, experiment)
    _check_settings(read)
    return read


def chosen(known: Sequence[str], given: Iterable[str], option: str, path: Path) -> list[str]:
    """Return the names that an option gives; raises UsageError for one that is not in the file."""
    names = list(dict.fromkeys(given))
    for name in names:
        if name not in known:
            raise UsageError(
                f"{option}: {path} has no arm {name!r}{did_you_mean(name, known) or '; it has ' + ', '.join(known)}"
            )
    return names


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _base(path: Path, run: str) -> dict[str, Any]:
    if not Path(run).is_file():
        raise UsageError(f"{path}: run: there is no file {run}; paths are relative to the folder of the command")
    return read_run_file(Path(run))


def _check_choices(path: Path, experiment: Experiment) -> None:
    """Check names of arms, seeds, and everything that names an arm."""
    arms = list(experiment.arms)
    if not arms:
        raise UsageError(f"{path}: arms: there is none; write NAME: {{SETTING: VALUE}}, one a line")
    for arm in arms:
        if not NAME.fullmatch(arm) or len(arm) > MOST_ARM_NAME or arm.startswith(PREPARED):
            raise UsageError(
                f"{path}: arms.{arm}: the name of an arm must match {NAME.pattern}, have at most {MOST_ARM_NAME} "
                f"characters and not begin with {PREPARED}"
            )
    for place, arm in (("baseline", experiment.baseline), ("expected.arm", experiment.expected.arm)):
        if arm is not None and arm not in arms:
            raise UsageError(f"{path}: {place}: there is no arm {arm!r}{did_you_mean(arm, arms)}")
    check_seeds(experiment.seeds, f"{path}: seeds")


def check_seeds(seeds: Sequence[int], label: str) -> None:
    """Raise UsageError unless there is at least one seed, each once and not negative."""
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UsageError(f"{label}: give at least one whole number from 0 on, each once, not {list(seeds)}")


def read_seeds(text: str, option: str) -> tuple[int, ...]:
    """Read seeds, separated by commas; raises UsageError for any other text."""
    try:
        seeds = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise UsageError(f"{option} takes whole numbers separated by commas, not {text!r}") from None
    check_seeds(seeds, option)
    return seeds


def _check_preparations(path: Path, experiment: Experiment) -> None:
    """Check that each preparation is a run or a command, and that none needs itself."""
    prepare, needs = experiment.prepare, dict[str, list[str]]()
    for name, given in prepare.items():
        place = f"{path}: prepare.{name}"
        if not NAME.fullmatch(name) or len(name) > MOST_ARM_NAME:
            raise UsageError(f"{place}: the name must match {NAME.pattern} and have at most {MOST_ARM_NAME} characters")
        if (given.run is None) == (given.command is None):
            raise UsageError(f"{place}: give either run, a mapping of settings, or command")
        if given.command is not None:
            words = given.command if isinstance(given.command, str) else " ".join(given.command)
            if not words.strip() or "{folder}" not in words:
                raise UsageError(f"{place}.command: it must name {{folder}}, into which it writes")
            needs[name] = _known(references({"policy": words}), prepare, f"{place}.command")
        else:
            needs[name] = _known(references(given.run or {}), prepare, f"{place}.run")
        for needed in needs[name]:
            if given.seeds == "shared" and prepare[needed].seeds == "each":
                raise UsageError(
                    f"{place}: it is shared by all seeds, but needs ${needed}, which each seed has its own of"
                )
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        raise UsageError(f"{path}: prepare: {' needs '.join(reversed(error.args[1]))}, in a circle") from None


def _known(names: Sequence[str], prepare: Mapping[str, Preparation], place: str) -> list[str]:
    for name in names:
        if name not in prepare:
            raise UsageError(f"{place}: ${name} is not in prepare{did_you_mean(name, prepare)}")
    return list(names)


def _check_settings(read: ExperimentFile) -> None:
    """Check the settings of all runs, as far as no model and no agent is loaded."""
    path, experiment = read.path, read.experiment
    given = {"settings": experiment.settings}
    given |= {f"prepare.{name}.run": one.run for name, one in experiment.prepare.items() if one.run is not None}
    given |= {f"arms.{name}": own or {} for name, own in experiment.arms.items()}
    for label, settings in given.items():
        place = f"{path}: {label}"
        algorithm = overridden(overridden(read.base, experiment.settings), settings).get("algorithm", USUAL)
        check_settings(place, {"algorithm": algorithm, **settings})
        _known(references(settings), experiment.prepare, place)
        for name in PER_RUN:
            if name in settings:
                raise UsageError(f"{place}: {name} cannot be set: the experiment gives each run its own")
    plan = Plan(read.name, experiment, read.base, Path(read.name))
    for job in plan.with_preparations(plan.runs(list(experiment.arms), experiment.seeds[:1])):
        if job.settings is not None:
            label = f"arms.{job.arm}" if job.arm is not None else f"prepare.{job.name.removeprefix(PREPARED)}"
            _check_run(f"{path}: {label}", job.settings)
            if job.arm is not None:
                _check_measured(f"{path}: {label}", job.settings, experiment.measure)


def _check_run(place: str, settings: Mapping[str, Any]) -> None:
    try:
        make_algorithm(settings.get("algorithm", USUAL), settings.get("algorithm_config") or {})
        if not (settings.get("policy") or settings.get("endpoint")):
            raise UsageError("there is no policy and no endpoint; give one in settings, or in the file that run names")
        run_config(settings, place)
    except UsageError as error:
        text = str(error)
        raise UsageError(text if text.startswith(place) else f"{place}: {text}") from None


def _check_measured(place: str, settings: Mapping[str, Any], measure: Measure) -> None:
    """Raise UsageError if an arm is not evaluated in the way that the experiment compares."""
    names = [held["name"] for held in settings.get("held_out") or ()]
    if not names:
        raise UsageError(f"{place}: it has no held-out set, by which arms are compared; give held_out")
    if measure.held_out is not None and measure.held_out not in names:
        raise UsageError(
            f"{place}: it has no held-out set {measure.held_out!r}, which measure names; it has {', '.join(names)}"
        )
    if measure.sampling == "sampled" and not settings.get("evaluate_sampled", True):
        raise UsageError(f"{place}: evaluate_sampled is false, but measure compares sampled evaluations")

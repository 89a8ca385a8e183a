"""Model versions: finds, compares and exports the versions of runs without changing them.

See `rollback` for changes.
"""

import asyncio
import difflib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from leyden.core.data.rollout import Task
from leyden.core.errors import RunError
from leyden.core.policy.checkpoints.atomic import replaced_folder
from leyden.core.policy.source import check_sources_of_run
from leyden.core.trainer.config import NAME, RunConfig
from leyden.core.trainer.run_folder.comparison import PairedComparison, compare
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.prompts.files import export_prompts
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile, prompt_texts
from leyden.core.trainer.run_folder.weights import export_policies, weights_of, with_version

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel

KEPT, LAST = "kept", "last"


class Models:
    """Versions of one run."""

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self.folder, self.config = folder, config
        self.file = VersionFile(folder.path)
        self.versions = self.file.read()
        if not self.versions:
            raise RunError(f"run {folder.path.name!r} has no versions yet; training records them")

    @classmethod
    def open(cls, runs: Path, name: str) -> "Models":
        """Open the versions of a run by its name or folder; raises RunError when there is no such run."""
        return cls(*RunFolder.open(runs, name))

    @property
    def last(self) -> int:
        """Number of the newest version."""
        return max(self.versions)

    @property
    def kept(self) -> int:
        """Number of the version in `policy/` or `prompts/`; while the run is not finished, of the newest version."""
        report = self.folder.report()
        return self.last if report is None or report.kept is None else report.kept.version

    def find(self, which: str) -> ModelVersion:
        """Return the version with this number, or `kept` or `last`; raises RunError that lists the versions."""
        number = {KEPT: self.kept, LAST: self.last}.get(which)
        if number is None and which.isdecimal():
            number = int(which)
        if number not in self.versions:
            numbers = f"0 to {self.last}" if len(self.versions) == self.last + 1 else str(sorted(self.versions))[1:-1]
            name = self.folder.path.name
            raise RunError(f"run {name!r} has no version {which!r}; it has {numbers}, {KEPT} and {LAST}")
        return self.versions[number]

    def rows(self, held_out: str) -> list[Task]:
        """Return the tasks of a held-out set."""
        return self.folder.tasks(held_out)


def open_all(runs: Path, experiment: str | None = None) -> list[Models]:
    """Open the versions of all runs in `runs`, or of one experiment; raises RunError when there is none."""
    found = [Models.open(runs, path.parent.name) for path in sorted(runs.glob("*/versions.jsonl"))]
    if not found:
        raise RunError(f"no run in {runs} has versions; `leyden train` makes them")
    chosen = [models for models in found if experiment in (None, models.config.experiment)]
    if not chosen:
        known = sorted({models.config.experiment for models in found if models.config.experiment is not None})
        there = f"experiments there: {', '.join(known)}" if known else "no run belongs to an experiment"
        raise RunError(f"no run in {runs} belongs to experiment {experiment!r}; {there}")
    return chosen


def find_version(runs: Path, named: str) -> tuple[Models, ModelVersion]:
    """Return the version that `RUN:VERSION` names, or the kept one for `RUN`. The suffix `:SIDE` selects one side."""
    run, colon, which = named.rpartition(":")
    if colon and (which in (KEPT, LAST) or which.isdecimal()):
        models = Models.open(runs, run)
        return models, models.find(which)
    if colon and NAME.fullmatch(which) and not (runs / named).exists():
        models, version = find_version(runs, run)
        return models, version.of_side(which)
    models = Models.open(runs, named)
    return models, models.find(KEPT)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of two versions."""

    a: str
    b: str
    metrics: dict[str, tuple[float | None, float | None]]
    """Metrics of the steps that produced them, by name. They are on comparable tasks only if both are of the same
    run."""
    held_out: dict[str, PairedComparison]
    """By held-out set: on the tasks that both ran, with the agent's own sampling."""
    sampled: dict[str, PairedComparison]
    prompts: dict[str, str] = {}
    """Differences of the prompt templates and prompt components that changed, as unified diffs, by name."""


def compare_versions(a: tuple[Models, ModelVersion], b: tuple[Models, ModelVersion]) -> Comparison:
    """Compare two versions of the same run or of two runs.

    Held-out sets are matched by name and tasks by their content, because the runs may have different numbers of tasks.
    A side that both versions have is also compared with itself.
    """
    (_, first), (_, second) = a, b
    names = [*first.metrics, *(name for name in second.metrics if name not in first.metrics)]
    return Comparison(
        a=first.label,
        b=second.label,
        metrics={name: (first.metrics.get(name), second.metrics.get(name)) for name in names if name != "step"},
        held_out=_paired(a, b, "held_out") | _each_side(a, b, "held_out"),
        sampled=_paired(a, b, "sampled") | _each_side(a, b, "sampled"),
        prompts=_prompt_changes(first, second),
    )


def _prompt_changes(a: ModelVersion, b: ModelVersion) -> dict[str, str]:
    """Return a unified diff for each prompt that the versions do not share; texts are compared by line."""
    before, after = prompt_texts(a), prompt_texts(b)
    changes: dict[str, str] = {}
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            old, new = ([] if name not in texts else texts[name].splitlines() for texts in (before, after))
            lines = difflib.unified_diff(old, new, f"{a.label} {name}", f"{b.label} {name}", lineterm="")
            changes[name] = "\n".join(lines)
    return changes


def _each_side(
    a: tuple[Models, ModelVersion], b: tuple[Models, ModelVersion], which: str
) -> dict[str, PairedComparison]:
    """Compare by held-out set and side. The side that stands for both versions is left out."""
    (a_models, first), (b_models, second) = a, b
    return {
        f"{name}, {side}": paired
        for side in first.sides
        if side in second.sides and not side == first.side == second.side
        for name, paired in _paired((a_models, first.of_side(side)), (b_models, second.of_side(side)), which).items()
    }


def _paired(a: tuple[Models, ModelVersion], b: tuple[Models, ModelVersion], which: str) -> dict[str, PairedComparison]:
    found: dict[str, PairedComparison] = {}
    for name in getattr(a[1], which):
        if name in getattr(b[1], which):
            paired = compare(rewards_by_task(*a, which, name), rewards_by_task(*b, which, name))
            if paired is not None:
                found[name] = paired
    return found


def rewards_by_task(models: Models, version: ModelVersion, which: str, name: str) -> dict[str, float]:
    """Return the rewards of a version on the held-out set `name` by task content; equal tasks are numbered.

    `which` is `held_out` or `sampled`.
    """
    rewards: dict[str, float] = getattr(version, which)[name].rewards
    seen: dict[str, int] = {}
    named: dict[str, float] = {}
    for row, task in enumerate(models.rows(name)):
        text = msgspec.json.encode(task, order="deterministic").decode()
        seen[text] = seen.get(text, 0) + 1
        if str(row) in rewards:
            named[f"{seen[text]} {text}"] = rewards[str(row)]
    return named


async def export_version(models: Models, version: ModelVersion, target: Path) -> Path:
    """Write a version as a Hugging Face folder and return its path; named policies go into a subfolder each.

    Prompts are written into the subfolder `prompts`; of a run without a policy, into `target` itself. Raises RunError
    when its weights are not kept, or `target` exists and is not an empty folder.
    """
    _check_free(target)
    if not models.config.policies:
        if not version.resources:
            raise RunError(f"version {version.version} of run {version.run!r} has neither weights nor prompts")
        await asyncio.to_thread(export_prompts, version.resources, target)
        return target
    if version.version:
        try:
            weights_of(models.file, version)
        except RunError as error:
            raise RunError(f"{error}; version 0, the policy before the first step, can be exported too") from None
    return await asyncio.to_thread(_export, models, version, target)


def _check_free(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(f"{target} already exists; nothing was written: give a new or an empty folder")


def _export(models: Models, version: ModelVersion, target: Path) -> Path:
    from leyden.core.policy.checkpoints.export import adapter_folder

    if _is_only_written(models, version):
        return _copy_written(models, version, target)
    policies = policies_of(models, version)
    if not models.config.has_names and any(model.adapters is not None for model in policies.values()):
        _check_free(adapter_folder(target))
    folder = export_policies(policies, models.config, target)
    if version.resources:
        export_prompts(version.resources, folder / "prompts")
    return folder


def _is_only_written(models: Models, version: ModelVersion) -> bool:
    """Whether a version needs an initial policy that is not on this machine, but the run has written it completely."""
    policies, needs = models.config.policies, version.version == 0
    if all(Path(source).is_dir() or not (needs or _lora_of(models.config, name)) for name, source in policies.items()):
        return False
    report = models.folder.report()
    is_kept = report is not None and report.kept is not None and report.kept.version == version.version
    return is_kept and all((written_policy(models, name) / "config.json").is_file() for name in policies)


def _copy_written(models: Models, version: ModelVersion, target: Path) -> Path:
    """Copy the policy that the run keeps, with the prompts of the version, and its adapters, which are beside it."""
    from leyden.core.policy.checkpoints.export import adapter_folder

    source = models.folder.policy
    copies = {source: target}
    if adapter_folder(source).is_dir():
        copies[adapter_folder(source)] = adapter_folder(target)
    for free in copies.values():
        _check_free(free)
    for written, free in copies.items():
        with replaced_folder(free) as pending:
            shutil.copytree(written, pending, dirs_exist_ok=True)
    if version.resources:
        export_prompts(version.resources, target / "prompts")
    return target


def policies_of(models: Models, version: ModelVersion) -> dict[str, "PolicyModel"]:
    """Return the policies of a version by name, with its weights; raises RunError if they are not kept."""
    return {name: load_version(models, version, name) for name in models.config.policies}


def load_version(models: Models, version: ModelVersion, name: str) -> "PolicyModel":
    """Return the policy `name` of a version with its weights, and with its adapters if the run trained some.

    The initial policy is needed for version 0, and for adapters. For other versions, a policy that the run has written
    does as well. Raises RunError if the weights are not kept, and PolicyError for a source that cannot be loaded.
    """
    from leyden.core.policy.model import PolicyModel

    if version.version:
        weights_of(models.file, version)  # raises before the model is loaded, which takes long
    config = models.config
    lora = _lora_of(config, name) if version.version > 0 else None
    source = config.policies[name]
    if version.version and lora is None:
        source = source_of_configuration(models, name)
    check_sources_of_run([source])
    model = PolicyModel.load(source)
    if lora is not None:
        model.adapt(lora, config.seed)
    return with_version(model, models.file, version.version, name if config.has_names else None)


def source_of_configuration(models: Models, name: str) -> str:
    """Return a folder or hub name with the policy's configuration and tokenizer; its weights may be of any version."""
    source = models.config.policies[name]
    own = written_policy(models, name)
    return source if Path(source).is_dir() or not (own / "config.json").is_file() else str(own)


def written_policy(models: Models, name: str) -> Path:
    """Return the folder in which the run writes the policy `name` of the version that it keeps."""
    return models.folder.policy / name if models.config.has_names else models.folder.policy


def _lora_of(config: RunConfig, name: str) -> Any:
    """Return the options of the adapters that the run trains for a policy; None if it trains the weights."""
    from leyden.core.algorithm.registry import make_algorithm

    algorithm = make_algorithm(config.algorithm, config.algorithm_config)
    return getattr(algorithm.options_of(name), "lora", None)

"""Version records: `ModelVersion` describes a published version of a run's policy; `VersionFile` stores them.

`versions.jsonl` has a line for each version. If a version has several lines, the last one is valid. `VersionFile` is
the only reader and writer of this file.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from leyden.core.data.prompts.edits import PromptEdits
from leyden.core.data.resources import NamedResources, PromptTemplate
from leyden.core.errors import RunError
from leyden.core.policy.checkpoints.atomic import replace_file


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of a version on a held-out set, each task run once."""

    success: float | None
    """Mean reward; a failed rollout counts 0, and one without a reward is left out. None if no rollout is left."""
    rewards: dict[str, float] = {}
    """Rewards by the row number of the task."""
    dimensions: dict[str, float] = {}
    """Mean of each dimension of the reward; empty for a reward that is a plain number."""

    @property
    def is_share(self) -> bool:
        """Whether every task earned 0 or 1, so that the mean reward is the share of solved tasks."""
        return is_share(self.rewards.values())


def is_share(rewards: Iterable[float]) -> bool:
    """Whether the mean of `rewards` is a share: each reward is 0 or 1."""
    return all(reward in (0.0, 1.0) for reward in rewards)


def reward_text(mean: float | None, *, is_share: bool) -> str:
    """Format a mean reward: a share in percent, any other as a number, None as a dash."""
    if mean is None:
        return "–"
    return f"{100 * mean:.1f} %" if is_share else f"{mean:.3f}"


class SideScores(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of one side of a version, by held-out set."""

    held_out: dict[str, Evaluation] = {}
    sampled: dict[str, Evaluation] = {}


class ModelVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Version of a run's policy and prompts: origin, scores, prompt templates, and location of its weights."""

    run: str
    version: int
    """Number of steps that led to it; 0 is the initial policy, with the initial prompts."""
    parent: int | None
    """Version it was trained from; None for the first."""
    created: float
    """Seconds since the epoch."""
    algorithm: str
    seed: int
    policy: str | dict[str, str] | None = None
    """Folder or hub name of the initial policy; for several policies, by name. None in a run without a policy."""
    endpoint: str | None = None
    """Model or base URL that answers the agents of a run without a policy."""
    resources_id: str | None = None
    """Id of the version of the resources in the run's store, if there are prompts among them."""
    prompts: dict[str, PromptTemplate] = {}
    """Prompt templates of the version, by name."""
    edits: dict[str, PromptEdits] = {}
    """Prompt edits of the version, by name."""
    weights: str | None = None
    """Checkpoint of the version, with its weights, relative to the run's folder; None if it is not kept."""
    metrics: dict[str, float] = {}
    """Metrics of the step that produced it."""
    held_out: dict[str, Evaluation] = {}
    """Evaluations by held-out set, with the agent's own sampling."""
    sampled: dict[str, Evaluation] = {}
    """Evaluations by held-out set, with the training sampling."""
    side: str | None = None
    """In a run with sides: the side whose scores stand for this version in comparisons."""
    sides: dict[str, SideScores] = {}
    """Scores of each side of the run."""

    def of_side(self, side: str) -> "ModelVersion":
        """Return this version as seen by one of its sides. Raises RunError that lists the sides."""
        if side not in self.sides:
            there = f"it has {', '.join(self.sides)}" if self.sides else "it has no sides"
            raise RunError(f"version {self.version} of run {self.run!r} has no side {side!r}; {there}")
        own = f"{side}/"
        of_sides = tuple(f"{name}/" for name in self.sides)
        shared = {name: value for name, value in self.metrics.items() if not name.startswith(of_sides)}
        metrics = {name.removeprefix(own): value for name, value in self.metrics.items() if name.startswith(own)}
        scores = self.sides[side]
        return msgspec.structs.replace(
            self, metrics=shared | metrics, held_out=scores.held_out, sampled=scores.sampled, side=side, sides={}
        )

    @property
    def label(self) -> str:
        """Name of the version on the command line."""
        return ":".join(filter(None, (self.run, str(self.version), self.side)))

    @property
    def resources(self) -> NamedResources:
        """Prompt templates and prompt edits of the version, by name."""
        return {**self.prompts, **self.edits}


class VersionFile:
    """Version file of the run in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "versions.jsonl"

    def append(self, version: ModelVersion) -> None:
        """Write `version`, which replaces earlier records of the same number; it is on disk when this returns."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(version) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> dict[int, ModelVersion]:
        """Return all versions by number, in order. `weights` is None where the checkpoint no longer exists.

        A line cut off by a crash is left out. Raises RunError for any other line that cannot be read.
        """
        if not self.path.exists():
            return {}
        found: dict[int, ModelVersion] = {}
        for number, line in enumerate(self.path.read_bytes().split(b"\n")[:-1], 1):
            try:
                version = msgspec.json.decode(line, type=ModelVersion)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise RunError(f"{self.path}, line {number} cannot be read: {error}") from None
            found[version.version] = self._with_weights(version)
        return dict(sorted(found.items()))

    def rewind(self, version: int) -> list[ModelVersion]:
        """Remove the versions after `version`, all at once, and return them."""
        known = self.read()
        later = [known.pop(number) for number in list(known) if number > version]
        if later:
            write_versions(self.path, known.values())
        return later

    def _with_weights(self, version: ModelVersion) -> ModelVersion:
        if version.weights is None or is_checkpoint(self._folder / version.weights):
            return version
        return msgspec.structs.replace(version, weights=None)


def prompt_texts(version: ModelVersion) -> dict[str, str]:
    """Return the texts of a version: those of its prompt templates, and those sent of its prompt components, by name.

    A component of several prompt edits with the name of another text has the name of its edits before its own.
    """
    texts = {name: prompt.template for name, prompt in version.prompts.items()}
    for name, edits in version.edits.items():
        for component, text in edits.texts.items():
            texts[f"{name}.{component}" if component in texts else component] = text
    return texts


def write_versions(path: Path, versions: Iterable[ModelVersion]) -> None:
    """Rewrite the file, completely or not at all."""
    replace_file(path, b"".join(msgspec.json.encode(version) + b"\n" for version in versions))


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is a complete checkpoint; does not import torch."""
    return (path / "progress.json").is_file()

"""`ModelVersion`: what is kept about each published version of a run's policy, and the one file where it lies.

`versions.jsonl` has a line for each version; where a version has several, the last is true. Knows nothing of how
versions come about: `VersionFile` is the only reader and the only writer.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from leyden.core.errors import RunError


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What a version earned on a held-out set, each task run once."""

    success: float | None
    """Mean reward; a rollout that failed has earned 0, one without a reward is left out. None: there was no other."""
    rewards: dict[str, float] = {}
    """By the number of the task's row."""

    @property
    def is_share(self) -> bool:
        """Whether every task earned 0 or 1, so that the mean reward is the share of tasks that were solved."""
        return is_share(self.rewards.values())


def is_share(rewards: Iterable[float]) -> bool:
    """Whether the mean of `rewards` is a share: each is 0 or 1."""
    return all(reward in (0.0, 1.0) for reward in rewards)


def earned(mean: float | None, *, is_share: bool) -> str:
    """A mean reward as people read it: a share in percent, any other as a number; a dash where there is none."""
    if mean is None:
        return "–"
    return f"{100 * mean:.1f} %" if is_share else f"{mean:.3f}"


class SideScores(msgspec.Struct, frozen=True, kw_only=True):
    """What a version of one of several sides earned, by the held-out set."""

    held_out: dict[str, Evaluation] = {}
    sampled: dict[str, Evaluation] = {}


class ModelVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a run's policy: where it comes from, how it did, and where its weights lie."""

    run: str
    version: int
    """The number of weight updates that led to it; 0 is the policy the run began with."""
    parent: int | None
    """The version it was trained from; None for the first."""
    created: float
    """Seconds since the epoch."""
    algorithm: str
    seed: int
    policy: str | dict[str, str]
    """Folder or hub name of the policy the run began with; of several, by their names."""
    weights: str | None = None
    """The checkpoint that holds them, relative to the run's folder; None where they are not kept."""
    metrics: dict[str, float] = {}
    """The numbers of the step that made it."""
    held_out: dict[str, Evaluation] = {}
    """By the held-out set, with the agent's own sampling."""
    sampled: dict[str, Evaluation] = {}
    """The same with the training sampling."""
    side: str | None = None
    """Of a run with sides: the one that earned it, by which versions are compared."""
    sides: dict[str, SideScores] = {}
    """Every side of the run, and what it earned."""

    def of_side(self, side: str) -> "ModelVersion":
        """Return what this version is to one of its sides. Raises RunError, which names those there are."""
        if side not in self.sides:
            there = f"it has {', '.join(self.sides)}" if self.sides else "it has none"
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
        """As the command line names it."""
        return ":".join(filter(None, (self.run, str(self.version), self.side)))


class VersionFile:
    """The versions of the run in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "versions.jsonl"

    def append(self, version: ModelVersion) -> None:
        """Keep `version`, in place of what was kept of it before; it is on the disk when this returns."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(version) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> dict[int, ModelVersion]:
        """All versions by their number; `weights` only where they are there. A line cut off by a crash is left out."""
        if not self.path.exists():
            return {}
        found: dict[int, ModelVersion] = {}
        for number, line in enumerate(self.path.read_bytes().split(b"\n")[:-1], 1):
            try:
                version = msgspec.json.decode(line, type=ModelVersion)
            except msgspec.DecodeError as error:
                raise RunError(f"{self.path}, line {number} cannot be read: {error}") from None
            found[version.version] = self._with_weights(version)
        return dict(sorted(found.items()))

    def rewind(self, version: int) -> list[ModelVersion]:
        """Forget the versions after `version`, all at once, and return them."""
        known = self.read()
        later = [known.pop(number) for number in list(known) if number > version]
        if later:
            write_versions(self.path, known.values())
        return later

    def _with_weights(self, version: ModelVersion) -> ModelVersion:
        if version.weights is None or is_checkpoint(self._folder / version.weights):
            return version
        return msgspec.structs.replace(version, weights=None)


def write_versions(path: Path, versions: Iterable[ModelVersion]) -> None:
    """Write the file anew, whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(b"".join(msgspec.json.encode(version) + b"\n" for version in versions))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def is_checkpoint(path: Path) -> bool:
    """Whether a whole checkpoint lies at `path`; tells it without loading torch."""
    return (path / "progress.json").is_file()

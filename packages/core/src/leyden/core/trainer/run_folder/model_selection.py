"""Model selection: keeps the records of a run's versions and chooses the one to keep and when to stop.

Invariant: between two checkpoints, the checkpoint of the kept version is marked, and no other checkpoint is.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.data.prompts.edits import PromptEdits
from leyden.core.data.resources import NamedResources, PromptTemplate, Resource, edits_of, prompts_of
from leyden.core.errors import TrainingError
from leyden.core.policy.checkpoints.retention import MARK, mark_checkpoint
from leyden.core.trainer.config import RunConfig, endpoint_name
from leyden.core.trainer.run_folder.early_stopping import BestVersion
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import KeptVersion
from leyden.core.trainer.run_folder.versions import Evaluation, ModelVersion, SideScores, VersionFile, reward_text


@dataclass(slots=True)
class VersionScores:
    """Rewards of a version by held-out set, with the agent's own sampling and with the training sampling."""

    version: int
    held_out: dict[str, Evaluation] = field(default_factory=dict[str, Evaluation])
    sampled: dict[str, Evaluation] = field(default_factory=dict[str, Evaluation])
    side: str | None = None
    """In a run with sides: the side whose scores stand for the version, which is the best of the acting sides."""
    sides: dict[str, SideScores] = field(default_factory=dict[str, SideScores])

    @classmethod
    def none(cls, version: int, sides: Sequence[str]) -> "VersionScores":
        """Return empty scores for a version of a run with these sides."""
        return cls(version, sides={side: SideScores() for side in sides})

    def note(self, name: str, found: Mapping[str, Evaluation], *, sampled: bool, acting: Sequence[str]) -> None:
        """Record what each side earned on the held-out set `name`.

        The first recorded set decides which acting side is the best; `side` then stays the same.
        """
        self.side = self.side or max(acting, key=lambda side: _rank(found[side]))
        (self.sampled if sampled else self.held_out)[name] = found[self.side]
        for side, evaluation in found.items():
            own = self.sides[side]
            (own.sampled if sampled else own.held_out)[name] = evaluation


def _rank(evaluation: Evaluation) -> float:
    return -math.inf if evaluation.success is None else evaluation.success


class _State(msgspec.Struct, kw_only=True):
    """State that a checkpoint stores."""

    kept: BestVersion | None = None
    evaluated: bool = False
    """Whether the version of the checkpoint itself has been evaluated."""
    stopped: int | None = None
    """Number of planned steps when the run stopped early; None if it did not."""


class ModelSelection:
    """Records the versions of the run in `folder` as they are trained, evaluated and saved."""

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self.versions = VersionFile(folder.path)
        self.scores: VersionScores | None = None
        """Scores of the version that was evaluated last."""
        self._folder, self._config = folder, config
        self._state = _State()
        self._records: dict[int, ModelVersion] = {}
        """Contents of the version file, cached so that it is not read at every step."""
        self._metrics: dict[str, float] = {}
        self._resources_id: str | None = None
        self._prompts: dict[str, PromptTemplate] = {}
        self._edits: dict[str, PromptEdits] = {}

    # --- Sessions

    def begin(self) -> None:
        """Start without a checkpoint: the records begin with the initial policy."""
        self.versions.rewind(-1)
        self._records = {}
        self.record(0)

    def restore(self, version: int, checkpoint: Path, progress: Mapping[str, Any]) -> bool:
        """Restore the state from `progress`, which `checkpoint` holds; return whether the run stays stopped early.

        The run does not stay stopped if more steps are planned than when it stopped. Its patience count then starts
        anew.
        """
        self._state = msgspec.convert(progress.get("standing", {}), _State)
        self.versions.rewind(version)
        self._records = self.versions.read()
        found = self._records.get(version) or self._new(version)
        if found.weights is None:
            self._keep(msgspec.structs.replace(found, weights=self._relative(checkpoint)))
        if self._state.evaluated and found.held_out:
            self.scores = VersionScores(version, found.held_out, found.sampled, found.side, found.sides)
        stays = self._state.stopped is not None and self._config.steps <= self._state.stopped
        if self._state.stopped is not None and not stays:
            self._state.stopped = None
            self._state.kept = self._state.kept and msgspec.structs.replace(self._state.kept, without_rise=0)
        self._mark()
        return stays

    def progress(self, version: int) -> dict[str, Any]:
        """Return what a checkpoint of `version` must store for `restore`."""
        self._state.evaluated = self.is_scored(version)
        return {"standing": msgspec.to_builtins(self._state)}

    # --- Evaluations

    def is_due(self, version: int, steps: int) -> bool:
        """Whether `version` must be evaluated, of `steps` planned; always False without `eval_every`."""
        every = self._config.eval_every
        return bool(every) and (version % every == 0 or version == steps) and not self.is_scored(version)

    def is_scored(self, version: int) -> bool:
        """Whether `version` is the one that was evaluated last."""
        return self.scores is not None and self.scores.version == version

    def score(self, scores: VersionScores) -> None:
        """Take the scores of a version, and add them to its record if it has one.

        Raises TrainingError if versions are compared by these scores and no task was rewarded.
        """
        self.scores = scores
        if (found := self._records.get(scores.version)) is not None:
            self._keep(msgspec.structs.replace(found, **_recorded(scores)))
        if not self._config.eval_every:
            return
        headline = scores.held_out[self._config.held_out[0].name]
        if headline.success is None:
            raise TrainingError(
                f"no rollout of the held-out set {self._config.held_out[0].name!r} has a reward, so the best version "
                "cannot be determined; have the reward function score its tasks, or leave --eval-every out"
            )
        kept, version = self._state.kept, scores.version
        self._state.kept = BestVersion.first(version, headline) if kept is None else kept.judged(version, headline)

    def stop_early(self, version: int, steps: int) -> str | None:
        """Return why the run should end with `version`; None if it should continue or ends anyway."""
        kept, patience = self._state.kept, self._config.patience
        if kept is None or patience is None or version >= steps or kept.without_rise < patience:
            return None
        self._state.stopped = steps
        name = self._config.held_out[0].name
        return f"no noticeable rise on {name} in {patience} evaluations up to step {version} of {steps}"

    # --- Records and weights

    def note(self, metrics: Mapping[str, Any]) -> None:
        """Take the metrics of the step that produces the next version. Only finite numbers are kept."""
        self._metrics = {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }

    def note_resources(self, resources_id: str, resources: Mapping[str, Resource]) -> None:
        """Take the published resources: those of the next version that is recorded."""
        self._prompts, self._edits = prompts_of(resources), edits_of(resources)
        self._resources_id = resources_id if self._prompts or self._edits else None

    def prompts(self, version: int) -> NamedResources:
        """Return the prompt templates and prompt edits of a version; empty if it has none or no record."""
        found = self._records.get(version)
        return {} if found is None else found.resources

    def record(self, version: int) -> None:
        """Write a record of `version`."""
        self._keep(self._new(version))

    def is_best(self, version: int) -> bool:
        """Whether `version` is currently the one to keep."""
        return self._state.kept is not None and self._state.kept.version == version

    def saved(self, version: int, checkpoint: Path) -> None:
        """Record that `checkpoint` holds the weights of `version`."""
        found = self._records.get(version) or self._new(version)
        self._keep(msgspec.structs.replace(found, weights=self._relative(checkpoint)))
        self._mark()

    def kept(self, last: int) -> KeptVersion:
        """Return the version that `policy/` must hold; `last` is the last version."""
        kept = self._state.kept
        if kept is None:
            success = None
            if self.is_scored(last) and self.scores is not None and self._config.held_out:
                success = self.scores.held_out[self._config.held_out[0].name].success
            hint = "; to keep the best on held-out tasks, give --eval-every" if self._config.held_out else ""
            return KeptVersion(version=last, success=success, why=f"the last one{hint}")
        name, found = self._config.held_out[0].name, self._records.get(kept.version)
        own = None if found is None else found.held_out.get(name)
        why = f"the best of {kept.evaluations} evaluations on {name}, "
        why += f"with {reward_text(kept.success, is_share=own is None or own.is_share)}"
        if found is not None and found.side is not None:
            why += f" ({found.side})"
        if kept.version != last and self._config.policies:
            why += f"; the last one, {last}, is in policy-last/"
        return KeptVersion(version=kept.version, success=kept.success, why=why)

    def _new(self, version: int) -> ModelVersion:
        scores = self.scores if self.is_scored(version) else None
        return ModelVersion(
            run=self._config.name,
            version=version,
            parent=version - 1 if version else None,
            created=time.time(),
            algorithm=self._config.algorithm,
            seed=self._config.seed,
            policy=self._config.policy,
            endpoint=endpoint_name(self._config),
            resources_id=self._resources_id,
            prompts=self._prompts,
            edits=self._edits,
            metrics=self._metrics,
            **_recorded(scores or VersionScores.none(version, self._config.sides)),
        )

    def _relative(self, checkpoint: Path) -> str:
        return str(checkpoint.relative_to(self._folder.path))

    def _keep(self, version: ModelVersion) -> None:
        self.versions.append(version)
        self._records[version.version] = version

    def _mark(self) -> None:
        """Mark the checkpoint of the kept version and unmark all others; a mark protects a checkpoint from removal."""
        kept = None if self._state.kept is None else self._records.get(self._state.kept.version)
        own = None if kept is None or kept.weights is None else self._folder.path / kept.weights
        if own is not None:
            mark_checkpoint(own)
        for mark in self._folder.checkpoints.glob(f"step-*/{MARK}"):
            if mark.parent != own:
                mark.unlink(missing_ok=True)


def _recorded(scores: VersionScores) -> dict[str, Any]:
    """Return the fields of a version's record that hold its scores."""
    return {"held_out": scores.held_out, "sampled": scores.sampled, "side": scores.side, "sides": scores.sides}

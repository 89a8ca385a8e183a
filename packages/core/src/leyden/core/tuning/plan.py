"""Plan of a study: the settings of its trials, their runs as jobs, and what must not change when it goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.errors import UsageError
from leyden.core.experiments.definition import Measure
from leyden.core.experiments.plan import Job
from leyden.core.experiments.settings import Settings, changed_file, difference, used_files
from leyden.core.masking import mask_values
from leyden.core.policy.checkpoints.atomic import replace_file
from leyden.core.trainer.config import EvaluationSet
from leyden.core.tuning.settings import with_settings
from leyden.core.tuning.space import Space, Values

STUDY_FILE = "study.json"
EVALUATIONS = 5
"""Number of evaluations of a trial after its first step, if neither the command nor the run file says how many."""
USUAL_STEPS = 25


class WrittenStudy(msgspec.Struct, frozen=True, kw_only=True):
    """What a study was begun with."""

    settings: dict[str, Any]
    search: dict[str, str]
    seeds: list[int]
    sampler_seed: int
    prunes: bool
    files: dict[str, str]
    """Digests of the files that decide the results of runs."""


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """Trials of a study in `folder`: runs of `base` with values from `space`, each with every seed."""

    name: str
    folder: Path
    base: Settings
    """Settings of a run without the values of a trial."""
    space: Space
    measured: EvaluationSet
    """Held-out set on which trials are compared."""
    eval_every: int
    seeds: tuple[int, ...] = (0,)
    sampler_seed: int = 0
    prunes: bool = True

    @property
    def measure(self) -> Measure:
        """How trials are scored: mean reward with the agent's own sampling."""
        return Measure(held_out=self.measured.name)

    @property
    def steps(self) -> int:
        """Number of steps of a run with the settings of `base`."""
        return int(self.base.get("steps", USUAL_STEPS))

    def settings(self, values: Values | None) -> Settings:
        """Return the settings of a trial, without name and seed; of the default configuration if `values` is None."""
        own = self.base if values is None else with_settings(self.base, self.space, values)
        held_out = [{"name": self.measured.name, "source": self.measured.source}]
        fixed = {"held_out": held_out, "eval_every": self.eval_every, "evaluate_sampled": False, "check": False}
        return {**own, **fixed, "experiment": self.name}

    def trial(self, number: int, values: Values | None) -> list[Job]:
        """Return the runs of a trial, one for each seed; `values` is None for the default configuration."""
        arm = f"trial {number}" + (" (default)" if values is None else "")
        return [self._job(f"trial-{number}", arm, self.settings(values), seed) for seed in self.seeds]

    def confirmation(
        self, number: int, values: Values | None, held_out: EvaluationSet, seeds: Sequence[int]
    ) -> list[Job]:
        """Return runs that measure a trial's settings anew, on a held-out set and with seeds of their own."""
        own = {
            **self.settings(values),
            "held_out": [{"name": held_out.name, "source": held_out.source}],
            "eval_every": 0,
            "patience": None,
        }
        arm = f"confirmation of trial {number}" + (" (default)" if values is None else "")
        return [self._job(f"confirm-{number}", arm, own, seed) for seed in seeds]

    def _job(self, name: str, arm: str, settings: Mapping[str, Any], seed: int) -> Job:
        name = f"{name}-seed-{seed}"
        return Job(
            name=name, seed=seed, folder=self.folder / name, arm=arm, settings={**settings, "name": name, "seed": seed}
        )

    def check_unchanged(self) -> None:
        """Write what the study is begun with; raises UsageError, with one line, if it was begun with something else."""
        settings = self.settings(None)
        now = WrittenStudy(
            settings=mask_values(msgspec.to_builtins(settings)),
            search={key: str(domain) for key, domain in self.space.items()},
            seeds=list(self.seeds),
            sampler_seed=self.sampler_seed,
            prunes=self.prunes,
            files=used_files(settings),
        )
        path = self.folder / STUDY_FILE
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, msgspec.json.format(msgspec.json.encode(now), indent=1) + b"\n")
            return
        try:
            before = msgspec.json.decode(path.read_bytes(), type=WrittenStudy)
        except msgspec.DecodeError as error:
            raise UsageError(f"{path} cannot be read: {error}") from None
        was, is_now = (msgspec.structs.replace(one, files={}) for one in (before, now))
        change = difference(msgspec.to_builtins(was), msgspec.to_builtins(is_now))
        change = change or changed_file(before.files, now.files)
        if change is not None:
            raise UsageError(
                f"study {self.name} in {self.folder} was begun with other settings: {change}; give another --name, or "
                "remove this folder"
            )


def evaluations_every(given: int | None, base: Mapping[str, Any], steps: int) -> int:
    """Return the number of steps between a trial's evaluations: as given, as in the run file, or a fifth of the run."""
    if given is not None:
        return given
    return int(base.get("eval_every") or 0) or max(1, steps // EVALUATIONS)

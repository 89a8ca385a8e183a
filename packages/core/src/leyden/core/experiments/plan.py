"""Plan of an experiment: its jobs, each a run of an arm with a seed or a preparation, and what each job needs."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leyden.core.experiments.definition import Experiment, Preparation
from leyden.core.experiments.settings import Settings, overridden, references, with_folders

PREPARED = "prepare-"
"""Beginning of the names of jobs that prepare something; no arm is called so."""

SHARED_SEED = 0
"""Seed of a preparation that is made once for all seeds, whichever seeds are run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One process: a run of an arm, or a preparation, which is a run or a command."""

    name: str
    """Name of the run, or of the folder that a command writes."""
    seed: int
    folder: Path
    """What the job makes: a run's folder, or the one that a command writes."""
    arm: str | None = None
    """None for a preparation."""
    settings: Settings | None = None
    """Settings of a run; None for a command."""
    command: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Names of the jobs that must have succeeded before."""

    @property
    def label(self) -> str:
        """Name for display."""
        return f"{self.arm}, seed {self.seed}" if self.arm is not None else f"preparation {self.name[len(PREPARED) :]}"


class Plan:
    """Jobs of an experiment whose runs are in `folder`."""

    def __init__(
        self, name: str, experiment: Experiment, base: Settings, folder: Path, *, steps: int | None = None
    ) -> None:
        self.name, self.experiment, self.folder = name, experiment, folder
        self._base = overridden(base, experiment.settings)
        self._steps = steps

    def runs(self, arms: Sequence[str], seeds: Sequence[int]) -> list[Job]:
        """Return the runs of `arms`, seed by seed, so that every arm has results early."""
        return [self.run(arm, seed) for seed in seeds for arm in arms]

    def run(self, arm: str, seed: int) -> Job:
        """Return the run of an arm with a seed."""
        own = overridden(self._base, self.experiment.arms[arm] or {})
        if self._steps is not None and own.get("steps") != 0:
            own["steps"] = self._steps
        return self._training(f"{arm}-{seed}", own, seed, arm)

    def with_preparations(self, jobs: Sequence[Job]) -> list[Job]:
        """Return `jobs` after the preparations that they need, directly or not, each once."""
        found: dict[str, Job] = {}

        def add(job: Job) -> None:
            for needed in job.needs:
                if needed not in found:
                    add(self._preparations[needed])
            found[job.name] = job

        for job in jobs:
            add(job)
        return list(found.values())

    @property
    def _preparations(self) -> dict[str, Job]:
        jobs = [self._preparation(name, seed) for name in self.experiment.prepare for seed in self.experiment.seeds]
        return {job.name: job for job in jobs}

    def _preparation(self, name: str, seed: int) -> Job:
        given = self.experiment.prepare[name]
        seed = self._seed_of(given, seed)
        job = self._job_name(name, seed)
        if given.run is not None:
            return self._training(job, overridden(self._base, given.run), seed, None)
        folder = self.folder / job
        assert given.command is not None
        words = shlex.split(given.command) if isinstance(given.command, str) else given.command
        needed = references({"policy": list(words)})
        folders = {one: self._made(one, seed) for one in needed}
        words = with_folders({"policy": list(words)}, folders)["policy"]
        put = [word.replace("{seed}", str(seed)).replace("{folder}", str(folder)) for word in words]
        if put[0] in ("python", "python3"):
            put[0] = sys.executable
        needs = tuple(self._job_name(one, self._seed_of(self.experiment.prepare[one], seed)) for one in needed)
        return Job(name=job, seed=seed, folder=folder, command=tuple(put), needs=needs)

    def _training(self, name: str, settings: Settings, seed: int, arm: str | None) -> Job:
        needed = references(settings)
        whole: dict[str, Any] = {
            "check": False,
            **with_folders(settings, {one: self._made(one, seed) for one in needed}),
            "name": name,
            "experiment": self.name,
            "seed": seed,
        }
        needs = tuple(self._job_name(one, self._seed_of(self.experiment.prepare[one], seed)) for one in needed)
        return Job(name=name, seed=seed, folder=self.folder / name, arm=arm, settings=whole, needs=needs)

    def _made(self, name: str, seed: int) -> Path:
        """Return the folder that `$NAME` stands for."""
        given = self.experiment.prepare[name]
        folder = self.folder / self._job_name(name, self._seed_of(given, seed))
        return folder / "policy" if given.run is not None else folder

    def _seed_of(self, given: Preparation, seed: int) -> int:
        return SHARED_SEED if given.seeds == "shared" else seed

    def _job_name(self, name: str, seed: int) -> str:
        shared = self.experiment.prepare[name].seeds == "shared"
        return f"{PREPARED}{name}" if shared else f"{PREPARED}{name}-{seed}"

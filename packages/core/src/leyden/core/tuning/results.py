"""Results of a study: the best trial beside the default, what a new measurement says, and how sure both are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from leyden.core.experiments.definition import Measure
from leyden.core.experiments.paired_bootstrap import PairedDifference, paired_difference
from leyden.core.experiments.plan import Job
from leyden.core.experiments.record import ENDED, Records
from leyden.core.trainer.config import EvaluationSet
from leyden.core.trainer.run_folder.versions import is_share
from leyden.core.tuning.evaluations import Scores, last_scores
from leyden.core.tuning.importance import importance_of
from leyden.core.tuning.plan import StudyPlan
from leyden.core.tuning.storage import StudyStorage
from leyden.core.tuning.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """A new measurement of the best trial's settings and of the default."""

    held_out: EvaluationSet
    seeds: tuple[int, ...]
    is_same_set: bool
    """Whether it is the held-out set by which the best trial was chosen."""
    best: float | None
    """Mean score; None if no run has ended."""
    default: float | None
    difference: PairedDifference | None
    failures: tuple[str, ...] = ()
    """Why runs have no result, a line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """Results of all trials so far."""

    trials: tuple[Trial, ...]
    best: Trial | None
    """Trial with the highest score; the default if no other is higher. None if no trial has finished."""
    default: Trial | None
    """None if the default configuration has no result."""
    difference: PairedDifference | None
    """Of the best trial to the default, on the tasks by which it was chosen."""
    is_share: bool
    """Whether every task earned 0 or 1, so that mean scores are shares of solved tasks."""
    importance: Mapping[str, float] | None
    finished: int
    """Number of finished trials, past runs included."""

    @property
    def is_better(self) -> bool:
        """Whether a trial is better than the default, by the score that chose it."""
        return self.best is not None and self.default is not None and not self.best.is_default


def read_result(plan: StudyPlan, storage: StudyStorage) -> StudyResult:
    """Return the results of a study so far."""
    trials = storage.trials()
    return result_of(plan, trials, importance_of(trials, plan.space))


def result_of(plan: StudyPlan, trials: Sequence[Trial], importance: Mapping[str, float] | None) -> StudyResult:
    """Return the results of a study with these trials."""
    finished = [trial for trial in trials if trial.state == "finished" and trial.score is not None]
    default = next((trial for trial in finished if trial.is_default), None)
    best = max(finished, key=lambda trial: (trial.score or 0.0, trial.is_default), default=None)
    ours, theirs = (scores_by_seed(plan, trial) for trial in (best, default))
    rewards = [reward for found in (ours, theirs) for scores in found.values() for reward in scores.values()]
    is_other = best is not None and default is not None and best.number != default.number
    return StudyResult(
        trials=tuple(trials),
        best=best,
        default=default,
        difference=paired_difference(ours, theirs) if is_other else None,
        is_share=bool(rewards) and is_share(rewards),
        importance=importance,
        finished=len(finished),
    )


def scores_by_seed(plan: StudyPlan, trial: Trial | None) -> dict[int, Scores]:
    """Return a trial's scores by seed and task; empty for None and for runs that were removed."""
    if trial is None:
        return {}
    found = {seed: last_scores(folder, plan.measure) for seed, folder in run_folders(plan, trial).items()}
    return {seed: scores for seed, scores in found.items() if scores}


def run_folders(plan: StudyPlan, trial: Trial) -> dict[int, Path]:
    """Return the folders of a trial's runs by seed. They need not exist."""
    if not trial.runs:
        return {seed: plan.folder / f"trial-{trial.number}-seed-{seed}" for seed in plan.seeds}
    return {seed: _past_folder(plan, Path(run)) for seed, run in zip(plan.seeds, trial.runs, strict=True)}


def _past_folder(plan: StudyPlan, run: Path) -> Path:
    """Return the folder of a past run; if it is not where it was, where it is in a copy of all runs."""
    copies = (plan.folder.parent / "/".join(run.parts[-depth:]) for depth in (2, 1))
    return next((path for path in (run, *copies) if path.exists()), run)


def confirmation_jobs(
    plan: StudyPlan, best: Trial, default: Trial, held_out: EvaluationSet, seeds: Sequence[int]
) -> tuple[list[Job], list[Job]]:
    """Return the runs that measure the best trial's settings anew, and those of the default."""
    return (
        plan.confirmation(best.number, best.values, held_out, seeds),
        plan.confirmation(default.number, None, held_out, seeds),
    )


def read_confirmation(
    plan: StudyPlan, records: Records, jobs: tuple[list[Job], list[Job]], held_out: EvaluationSet
) -> Confirmation:
    """Return what the runs of a confirmation came to."""
    failures: list[str] = []
    arms: list[dict[int, Path]] = []
    for arm in jobs:
        ended: dict[int, Path] = {}
        for job in arm:
            state = records.state(job)
            if state in ENDED and last_scores(job.folder, Measure(held_out=held_out.name)):
                ended[job.seed] = job.folder
            else:
                record = records.read(job)
                error = None if record is None or record.last is None else record.last.error
                failures.append(f"{job.label}: {error or state}")
        arms.append(ended)
    return confirmation_of(plan, held_out, tuple(job.seed for job in jobs[0]), (arms[0], arms[1]), failures)


def confirmation_of(
    plan: StudyPlan,
    held_out: EvaluationSet,
    seeds: tuple[int, ...],
    arms: tuple[Mapping[int, Path], Mapping[int, Path]],
    failures: Sequence[str],
) -> Confirmation:
    """Return what a confirmation came to; `arms` are the runs that have ended, by seed: of the best, of the default."""
    measure = Measure(held_out=held_out.name)
    scores = [{seed: last_scores(folder, measure) or {} for seed, folder in arm.items()} for arm in arms]
    means = [fmean(fmean(one.values()) for one in found.values()) if found else None for found in scores]
    return Confirmation(
        held_out=held_out,
        seeds=seeds,
        is_same_set=held_out.source == plan.measured.source,
        best=means[0],
        default=means[1],
        difference=paired_difference(scores[0], scores[1]),
        failures=tuple(failures),
    )

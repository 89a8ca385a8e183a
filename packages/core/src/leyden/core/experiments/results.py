"""Results of an experiment's runs, read from their folders and records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from leyden.core.experiments.definition import Measure
from leyden.core.experiments.plan import Job
from leyden.core.experiments.record import Records, Session, State
from leyden.core.masking import mask_text
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.models import Models, rewards_by_task
from leyden.core.trainer.run_folder.report import RunReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of the run of one arm with one seed."""

    job: Job
    state: State
    before: Mapping[str, float] | None = None
    """Scores by held-out task before the first step, in the experiment's measure; None if it was not evaluated."""
    after: Mapping[str, float] | None = None
    """Scores by held-out task after the last step."""
    evaluations: tuple[tuple[int, float], ...] = ()
    """(step, mean score) of all evaluations."""
    steps: int = 0
    """Number of steps taken."""
    metrics: tuple[dict[str, Any], ...] = ()
    """Metrics of the steps."""
    report: RunReport | None = None
    """None for a run that did not finish."""
    sessions: tuple[Session, ...] = ()
    note: str | None = None
    """Why it did not finish, or what is unusual."""


@dataclass(frozen=True, slots=True)
class ArmResult:
    """Results of an arm with all seeds."""

    name: str
    runs: list[RunResult] = field(default_factory=list[RunResult])

    def means(self, which: str) -> list[float]:
        """Return the mean score of each seed, `before` or `after`; seeds without one are left out."""
        found = [getattr(run, which) for run in self.runs]
        return [fmean(scores.values()) for scores in found if scores]

    def after_by_seed(self) -> dict[int, Mapping[str, float]]:
        """Return the scores after the last step by seed and task."""
        return {run.job.seed: run.after for run in self.runs if run.after}


def read_results(records: Records, jobs: Sequence[Job], measure: Measure) -> list[ArmResult]:
    """Read the results of `jobs`, which are runs of arms, by arm."""
    found: dict[str, ArmResult] = {}
    for job in jobs:
        assert job.arm is not None
        found.setdefault(job.arm, ArmResult(job.arm)).runs.append(read_result(records, job, measure))
    return list(found.values())


def read_result(records: Records, job: Job, measure: Measure) -> RunResult:
    """Read the result of one run. Nothing is read of a run that was made with other settings."""
    record, state = records.read(job), records.state(job)
    sessions = () if record is None else tuple(record.sessions)
    last = sessions[-1] if sessions else None
    if state == "other settings":
        return RunResult(
            job=job, state=state, note=f"left out, as it was made with other settings: {records.change(job)}"
        )
    run = RunFolder(job.folder)
    if not run.config_file.exists() or run.failure() is not None:
        error = None if last is None else last.error
        return RunResult(job=job, state=state, sessions=sessions, note=error or _described(state))
    report = run.report()
    metrics = (
        [line for line in run.metrics() if not line.keys() & {"held_out", "alert"}] if run.metrics_file.exists() else []
    )
    steps = max((int(line["step"]) for line in metrics), default=0)
    scores = scores_by_step(job.folder, measure)
    ended = state in ("finished", "no spread")
    after = scores.get(steps) if ended else None
    note = None if state == "finished" else _described(state)
    if state == "failed" and last is not None and last.error:
        note = last.error
    if state == "no spread":
        note = f"nothing left to learn after step {steps}: all rollouts of each task earned the same reward"
        note += "" if after else "; it was not evaluated after this step"
    return RunResult(
        job=job,
        state=state,
        before=scores.get(0),
        after=after,
        evaluations=tuple((step, fmean(found.values())) for step, found in scores.items() if found),
        steps=steps,
        metrics=tuple(metrics),
        report=report,
        sessions=sessions,
        note=note if note is None else mask_text(note),
    )


def scores_by_step(folder: Path, measure: Measure) -> dict[int, dict[str, float]]:
    """Return the scores by held-out task of each evaluated version of a run, by the number of steps that led to it.

    Empty for a run that has evaluated nothing.
    """
    if not (folder / "versions.jsonl").exists():
        return {}
    models = Models(*RunFolder.open(folder.parent, folder.name))
    which = "held_out" if measure.sampling == "greedy" else "sampled"
    name = measure.held_out or next((held.name for held in models.config.held_out), None)
    found: dict[int, dict[str, float]] = {}
    for number, version in models.versions.items():
        if name is not None and name in getattr(version, which):
            rewards = rewards_by_task(models, version, which, name)
            found[number] = {task: score(reward, measure) for task, reward in rewards.items()}
    return found


def score(reward: float, measure: Measure) -> float:
    """Return what a reward counts in a measure."""
    return reward if measure.score == "mean_reward" else float(reward >= measure.success_at)


def _described(state: State) -> str:
    return {
        "new": "not run yet",
        "unfinished": "interrupted; run the experiment again to continue it",
        "in use": "still running",
        "failed": "failed",
    }.get(state, state)

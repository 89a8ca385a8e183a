"""Execution of a study: begins trials, watches their evaluations, stops those below the median, stores results."""

import time
from dataclasses import dataclass, field
from statistics import fmean

from leyden.core.errors import LeydenError
from leyden.core.experiments.execution import PAUSE, is_in_use, sigterm_interrupts
from leyden.core.experiments.plan import Job
from leyden.core.experiments.processes import Processes
from leyden.core.experiments.progress import Progress
from leyden.core.experiments.record import ENDED, Records, State
from leyden.core.tuning.evaluations import described, last_scores, position, scores_on_the_way
from leyden.core.tuning.plan import StudyPlan
from leyden.core.tuning.settings import values_of
from leyden.core.tuning.storage import StudyStorage
from leyden.core.tuning.trial import Trial

MOST_FAILURES = 3
"""Trials that fail in one command, while none has ever come to a result, before the study stops."""


class StudyFailed(LeydenError):
    """Every trial failed."""


@dataclass(slots=True)
class _Active:
    """A trial under way. Its runs are made one after another, a seed each."""

    number: int
    is_default: bool
    jobs: list[Job]
    at: int = 0
    """Number of runs that have ended."""
    seen: tuple[int, int] = (0, 0)
    """Size and time of change of the evaluations when they were read."""
    finals: list[float] = field(default_factory=list[float])

    @property
    def job(self) -> Job:
        return self.jobs[self.at]

    @property
    def is_last(self) -> bool:
        return self.at == len(self.jobs) - 1


class Tuning:
    """Runs the trials of a study until there are `trials` of its own; those that have ended are not run again."""

    def __init__(
        self,
        plan: StudyPlan,
        storage: StudyStorage,
        records: Records,
        progress: Progress,
        *,
        trials: int,
        at_once: int = 1,
        processes: Processes | None = None,
    ) -> None:
        self._plan, self._storage, self._records, self._progress = plan, storage, records, progress
        self._trials, self._at_once = trials, at_once
        self._processes = Processes(records) if processes is None else processes
        self._active: list[_Active] = []
        self._announced: set[str] = set()
        self._failures = 0
        self.is_exhausted = False
        """Whether every setting of the search space has been tried."""

    def run(self) -> None:
        """Run what is missing. Raises StudyFailed if trials fail and none has come to a result.

        On KeyboardInterrupt the running processes are stopped; their trials continue from the last checkpoints when
        the study is run again.
        """
        known = self._storage.trials()
        self._active = [self._activated(trial) for trial in known if trial.state == "running"]
        try:
            with sigterm_interrupts():
                while self._fill() or self._active:
                    for one in list(self._active):
                        self._advance(one)
                    self._poll()
                    time.sleep(PAUSE)
        except BaseException:
            self._processes.stop()
            raise

    def _activated(self, trial: Trial) -> _Active:
        values = None if trial.is_default else trial.values
        return _Active(trial.number, trial.is_default, self._plan.trial(trial.number, values))

    def _fill(self) -> bool:
        """Begin trials while there is room for them; return whether there are more to begin."""
        while not self.is_exhausted and (left := self._left()) and len(self._active) < self._at_once:
            trial = self._next()
            if trial is None:
                self.is_exhausted = True
                self._progress.leave_out(left * len(self._plan.seeds))
                break
            self._active.append(self._activated(trial))
        return not self.is_exhausted and self._left() > 0

    def _left(self) -> int:
        """Number of trials to begin. Those that failed in an earlier command are replaced by others."""
        own = [trial for trial in self._storage.trials() if not trial.is_past]
        return max(0, self._trials - self._failures - sum(trial.state != "failed" for trial in own))

    def _next(self) -> Trial | None:
        if not any(trial.is_default and trial.state != "failed" for trial in self._storage.trials()) and (
            not self._failures
        ):
            return self._storage.begin_default(values_of(self._plan.base, self._plan.space))
        return self._storage.begin_next()

    def _advance(self, one: _Active) -> None:
        """Start the run of a trial if it is not running, take in its evaluations, and stop it if it is too bad."""
        if one.job in self._processes.jobs:
            self._progress.advance(one.job)
        elif not self._began(one):
            return
        self._watch(one)

    def _began(self, one: _Active) -> bool:
        """Start the trial's next run; return whether it runs now. A run that ended before is taken as it is."""
        job = one.job
        if is_in_use(job):
            if job.name not in self._announced:
                self._announced.add(job.name)
                self._progress.show(f"{job.label}: another process trains it; waiting for its end")
            return False
        state = self._records.state(job)
        if state in ENDED:
            self._ended(one, state, was_there=True)
            return False
        if state in ("failed", "other settings"):
            change = self._records.change(job)
            self._fail(one, self._processes.error(job) or change or "it failed", was_there=True)
            return False
        if self._pruned(one):  # a killed command had read the evaluation, but not stopped the run
            return False
        resumes = self._processes.resumes(job)
        if not self._processes.start(job):
            self._fail(one, self._processes.error(job) or "it cannot be started")
            return False
        self._progress.begin(job, resumes=resumes)
        return True

    def _watch(self, one: _Active) -> None:
        file = one.job.folder / "versions.jsonl"
        seen = (file.stat().st_size, file.stat().st_mtime_ns) if file.exists() else (0, 0)
        if seen != one.seen:
            one.seen = seen
            self._report(one)
            self._pruned(one)

    def _report(self, one: _Active) -> None:
        folders = [job.folder for job in one.jobs[: one.at + 1]]
        self._storage.report(one.number, scores_on_the_way(folders, self._plan.measure))

    def _pruned(self, one: _Active) -> bool:
        """Stop a trial whose latest score is below the median of the others; return whether it was stopped.

        The default is never stopped, as the others are compared with it, nor a run that has taken its last step.
        """
        reported = self._storage.trial(one.number).reported
        if one.is_default or not self._plan.prunes or not reported:
            return False
        steps = int((one.job.settings or {}).get("steps", self._plan.steps))
        if max(reported) >= position(len(one.jobs) - 1, steps):
            return False
        if (reason := self._storage.below_median(one.number)) is None:
            return False
        self._processes.stop([one.job])
        where = described(max(reported), self._plan.seeds)
        self._storage.prune(one.number, f"stopped after {where}: {reason}")
        self._drop(one)
        self._progress.end(one.job, "pruned", f"after {where}, {reason}", was_there=False)
        return True

    def _poll(self) -> None:
        for job, state in self._processes.ended():
            one = next(one for one in self._active if one.job == job)
            if state in ENDED:
                self._ended(one, state)
            else:
                self._fail(one, self._processes.error(job) or "it failed")

    def _ended(self, one: _Active, state: State, *, was_there: bool = False) -> None:
        """Take the result of a run, and finish the trial after its last seed."""
        scores = last_scores(one.job.folder, self._plan.measure)
        if scores is None:
            self._fail(one, f"it has no result on {self._plan.measured.name}")
            return
        self._report(one)
        one.finals.append(fmean(scores.values()))
        job, is_last = one.job, one.is_last
        if is_last:
            self._storage.finish(one.number, fmean(one.finals))
            self._active.remove(one)
        else:
            one.at, one.seen = one.at + 1, (0, 0)
        self._progress.end(job, state, None, was_there=was_there)

    def _fail(self, one: _Active, reason: str, *, was_there: bool = False) -> None:
        self._storage.fail(one.number, reason)
        self._drop(one)
        self._progress.end(one.job, "failed", reason, was_there=was_there)
        self._failures += 1
        has_result = any(trial.state in ("finished", "pruned") for trial in self._storage.trials())
        if not has_result and (self._failures >= MOST_FAILURES or not (self._left() or self._active)):
            raise StudyFailed(f"every trial failed, the last one because: {reason}")

    def _drop(self, one: _Active) -> None:
        self._active.remove(one)
        self._progress.leave_out(len(one.jobs) - one.at - 1)

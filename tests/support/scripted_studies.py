"""Studies whose runs are scripted: what a run scores is a function of its settings, and no process is started."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from leyden.core.experiments.plan import Job
from leyden.core.experiments.processes import Processes
from leyden.core.experiments.progress import Progress
from leyden.core.experiments.record import Records, Session, State
from leyden.core.trainer.config import EvaluationSet, RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.run_folder.versions import Evaluation, ModelVersion, VersionFile
from leyden.core.tuning.execution import Tuning
from leyden.core.tuning.plan import StudyPlan
from leyden.core.tuning.space import read_space
from leyden.core.tuning.storage import StudyStorage

TASKS: list[dict[str, Any]] = [{"question": str(number)} for number in range(20)]
BASE: dict[str, Any] = {
    "agent": "agent.py:agent",
    "reward": "reward.py:score",
    "tasks": "train.jsonl",
    "policy": "tiny",
    "held_out": [{"name": "val", "source": "val.jsonl"}],
    "steps": 4,
    "algorithm_config": {"learning_rate": 1e-3},
}
Settings = Mapping[str, Any]
Script = Callable[[Settings], Sequence[float] | str]
"""Scores of a run after each of its steps, or the reason why it fails."""


def study_plan(folder: Path, *searches: str, **changes: Any) -> StudyPlan:
    """Return the plan of a study in `folder`."""
    fields: dict[str, Any] = {
        "name": "s",
        "folder": folder,
        "base": BASE,
        "space": read_space(searches or ("learning_rate=1e-4..1e-2:log",)),
        "measured": EvaluationSet(name="val", source="val.jsonl"),
        "eval_every": 1,
    }
    return StudyPlan(**(fields | changes))


def open_storage(plan: StudyPlan) -> StudyStorage:
    """Open the storage of a study, in a folder that is made if it is missing."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    return StudyStorage(plan.folder, plan.name, plan.space, sampler_seed=plan.sampler_seed)


def begin_run(folder: Path, settings: Settings, tasks: Sequence[dict[str, Any]] = TASKS) -> RunFolder:
    """Make the folder of a run with these settings, which has evaluated its initial policy."""
    config = msgspec.convert({**settings, "name": folder.name}, RunConfig)
    run = RunFolder.create(folder.parent, config, [*tasks], {held.name: [*TASKS] for held in config.held_out})
    evaluate(run, 0, 0.0)
    return run


def evaluate(run: RunFolder, step: int, score: float) -> None:
    """Let a run have this score after a step: it solves that share of the tasks."""
    config = msgspec.convert(run.written_config(), RunConfig)
    rewards = {str(row): float(row < round(score * len(TASKS))) for row in range(len(TASKS))}
    own = {held.name: Evaluation(success=score, rewards=rewards) for held in config.held_out}
    version = ModelVersion(
        run=config.name, version=step, parent=None, created=0.0, algorithm="x", seed=config.seed, held_out=own
    )
    VersionFile(run.path).append(version)
    if step:
        run.append_metrics({"step": step, "reward": score})


def end_run(run: RunFolder, steps: int) -> None:
    """Let a run have finished."""
    run.write_report(RunReport(name=run.path.name, seed=0, steps=steps))


class ScriptedProcesses(Processes):
    """Runs that take one step at each look, and score what a script says.

    After `most_steps` steps in all, KeyboardInterrupt is raised, as Ctrl-C does.
    """

    def __init__(self, records: Records, script: Script, most_steps: int = 1_000) -> None:
        super().__init__(records)
        self._script, self._left = script, most_steps
        self._under_way: list[Job] = []
        self.started: list[str] = []
        """Names of the runs that were started or resumed."""
        self.most_at_once = 0

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def jobs(self) -> list[Job]:
        """The runs that have not ended."""
        return [*self._under_way]

    def start(self, job: Job) -> bool:
        """Begin a run, or go on with it."""
        if not self.resumes(job):
            begin_run(job.folder, job.settings or {})
        record = self._records.read(job) or self._records.new(job)
        record.sessions.append(Session(command=[], leyden="1", began=0.0, load_before=0.0))
        self._records.write(job, record)
        self._under_way.append(job)
        self.started.append(job.name)
        self.most_at_once = max(self.most_at_once, len(self._under_way))
        return True

    def ended(self) -> Iterator[tuple[Job, State]]:
        """Let each run take a step; return those that have ended."""
        for job in self.jobs:
            if not self._left:
                raise KeyboardInterrupt
            self._left -= 1
            scores = self._script(job.settings or {})
            if isinstance(scores, str):
                yield self._end(job, 1, scores)
                continue
            run = RunFolder(job.folder)
            step = max(VersionFile(job.folder).read()) + 1
            evaluate(run, step, scores[step - 1])
            if step == len(scores):
                end_run(run, step)
                yield self._end(job, 0, None)

    def stop(self, jobs: Sequence[Job] | None = None) -> None:
        """Stop runs."""
        self._under_way = [] if jobs is None else [job for job in self._under_way if job not in jobs]

    def _end(self, job: Job, code: int, error: str | None) -> tuple[Job, State]:
        self._under_way.remove(job)
        record = self._records.read(job)
        assert record is not None and record.last is not None
        record.last.exit_code, record.last.error = code, error
        self._records.write(job, record)
        return job, self._records.state(job)


def run_trials(
    plan: StudyPlan, script: Script, *, trials: int, at_once: int = 1, most_steps: int = 1_000
) -> ScriptedProcesses:
    """Run a study until it has `trials` trials, and return its processes."""
    records, storage = Records(plan.folder), open_storage(plan)
    processes = ScriptedProcesses(records, script, most_steps)
    progress = Progress(trials, quiet=True)
    try:
        Tuning(plan, storage, records, progress, trials=trials, at_once=at_once, processes=processes).run()
    except KeyboardInterrupt:
        assert most_steps < 1_000
    finally:
        storage.close()
    return processes

"""Context of external loops: implements `ExternalLoopContext` with store, gateway and run folder.

It logs steps that taught nothing, and ends the run after many in a row.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp

from leyden.core.algorithm.account import Account
from leyden.core.algorithm.external_loop import (
    ExternalLoopContext,
    LoopPlan,
    RunEndpoint,
    StepTasks,
    TaskRequest,
    TaskUsage,
)
from leyden.core.algorithm.learner import LearnerOptions, collected_numbers, counts
from leyden.core.data.reasons import LEFT_OUT_BY_LOOP
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import NothingToLearn, TrainingError
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.context.discarded_versions import are_lost
from leyden.core.trainer.context.run_journal import RunJournal, pace
from leyden.core.trainer.context.trained_policies import TrainedPolicies
from leyden.core.trainer.rollouts.collector import Collected, Collector
from leyden.core.trainer.run_folder.model_selection import VersionScores
from leyden.core.trainer.serving.serving import Serving

log = logging.getLogger(__name__)

MOST_EMPTY = LearnerOptions().max_empty_batches
"""Number of consecutive empty steps that end the run; the same as for batches of loops in the Leyden process."""
USED = "used"
"""Key in a progress file: the trainable data of tasks that no step has used yet."""
LEARNED = "learned"
"""Key in a progress file: the tasks that the step learned from."""


class ExternalLoopRun(ExternalLoopContext):
    """One session of a run whose training loop runs in processes of its own."""

    def __init__(self, config: RunConfig, journal: RunJournal, serving: Serving, collector: Collector) -> None:
        self.config, self.journal, self.serving, self.collector = config, journal, serving, collector
        self.steps = config.steps
        self.step = 0
        self.models = TrainedPolicies(config, journal.phase)
        if self.serving.external_replicas is None:
            raise TrainingError("this run serves the policy itself, but its training loop runs in other processes")
        self._external_replicas = self.serving.external_replicas
        folder = journal.folder
        self.home, self.checkpoints = folder.path / "loop", folder.checkpoints / "loop"
        self.tasks, self.held_out = self.collector.tasks, self.collector.held_out
        self.plan = loop_plan(self.config)
        self._first = 0
        """Step after which this session resumes."""
        self._repeats = True
        """Whether the loop repeats the later steps as before."""
        self._collected: dict[TaskRequest, Collected] = {}
        """Collected rollouts by task, for tasks that no step has used yet."""
        self._used: dict[TaskRequest, TaskUsage] = {}
        """Trainable data of these tasks."""
        self._taken: dict[int, tuple[TaskRequest, ...]] = {}
        """Tasks by step, for future steps whose tasks the loop has reported."""
        self._measured: dict[int, dict[str, dict[int, Collected]]] = {}
        """Collected held-out rollouts by version, held-out set and row."""
        self._empty_step_guard = EmptyStepGuard()
        self._idle_before = collector.idle.seconds
        """Seconds in which no rollout was in flight, up to the end of the last step."""

    def open(self, app: ASGIApp) -> RunEndpoint:
        """Serve `app` beside the gateway and return its URL and token."""
        return self._external_replicas.open(app)

    async def serve_from(self, addresses: Sequence[str], version: int) -> None:
        """Route model calls to the replicas at `addresses`, which serve `version`."""
        await self._external_replicas.serve_from([f"http://{address}" for address in addresses], version)

    async def pause(self, version: int) -> None:
        """Stop model calls until `serve_from` is called."""
        await self._external_replicas.pause(version)

    async def rollouts(self, asked: TaskRequest) -> TrajectoryGroup:
        """Run a task and return its group of rollouts; rollouts of an earlier session are read from the store."""
        if (collected := self._collected.get(asked)) is None:
            collected = await self._collect(asked)
        if asked.held_out is None:
            self._collected[asked] = collected
        else:
            measured = self._measured.setdefault(asked.step, {}).setdefault(asked.held_out, {})
            measured[asked.row] = collected
            self._evaluate_when_complete(asked.step)
        return collected.groups[0] if collected.groups else TrajectoryGroup(task_id="", trajectories=())

    async def _collect(self, asked: TaskRequest) -> Collected:
        again = 0
        while not self._repeats and await are_lost(
            self.serving.store, self.collector.requests(asked, again), self._first
        ):
            again += 1
        collected = await self.collector.task(asked, again)
        if asked not in self._used:  # otherwise an earlier session has counted it
            self.journal.count(collected)
        return collected

    def used(self, used: TaskUsage) -> None:
        """Count what can be trained of a task's rollouts, and what cannot."""
        known = used.asked in self._used
        self._used[used.asked] = used
        if known:
            return
        self.journal.count_excluded(used.calls_left_out)
        if used.group_dropped is not None:
            self.journal.count_dropped({used.group_dropped: 1})

    async def taken(self, taken: StepTasks) -> None:
        """Record the tasks that a step learns from. Rollouts of an earlier session are read from the store."""
        for asked in taken.tasks:
            if asked not in self._collected:
                await self.rollouts(asked)
        self._taken[taken.step] = taken.tasks
        given_up: list[str] = []
        for asked in taken.left_out:
            collected = self._collected.pop(asked, None) or Collected()
            given_up += [one.rollout_id for group in collected.groups for one in group.trajectories]
            self._used.pop(asked, None)
        if given_up:
            self.journal.account(taken.step, [Account(rollouts={LEFT_OUT_BY_LOOP: given_up})])
        if taken.left_out:
            self.journal.count_dropped({LEFT_OUT_BY_LOOP: len(taken.left_out)})

    @property
    def noted_steps(self) -> tuple[int, ...]:
        """The steps for which progress files exist, in ascending order."""
        return tuple(sorted(int(file.stem.rpartition("-")[2]) for file in self.home.glob("progress-*.json")))

    async def go_on_after(self, step: int, *, repeats: bool = True) -> None:
        """Start the session from the progress that was saved with `step`; 0 is the start of the run.

        `repeats` states whether the loop repeats the later steps as before.
        """
        self._repeats = repeats
        self.home.mkdir(exist_ok=True)
        if step == 0:
            self.journal.start()
        else:
            progress = msgspec.json.decode(self._progress_file(step).read_bytes())
            self.step = self._first = step
            self.journal.resume(step, self.checkpoints / str(step), progress, keep_evaluations=True)
            known = msgspec.convert(progress.get(USED, []), list[TaskUsage])
            self._used = {used.asked: used for used in known}
        self.journal.display.start(self.steps, step)
        await self.journal.follow(self.serving.store, step)

    async def step_taken(self, step: int, metrics: Mapping[str, Any], *, kept: bool) -> None:
        """Write the metrics line of the step; if `kept`, also write the progress from which the loop can resume."""
        learned_from = self._learned_from(step)
        collected, used = Collected(), [self._used.pop(asked) for asked in learned_from if asked in self._used]
        for asked in learned_from:
            collected.include(self._collected.pop(asked, Collected()))
        self.step = step
        self.journal.account(step, [own.account for own in used])
        trained = {
            "tokens_trained": sum(own.tokens for own in used),
            "transitions_trained": sum(own.calls for own in used),
            "groups": len(collected.groups),
        }
        found = [trajectory for group in collected.groups for trajectory in group.trajectories]
        is_measurable = any(one.transitions for one in found) and any(one.reward is not None for one in found)
        known = collected_numbers(collected.groups, tuple(self.config.policies)) if is_measurable else {}
        idle_before, self._idle_before = self._idle_before, self.collector.idle.seconds
        speed = pace(collected.seconds, collected.tokens, engine_idle=self._idle_before - idle_before)
        self.journal.log(step, {**known, **trained, **metrics}, speed)
        self.journal.selection.record(step)
        if kept:
            self._write_progress(step, learned_from)
        await self.journal.catch_up()
        self._empty_step_guard.note(step, used, is_last=step >= self.steps)

    def _learned_from(self, step: int) -> Sequence[TaskRequest]:
        """Return the tasks that a step learns from."""
        if (tasks := self._taken.pop(step, None)) is not None:
            return tasks
        return [asked for asked in {**self._collected, **self._used} if asked.step == step]

    def _write_progress(self, step: int, learned_from: Sequence[TaskRequest]) -> None:
        """Write what `go_on_after` needs, for the loop's own checkpoint of `step`."""
        file = self._progress_file(step)
        temporary = file.with_name(file.name + ".tmp")
        loop_progress = {USED: list(self._used.values()), LEARNED: learned_from}
        temporary.write_bytes(msgspec.json.encode({**self._progress(), **loop_progress}))
        temporary.replace(file)

    def _progress(self) -> dict[str, Any]:
        return {"step": self.step, "lineage": self.collector.lineage, **self.journal.progress(self.step)}

    async def finish(self) -> None:
        """Do nothing: the loop writes its own checkpoints."""

    async def close(self) -> None:
        """Do nothing: `finish` leaves nothing to end."""

    async def adopt(self, weights: Mapping[int, Path]) -> None:
        """Save weights of an external loop, by version, as checkpoints of the run."""
        for version, folder in sorted(weights.items()):
            await asyncio.to_thread(self._adopt, version, folder)

    @property
    def versions_to_keep(self) -> tuple[int, ...]:
        """The best version so far and the last version."""
        kept = self.journal.selection.kept(self.step).version
        return tuple(sorted({kept, self.step}))

    def _adopt(self, version: int, folder: Path) -> None:
        from leyden.core.policy.checkpoints.checkpoint import save_trained
        from leyden.core.policy.model import PolicyModel

        (name,) = self.config.policies
        model = self.models.loaded(name)
        model.load_weights(PolicyModel.load(folder).trained_weights())
        saved = save_trained(self.journal.folder.checkpoints, version, model, self._progress())
        self.journal.selection.saved(version, saved)

    def _progress_file(self, step: int) -> Path:
        return self.home / f"progress-{step}.json"

    def _evaluate_when_complete(self, version: int) -> None:
        """Score a version once every row of every held-out set has been run."""
        measured = self._measured[version]
        if any(len(measured.get(name, ())) < len(rows) for name, rows in self.held_out.items()):
            return
        label = "before" if version == 0 else "after" if version >= self.steps else "during"
        scores = VersionScores.none(version, ())
        for name in self.held_out:
            whole = Collected()
            for _, collected in sorted(measured[name].items()):
                whole.include(collected)
            scores.held_out[name] = self.journal.evaluation(name, whole, tasks=len(measured[name]))
        self.journal.selection.score(scores)
        for name, found in scores.held_out.items():
            self.journal.report_held_out(version, name, label, found)
        if label != "during":
            self.journal.report.note_held_out(label, scores.held_out, scores.sampled)
        del self._measured[version]


def loop_plan(config: RunConfig) -> LoopPlan:
    """Return what an external loop is given of a run with one policy."""
    (policy,) = config.policies.values()
    return LoopPlan(
        policy=policy,
        steps=config.steps,
        tasks_per_step=config.tasks_per_step,
        group_size=config.group_size,
        seed=config.seed,
        temperature=config.sampling.temperature,
        eval_every=config.eval_every,
        checkpoint_every=config.checkpoint_every,
        keep_checkpoints=config.keep_checkpoints,
    )


class EmptyStepGuard:
    """Counter of empty steps in one session."""

    def __init__(self) -> None:
        self._empty = 0
        """Number of consecutive steps that taught nothing."""

    def note(self, step: int, used: Sequence[TaskUsage], *, is_last: bool) -> None:
        """Record what a step learned from; log a warning if it was nothing.

        Such a step still counts as taken: the loop's optimizer has moved the weights by momentum and weight decay.
        Raises NothingToLearn after `MOST_EMPTY` such steps in a row, unless this is the last step.
        """
        if not used or any(one.calls for one in used):
            self._empty = 0
            return
        self._empty += 1
        reasons = counts(Counter(one.group_dropped or "no call left" for one in used))
        log.warning("step %d had nothing to learn from (%s)", step, reasons)
        if self._empty >= MOST_EMPTY and not is_last:
            raise NothingToLearn(
                f"{self._empty} steps in a row had nothing to learn from; tasks of the last one: {reasons}: they are "
                "too easy or too hard; add other tasks, raise --group-size or --temperature"
            )

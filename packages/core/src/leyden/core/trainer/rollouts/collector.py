"""Rollout collector: enqueues rollouts in the store, waits for them, and reads them as trajectories."""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from leyden.core.algorithm.external_loop import TaskRequest
from leyden.core.algorithm.task_rollouts import RolloutRequest, RolloutResult
from leyden.core.data import semconv
from leyden.core.data.failure import Failure, failure_of
from leyden.core.data.reasons import EARLIER_ATTEMPT
from leyden.core.data.rollout import (
    Attempt,
    AttemptedRollout,
    EnqueueRollout,
    Rollout,
    RolloutConfig,
    RolloutMode,
    Task,
)
from leyden.core.data.route import ANSWERED_BY
from leyden.core.data.similar_messages import Tally
from leyden.core.data.span import Span
from leyden.core.data.transition import Trajectory, TrajectoryGroup
from leyden.core.errors import LeydenError, NotFound, TaskError
from leyden.core.store.base import LightningStore
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.monitoring.display import Display
from leyden.core.trainer.rollouts.interrupted import fatal_error, requeue
from leyden.core.trainer.rollouts.selection import make_selector
from leyden.core.trainer.rollouts.tasks import batch, place_of
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.calls import is_recorded_call
from leyden.core.trajectory.group import group_by_task

log = logging.getLogger(__name__)


STALL_SECONDS = 30.0
"""Seconds beyond the time limit of an attempt without a finished rollout, after which a warning is logged."""
LOOK_SECONDS = 0.1
"""Seconds between two reads of finished rollouts. At each read the display is updated and the workers are checked."""


@dataclass(slots=True)
class Collected:
    """Finished rollouts as groups of trajectories, with counts of what was left out."""

    groups: list[TrajectoryGroup] = field(default_factory=list[TrajectoryGroup])
    rollouts: int = 0
    failed: int = 0
    empty: int = 0
    unrewarded: int = 0
    tokens: int = 0
    """Number of response tokens of all recorded calls, trained or not."""
    seconds: float = 0.0
    """Time in seconds until all rollouts had finished."""
    excluded: Counter[str] = field(default_factory=Counter[str])
    failures: Tally = field(default_factory=Tally)
    """Reasons of failed rollouts, each with the id of an example."""

    def include(self, other: "Collected") -> None:
        """Add the groups and counts of `other`."""
        self.groups.extend(other.groups)
        self.rollouts += other.rollouts
        self.failed += other.failed
        self.empty += other.empty
        self.unrewarded += other.unrewarded
        self.tokens += other.tokens
        self.seconds += other.seconds
        self.excluded.update(other.excluded)
        self.failures.include(other.failures.most_common())

    @property
    def success(self) -> float:
        """Mean reward over the rollouts; a failed rollout counts as 0. NaN if there is none.

        Excludes rollouts without a reward, and rollouts in which Leyden itself failed, which do not measure the policy.
        """
        rewards = [reward for group in self.groups for reward in _rewards_of(group)]
        return sum(rewards) / len(rewards) if rewards else float("nan")

    @property
    def rewards(self) -> dict[str, float]:
        """Mean reward of each task by its id, computed like `success`. Excludes tasks without any reward."""
        rewards_by_task = {group.task_id: _rewards_of(group) for group in self.groups}
        return {task: sum(rewards) / len(rewards) for task, rewards in rewards_by_task.items() if rewards}

    @property
    def dimensions(self) -> dict[str, float]:
        """Mean of each dimension of the reward over the rollouts that `success` counts; 0 where a rollout lacks it."""
        counted = [trajectory for group in self.groups for trajectory in _counted(group)]
        names = dict.fromkeys(name for trajectory in counted for name in trajectory.dimensions)
        return {name: sum(t.dimensions.get(name, 0.0) for t in counted) / len(counted) for name in names}


def _counted(group: TrajectoryGroup) -> list[Trajectory]:
    rewarded = [t for t in group.trajectories if t.reward is not None or not t.succeeded]
    return [t for t in rewarded if t.failure is None or t.failure.kind != "leyden"]


def _rewards_of(group: TrajectoryGroup) -> list[float]:
    return [0.0 if t.reward is None else t.reward for t in _counted(group)]


class _Stall:
    """Detector of stalls: reports once that a count has not changed for longer than `limit` seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._count, self._since, self._has_warned = -1, time.monotonic(), False

    def is_new(self, count: int) -> bool:
        now = time.monotonic()
        if count != self._count:
            self._count, self._since, self._has_warned = count, now, False
        if self._has_warned or now - self._since < self.limit:
            return False
        self._has_warned = True
        return True


class Collector:
    """Runs tasks through the store.

    `check_workers` raises when no worker can be kept alive. `flush` returns when all answered calls are recorded.
    `agents_output` is the part of a warning that states where the agents' output can be read.
    """

    def __init__(
        self,
        store: LightningStore,
        config: RunConfig,
        *,
        tasks: Sequence[Task],
        held_out: dict[str, list[Task]],
        display: Display,
        check_workers: Callable[[], Awaitable[None]],
        flush: Callable[[], Awaitable[None]],
        agents_output: str = "read the output of the agents",
    ) -> None:
        self.store, self.config, self.display = store, config, display
        self.tasks, self.held_out = tasks, held_out
        self.check_workers = check_workers
        self.flush = flush
        self.agents_output = agents_output
        self.resources_id: str | None = None
        """Version of the resources that rollouts run with; None: the latest in the store."""
        self.divided: tuple[str, ...] = ()
        """Versions of the resources that the training rollouts of each task run with in turn; empty: `resources_id`."""
        self.prefix = ""
        """Beginning of the ids of the run's rollouts in a store that several runs share."""
        self.lineage = ""
        """Prefix of rollout ids. A rollback changes it, so that repeated steps run new rollouts."""
        self.idle = IdleTimer()
        """Timer of the seconds in which the trainer waited for no rollout, so that the engine was idle."""
        self._seconds_spent: dict[str, float] = {}
        """Seconds spent so far, by the id of a batch's first rollout. Training reads again the rollouts of the check,
        and their time is then included."""
        self.selector = make_selector(config)
        self.rollout_config = RolloutConfig(
            timeout_seconds=config.timeout_seconds,
            unresponsive_seconds=max(30.0, config.timeout_seconds / 4),
            max_attempts=config.max_attempts,
            retry_condition=("timeout", "unresponsive"),
        )

    async def train(self, index: int, *, version: int, on_finished: Callable[[int], None] | None = None) -> Collected:
        """Collect the rollouts of batch `index`, `group_size` of each task.

        The rollout ids contain batch and version: a batch that an earlier session began is finished, not started again.
        `on_finished` receives the number of finished rollouts, in place of the display.
        """
        chosen = batch(self.tasks, index, self.config.tasks_per_step, self.config.seed)
        first = index * self.config.tasks_per_step
        requests = [
            self._request(
                f"train-v{version}-b{index}-{place}-{copy}",
                task,
                "train",
                {"task": f"{index}/{place}", "row": row, **self._answered_by(first + place + copy)},
                self._in_turn(first + place + copy),
            )
            for place, (row, task) in enumerate(chosen)
            for copy in range(self.config.group_size)
        ]
        if on_finished is None:
            self.display.phase("rollouts", len(requests))
        return await self._run(requests, on_finished or self.display.advance)

    async def group(self, number: int, on_finished: Callable[[int], None]) -> Collected:
        """Collect the `group_size` rollouts of task `number` in the run's task order.

        `on_finished` receives the number of finished rollouts. The ids contain only the number of the task: rollouts
        that an earlier session began are not run again.
        """
        ((row, task),) = batch(self.tasks, number, 1, self.config.seed)
        requests = [
            self._request(
                f"train-g{number}-{copy}",
                task,
                "train",
                {"task": f"g{number}", "row": row, **self._answered_by(number + copy)},
                self._in_turn(number + copy),
            )
            for copy in range(self.config.group_size)
        ]
        return await self._run(requests, on_finished)

    async def task(self, request: TaskRequest, again: int = 0) -> Collected:
        """Collect the rollouts of one task that an external loop requests.

        The ids contain step, place in the step and row of the task. A later session that requests the same task does
        not run it again, unless `again` is above 0.
        """
        return await self._run(self.requests(request, again), _ignore)

    def requests(self, request: TaskRequest, again: int = 0) -> list[EnqueueRollout]:
        """Return the rollouts that `task` enqueues in the store."""
        if request.held_out is None:
            task, metadata = self.tasks[request.row], self._answered_by(request.place)
            prefix = f"train-s{request.step}-{request.place}-r{request.row}"
        else:
            task, metadata = self.held_out[request.held_out][request.row], {"sampling": "agent"}
            prefix = f"val-{request.held_out}-s{request.step}-{request.row}"
        mode: RolloutMode = "train" if request.held_out is None else "val"
        label = f"{request.step}/{request.place}" if mode == "train" else request.row
        if again:
            prefix += f"-again{again}"
        return [
            self._request(f"{prefix}-{copy}", task, mode, {"task": label, "row": request.row, **metadata})
            for copy in range(request.copies)
        ]

    async def evaluate(
        self,
        name: str,
        label: str,
        *,
        sampled: bool,
        version: int,
        side: str | None = None,
        resources_id: str | None = None,
    ) -> Collected:
        """Run each task of a held-out set once. In a run with sides, the policy of `side` answers.

        `resources_id` is the version of the resources that the agent runs with; None: the published one.
        """
        how = "policy" if sampled else "agent"
        # The first acting side gets the rollout ids of a run that trains it alone. Where random draws follow the ids,
        # both runs then draw the same.
        named = "" if side in (None, *self.config.acting[:1]) else f"-{side}"
        metadata = {"sampling": how} if side is None else {"sampling": how, ANSWERED_BY: side}
        requests = [
            self._request(
                f"val-{name}-{label}-v{version}-{how}-{row}{named}",
                task,
                "val",
                {"task": row, **metadata},
                resources_id,
            )
            for row, task in enumerate(self.held_out[name])
        ]
        label_parts = [f"held out, {label}", *([] if side is None else [side]), *(["sampled"] if sampled else [])]
        self.display.phase(", ".join(label_parts), len(requests))
        return await self._run(requests, self.display.advance)

    def _answered_by(self, turn: int) -> dict[str, str]:
        """Return the metadata that names the side which answers a training rollout. Acting sides take turns.

        Consecutive turns spread a group evenly over the sides. The next group starts one turn later, so that a
        remainder does not always go to the same side.
        """
        acting = self.config.acting
        return {ANSWERED_BY: acting[turn % len(acting)]} if acting else {}

    def _in_turn(self, turn: int) -> str | None:
        """Return the version of the resources of a training rollout, with the same order of turns as for sides."""
        return self.divided[turn % len(self.divided)] if self.divided else None

    async def requested(self, step: int, requests: Sequence[RolloutRequest]) -> tuple[Collected, list[RolloutResult]]:
        """Run the rollouts that an algorithm requests in `step`, and return their results in the order of `requests`.

        The ids contain the step and everything that distinguishes a request, so that a later session that repeats the
        step does not run them again.
        """
        enqueued = {request: self._requested(step, request) for request in requests}
        self.display.phase("rollouts", len(enqueued))
        collected = await self._run(list(enqueued.values()), self.display.advance)
        found = {one.rollout_id: one for group in collected.groups for one in group.trajectories}
        results = {
            request: await self._result(request, rollout.rollout_id or "", found)
            for request, rollout in enqueued.items()
        }
        return collected, [results[request] for request in requests]

    def _requested(self, step: int, request: RolloutRequest) -> EnqueueRollout:
        version = request.resources_id or self.resources_id
        named = f"s{step}-r{request.row}-{version}-{request.repeat}"
        metadata = {"task": request.row, "row": request.row}
        if request.held_out is None:
            return self._request(f"train-{named}", self.tasks[request.row], "train", metadata, version)
        task, metadata = self.held_out[request.held_out][request.row], {**metadata, "sampling": "agent"}
        return self._request(f"val-{request.held_out}-{named}", task, "val", metadata, version)

    async def _result(
        self, request: RolloutRequest, rollout_id: str, trajectories: Mapping[str, Trajectory]
    ) -> RolloutResult:
        rollout, trajectory = await self.store.get_rollout_by_id(rollout_id), trajectories.get(rollout_id)
        if rollout is None:
            raise NotFound(f"no rollout {rollout_id!r}")
        spans: list[Span] = []
        if trajectory is not None:
            spans = (await self.store.query_spans(rollout_id, trajectory.attempt_id)).items
        by_id = {span.span_id: span for span in spans}
        calls = [span for span in spans if is_recorded_call(span) and self.selector.selects(span, by_id)]
        cancelled = Failure(kind="cancelled", type="Cancelled", message="the rollout was cancelled before it began")
        return RolloutResult(
            request=request,
            rollout=rollout,
            reward=None if trajectory is None else trajectory.reward,
            dimensions={} if trajectory is None else trajectory.dimensions,
            failure=cancelled if trajectory is None else trajectory.failure,
            spans=tuple(spans),
            calls=tuple(calls),
        )

    def _request(
        self, rollout_id: str, task: Task, mode: RolloutMode, metadata: dict[str, Any], version: str | None = None
    ) -> EnqueueRollout:
        return EnqueueRollout(
            rollout_id=self.prefix + self.lineage + rollout_id,
            input=task,
            mode=mode,
            resources_id=version or self.resources_id,
            config=self.rollout_config,
            metadata=metadata,
        )

    async def _run(self, requests: list[EnqueueRollout], on_finished: Callable[[int], None]) -> Collected:
        began = time.monotonic()
        ids = [request.rollout_id or "" for request in requests]
        collected = Collected()
        with self.idle.busy():
            await requeue(self.store, await self.store.enqueue_many_rollouts(requests))
            trajectories = await self._finish(ids, on_finished, collected)
        tasks = {request.rollout_id or "": str((request.metadata or {})["task"]) for request in requests}
        in_order = [trajectories[rollout_id] for rollout_id in ids if rollout_id in trajectories]
        collected.groups = group_by_task(in_order, tasks)
        collected.seconds = time.monotonic() - began
        for first in ids[:1]:
            collected.seconds = self._seconds_spent[first] = collected.seconds + self._seconds_spent.get(first, 0.0)
        return collected

    async def _finish(
        self, ids: list[str], on_finished: Callable[[int], None], collected: Collected
    ) -> dict[str, Trajectory]:
        """Wait for rollouts and read each as soon as it has finished, while the others still run."""
        trajectories: dict[str, Trajectory] = {}
        waiting = dict.fromkeys(ids)
        stalled = _Stall(self.config.timeout_seconds + STALL_SECONDS)
        while waiting:
            finished = await self.store.wait_for_rollouts(rollout_ids=list(waiting), timeout=LOOK_SECONDS)
            await self._read(finished, collected, trajectories)
            for rollout in finished:
                del waiting[rollout.rollout_id]
            await self.check_workers()
            on_finished(len(ids) - len(waiting))
            if stalled.is_new(len(ids) - len(waiting)):
                log.warning("no rollout has finished for %.0f s; %s", stalled.limit, self.agents_output)
        return trajectories

    async def _read(
        self, finished: Sequence[Rollout], collected: Collected, trajectories: dict[str, Trajectory]
    ) -> None:
        """Add finished rollouts to `collected` and `trajectories`; raises the error of one that must end the run."""
        for rollout in finished:
            if (error := fatal_error(rollout)) is not None:
                raise self._placed(error, rollout)
        if finished:
            await self.flush()
        for rollout in finished:
            collected.rollouts += 1
            if rollout.status != "succeeded":
                collected.failed += 1
                collected.failures.add(failure_text(rollout), rollout.rollout_id)
            if isinstance(rollout, AttemptedRollout):
                spans = (await self.store.query_spans(rollout.rollout_id)).items
                trajectories[rollout.rollout_id] = self._trajectory(rollout, rollout.attempt, spans, collected)

    def _placed(self, error: LeydenError, rollout: Rollout) -> LeydenError:
        """Return the error of a task, with the file and line of the task."""
        row = rollout.metadata.get("row")
        if not isinstance(error, TaskError) or rollout.mode != "train" or not isinstance(row, int):
            return error
        return TaskError(f"{place_of(self.config.tasks, self.tasks, row)}: {error}")

    def _trajectory(self, rollout: Rollout, attempt: Attempt, spans: list[Span], collected: Collected) -> Trajectory:
        trajectory = assemble(rollout, attempt, spans, self.selector)
        calls = [span for span in spans if is_recorded_call(span)]
        earlier = sum(span.attempt_id != attempt.attempt_id for span in calls)
        collected.tokens += sum(int(str(span.attributes.get(semconv.OUTPUT_TOKENS, 0))) for span in calls)
        collected.empty += not calls
        collected.unrewarded += trajectory.reward is None and trajectory.succeeded
        if rollout.mode == "train":
            collected.excluded.update(trajectory.excluded)
            collected.excluded.update({EARLIER_ATTEMPT: earlier} if earlier else {})
        return trajectory


def failure_text(rollout: Rollout) -> str:
    """Return in one line why a finished rollout did not succeed."""
    failure = failure_of(rollout.attempt) if isinstance(rollout, AttemptedRollout) else None
    return f"the rollout was {rollout.status}" if failure is None else failure.text


def _ignore(_finished: int) -> None:
    """Ignore the number of finished rollouts of one task: the display shows only whole steps."""
    return


class IdleTimer:
    """Adds up the time outside all `busy` blocks, which may overlap. Use it from one event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open = 0
        self._seconds, self._since = 0.0, clock()

    @property
    def seconds(self) -> float:
        """Idle time so far, in seconds."""
        return self._seconds + (0.0 if self._open else self._clock() - self._since)

    @contextmanager
    def busy(self) -> Generator[None]:
        """Context manager that marks its block as activity."""
        self._seconds = self.seconds
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._since = self._clock()

"""External loops: algorithms whose training loop runs in its own processes and serves its policy itself.

Such a loop requests the rollouts of single tasks. It reports the addresses and the version of its served policy, and
the results of its steps.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp

from leyden.core.algorithm.account import Account
from leyden.core.algorithm.base import Algorithm, Context
from leyden.core.data.rollout import Task
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import UsageError


class TaskRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the rollouts of one task; equal requests get the same rollouts, whenever they are made."""

    step: int
    """The step that learns from the rollouts; for held-out tasks, the step that they evaluate."""
    place: int
    """Index of the task within the step."""
    row: int
    """Row number of the task in its set."""
    copies: int
    """Number of rollouts of the task."""
    held_out: str | None = None
    """Name of the held-out set that contains the row; None: the training set."""


class TaskUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Report of what a loop could use of one task's training rollouts."""

    asked: TaskRequest
    calls: int
    """Number of trained calls."""
    tokens: int
    """Number of response tokens of the trained calls."""
    calls_left_out: dict[str, int] = {}
    """Number of calls left out, by the reason why; calls of left-out rollouts and dropped groups are not counted."""
    group_dropped: str | None = None
    """The reason why nothing of the task is trained; None if something is."""
    account: Account = Account()
    """Account of every rollout of the task, and of its calls."""


class StepTasks(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that a step learns from, if they are not those that were requested for that step."""

    step: int
    tasks: tuple[TaskRequest, ...]
    left_out: tuple[TaskRequest, ...] = ()
    """Tasks from which no later step will learn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlan:
    """The settings of the run that its external loop needs."""

    policy: str
    """Folder or hub name of the model to train."""
    steps: int
    tasks_per_step: int
    group_size: int
    seed: int
    temperature: float
    eval_every: int
    """Steps between evaluations; 0: only before the first step and after the last."""
    checkpoint_every: int
    keep_checkpoints: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEndpoint:
    """Endpoint at which the loop's processes reach the run."""

    url: str
    """Root URL of what `ExternalLoopContext.open` serves, without a trailing slash."""
    token: str
    """Bearer token of the endpoint."""


class ExternalLoopContext(ABC):
    """What an external loop can request from the run and report to it."""

    steps: int
    """Planned number of weight updates; the loop may set another number before it begins."""
    step: int
    """Number of weight updates taken so far, in this session and earlier ones."""
    home: Path
    """Folder for the loop's own files; kept from session to session."""
    checkpoints: Path
    """Folder for the checkpoints that the loop resumes from."""
    tasks: Sequence[Task]
    held_out: Mapping[str, Sequence[Task]]
    plan: LoopPlan

    @abstractmethod
    def open(self, app: ASGIApp) -> RunEndpoint:
        """Serve `app` beside the gateway until the session ends; requests need the returned endpoint's token."""

    @abstractmethod
    async def serve_from(self, addresses: Sequence[str], version: int) -> None:
        """Route the agents' calls to the replicas at `addresses` (host:port), which now serve `version`.

        Ends a pause.
        """

    @abstractmethod
    async def pause(self, version: int) -> None:
        """Stop generation until `serve_from` is called, because the weights change to those of `version`.

        When this returns, no call is being generated. Calls under way are interrupted, and continue after `serve_from`.
        """

    @abstractmethod
    async def rollouts(self, asked: TaskRequest) -> TrajectoryGroup:
        """Run a task and return its group; rollouts that finished in an earlier session are not run again.

        When every row of every held-out set was requested once for a step, the results are recorded as its evaluation.
        """

    @abstractmethod
    def used(self, used: TaskUsage) -> None:
        """Record which of a task's rollouts can be trained, before the step that learns from them."""

    @abstractmethod
    async def taken(self, taken: StepTasks) -> None:
        """Record what a step learns from, before the step; without a record, it is what was requested for the step."""

    @property
    @abstractmethod
    def noted_steps(self) -> tuple[int, ...]:
        """The steps that the run has recorded, and after which it can resume if the loop can resume there as well."""

    @abstractmethod
    async def go_on_after(self, step: int, *, repeats: bool = True) -> None:
        """Begin the session: the loop resumes from its checkpoint of `step`; 0 is the beginning.

        With `repeats`, the loop repeats the later steps that it had already taken, from the same rollouts. Without,
        rollouts generated by later versions are run again, because the weights of those versions are lost.
        """

    @abstractmethod
    async def step_taken(self, step: int, metrics: Mapping[str, Any], *, kept: bool) -> None:
        """Record that `step` was taken and served, with its metrics; `kept`: the loop can resume after it."""

    @abstractmethod
    async def adopt(self, weights: Mapping[int, Path]) -> None:
        """Take over weights as the run's own: version to Hugging Face folder, including the last step's."""

    @property
    @abstractmethod
    def versions_to_keep(self) -> tuple[int, ...]:
        """The versions whose weights the run needs at its end: the best and the last."""


class ExternalLoopAlgorithm(Algorithm):
    """An algorithm whose loop runs in its own processes. It is run with an `ExternalLoopContext`."""

    @property
    def serves_itself(self) -> bool:
        """True: the loop's processes serve the policy."""
        return True

    @property
    def context_length(self) -> int | None:
        """The most tokens of a call (prompt plus response) that the loop serves; None: the model's limit."""
        return None

    async def run(self, context: Context) -> None:
        """Raise UsageError: this context cannot run an external loop."""
        raise UsageError(
            f"{type(context).__name__} cannot run {self.name}: its training loop runs in separate processes"
        )

    @abstractmethod
    async def run_loop(self, context: ExternalLoopContext) -> None:
        """Run the loop until `context.step` reaches `context.steps`."""

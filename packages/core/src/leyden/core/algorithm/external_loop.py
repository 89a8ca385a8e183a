"""`OutsideContext`: the further verbs of a loop that runs in processes of its own and serves its policy itself.

Such a loop asks for the rollouts of single tasks, says where its policy is served and under which version, and tells
what its steps came to. Knows no particular loop.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp

from leyden.core.algorithm.account import Account
from leyden.core.algorithm.base import Context
from leyden.core.data.rollout import Task
from leyden.core.data.transition import TrajectoryGroup


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The rollouts of one task that a loop asks for; equal ones ask for the same rollouts, whenever they come."""

    step: int
    """The step that learns from them; of held-out tasks, the one they measure."""
    place: int
    """Among the tasks of the step."""
    row: int
    """Number of the task's row."""
    copies: int
    """Rollouts of the task."""
    held_out: str | None = None
    """The set that the row is in; None: training."""


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """What a loop could take of one task's training rollouts."""

    asked: Asked
    calls: int
    """Those that are trained."""
    tokens: int
    """That they wrote."""
    calls_left_out: dict[str, int] = {}
    """By the reason why; those of rollouts and groups that are left out are not among them."""
    group_dropped: str | None = None
    """Why nothing of the task is trained."""
    account: Account = Account()
    """What became of every rollout of the task, and of their calls."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks' rollouts a step learns from, where that does not follow from when they were asked for."""

    step: int
    tasks: tuple[Asked, ...]
    left_out: tuple[Asked, ...] = ()
    """Tasks of which no step will learn any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlan:
    """What a run was told that its loop has to know."""

    policy: str
    """Folder or hub name of the model to train."""
    steps: int
    tasks_per_step: int
    group_size: int
    seed: int
    temperature: float
    eval_every: int
    """Steps between evaluations; 0: before the first step and after the last."""
    checkpoint_every: int
    keep_checkpoints: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where the processes of a loop reach the run."""

    url: str
    """Root of what `OutsideContext.open` serves, without a trailing slash."""
    token: str
    """Its bearer token."""


class OutsideContext(Context):
    """What such a loop can ask for and say."""

    home: Path
    """Where it keeps its own files; there from sitting to sitting."""
    checkpoints: Path
    """Where it keeps what it goes on from."""
    tasks: Sequence[Task]
    held_out: Mapping[str, Sequence[Task]]
    plan: LoopPlan

    @abstractmethod
    def open(self, app: ASGIApp) -> Door:
        """Serve `app` beside the gateway, to whoever has the token, until the sitting ends."""

    @abstractmethod
    async def serve_from(self, addresses: Sequence[str], version: int) -> None:
        """Have the calls of agents answered by the replicas at `addresses` (host:port), which serve `version` now.

        A pause is over with it.
        """

    @abstractmethod
    async def pause(self, version: int) -> None:
        """Have no call drawn from when this returns until `serve_from`: the weights become those of `version`.

        Calls under way are broken off, and go on then.
        """

    @abstractmethod
    async def rollouts(self, asked: Asked) -> TrajectoryGroup:
        """Run a task; rollouts that have finished in an earlier sitting are not run again.

        When every row of every held-out set has been asked for once at a step, that is the step's evaluation.
        """

    @abstractmethod
    def used(self, used: Used) -> None:
        """Note what of a task's rollouts can be trained, before the step that learns from them is taken."""

    @abstractmethod
    async def taken(self, taken: Taken) -> None:
        """Note what a step learns from, before it is taken; of one that nothing was said of: what was asked at it."""

    @property
    @abstractmethod
    def noted_steps(self) -> tuple[int, ...]:
        """The steps that the run can go on after, where the loop can, too."""

    @abstractmethod
    async def go_on_after(self, step: int, *, repeats: bool = True) -> None:
        """Begin the sitting: the loop goes on from what it kept after `step`, 0 being the beginning.

        Whether it `repeats` the steps that it took after it, from the same rollouts: if not, rollouts that the versions
        between have drawn are run again, since their weights are no more.
        """

    @abstractmethod
    async def step_taken(self, step: int, metrics: Mapping[str, Any], *, kept: bool) -> None:
        """Note that `step` was taken and served, with its numbers, and whether the loop can go on from it."""

    @abstractmethod
    async def adopt(self, weights: Mapping[int, Path]) -> None:
        """Take the weights of versions, each a Hugging Face folder, as the run's own; the last step is among them."""

    @property
    @abstractmethod
    def versions_to_keep(self) -> tuple[int, ...]:
        """The versions whose weights the run needs at its end: the best and the last."""

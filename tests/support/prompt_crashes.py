"""Runs of prompt algorithms in memory that crash at any operation, and go on from what a disk would have."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from leyden.core.algorithm.base import NO_POLICY, Algorithm
from leyden.core.algorithm.language_model import Message
from leyden.core.algorithm.prompts.search import PromptSearch, read_search
from leyden.core.algorithm.task_rollouts import RolloutRequest, RolloutResult
from leyden.core.data.resources import NamedResources, PromptTemplate, Resource
from leyden.core.data.rollout import Task
from leyden.core.testing.prompts.scripted_context import RewardOf, ScriptedPromptContext

Reflect = Callable[[Sequence[Message]], str]


class Crash(BaseException):
    """The process ends here."""


@dataclass
class Disk:
    """What outlives a crash."""

    start: NamedResources
    states: dict[int, str] = field(default_factory=dict[int, str])
    """State that the algorithm saved last, by the number of steps taken."""
    step: int = 0
    """Step of the last checkpoint."""
    resources: NamedResources | None = None
    versions: dict[int, str] = field(default_factory=dict[int, str])
    """The published prompt of each step, as the log of the run has it last."""
    rollouts: dict[tuple[int, RolloutRequest], RolloutResult] = field(
        default_factory=dict[tuple[int, RolloutRequest], RolloutResult]
    )
    """Rollouts in the store."""
    runs: int = 0
    """Number of rollouts that were run."""
    reflections: int = 0
    """Number of calls of the reflection model that were answered."""
    batches: list[int] = field(default_factory=list[int])
    """Number of new rollouts of each request for rollouts."""

    @property
    def search(self) -> PromptSearch:
        """The search as it was saved last."""
        return read_search(json.loads(self.states[max(self.states)]))


class CrashingContext(ScriptedPromptContext):
    """A context that keeps everything on `disk`, and crashes at operation number `crash_at`."""

    def __init__(
        self, disk: Disk, tasks: Sequence[Task], reward: RewardOf, reflect: Reflect, *, steps: int, crash_at: int | None
    ) -> None:
        super().__init__(tasks, disk.resources or disk.start, reward, steps=steps, reflect=self._reflected)
        self._disk, self._answer, self._crash_at = disk, reflect, crash_at
        self.operations = 0

    async def restore(self, updaters: Mapping[str, Any] = NO_POLICY) -> None:
        """Go on from the last checkpoint, with the state that was saved last."""
        self.step = self._disk.step
        saved = self._disk.states.get(self.step)
        self.state = None if saved is None else json.loads(saved)

    async def add_resources(self, changes: NamedResources) -> str:
        """Return an id that is the content."""
        version = {**self.resources, **changes}
        name = json.dumps({key: one.template for key, one in version.items() if isinstance(one, PromptTemplate)})
        self._added[name] = version
        return name

    async def run_tasks(self, requests: Sequence[RolloutRequest]) -> list[RolloutResult]:
        """Run what the store does not have yet."""
        self._point()
        step = self.step + 1
        new = [request for request in requests if (step, request) not in self._disk.rollouts]
        for request, result in zip(new, await super().run_tasks(new), strict=True):
            rollout_id = f"s{step}-{request.held_out}-{request.row}-{request.resources_id}-{request.repeat}"
            rollout = msgspec.structs.replace(result.rollout, rollout_id=rollout_id)
            self._disk.rollouts[step, request] = replace(result, rollout=rollout)
        self._disk.runs += len(new)
        self._disk.batches.append(len(new))
        self._point()
        return [self._disk.rollouts[step, request] for request in requests]

    def save_state(self, state: Any) -> None:
        """Write the state."""
        if self._crash_at is not None and self.operations >= self._crash_at:
            raise Crash
        self._disk.states[self.step] = json.dumps(state)
        self.state = json.loads(self._disk.states[self.step])

    async def publish(
        self, models: Mapping[str, Any] = NO_POLICY, *, resources: NamedResources | None = None
    ) -> dict[str, float]:
        """Publish, with a crash before or after it."""
        self._point()
        found = await super().publish(models, resources=resources)
        self._disk.versions[self.step] = texts_of(self.resources)
        self._point()
        return found

    async def checkpoint(self, updaters: Mapping[str, Any] = NO_POLICY) -> None:
        """Write the checkpoint, with a crash before or after it."""
        self._point()
        self._disk.step, self._disk.resources = self.step, dict(self.resources)
        self._disk.states = {step: state for step, state in self._disk.states.items() if step >= self.step - 1}
        self._disk.states[self.step] = json.dumps(self.state)
        self._point()

    def _reflected(self, messages: Sequence[Message]) -> str:
        self._point()
        self._disk.reflections += 1
        return self._answer(messages)

    def _point(self) -> None:
        """Crash here or never; after the crash, nothing more happens."""
        self.operations += 1
        if self._crash_at is not None and self.operations >= self._crash_at:
            raise Crash


def texts_of(resources: Mapping[str, Resource]) -> str:
    """Return the templates as one text."""
    return json.dumps({name: one.template for name, one in resources.items() if isinstance(one, PromptTemplate)})


async def run_with_crashes(
    make: Callable[[], Algorithm],
    tasks: Sequence[Task],
    reward: RewardOf,
    reflect: Reflect,
    *,
    steps: int,
    crashes: Sequence[int] = (),
) -> tuple[Disk, int]:
    """Run an algorithm to its end, with crashes at these operations of its sessions, in order.

    Returns what is on disk, and the number of operations of the last session.
    """
    disk = Disk({"prompt": PromptTemplate(template="{question}")})
    for crash_at in (*crashes, None):
        context = CrashingContext(disk, tasks, reward, reflect, steps=steps, crash_at=crash_at)
        try:
            await make().run(context)
        except Crash:
            continue
        return disk, context.operations
    raise AssertionError("the last session crashed")

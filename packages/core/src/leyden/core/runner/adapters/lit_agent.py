"""`LitAgent`: base class for agents written for Leyden.

It has Agent Lightning's method names, so that its tutorials work. An existing agent does not need it.
"""

from typing import Any, Generic, TypeAlias, TypeVar, cast

from leyden.core.data.resources import NamedResources
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.runner.adapters.agent_tracer import AgentTracer

T = TypeVar("T")
RUNNING = (
    "rollout",
    "rollout_async",
    "training_rollout",
    "training_rollout_async",
    "validation_rollout",
    "validation_rollout_async",
)
"""Methods that run a `LitAgent`. A subclass must override at least one."""

RolloutResult: TypeAlias = float | dict[str, float] | list[Span] | None
"""Return type of a rollout: a reward, its dimensions, spans to store, or None when the agent emitted its reward."""


class LitAgent(Generic[T]):
    """Base class: override `rollout` or `rollout_async`, or `training_*` and `validation_*` where the modes differ.

    Each attempt runs on a deep copy. Implement `__deepcopy__` to share parts that are costly to copy. An attempt that
    neither returns nor emits a reward has no reward; it does not count as 0.
    """

    @property
    def tracer(self) -> AgentTracer:
        """Callback handlers of the installed adapters."""
        return AgentTracer()

    def is_async(self) -> bool:
        """Return whether an `_async` method is overridden. In that case only the `_async` methods run."""
        names = ("rollout_async", "training_rollout_async", "validation_rollout_async")
        return any(getattr(type(self), name) is not getattr(LitAgent, name) for name in names)

    def rollout(self, task: T, resources: NamedResources, rollout: AttemptedRollout) -> RolloutResult:
        """Run the agent on `task`. Called in a thread."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither rollout nor rollout_async")

    async def rollout_async(self, task: T, resources: NamedResources, rollout: AttemptedRollout) -> RolloutResult:
        """Run the agent on `task`. Called on the runner's loop, which it must not block."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither rollout nor rollout_async")

    def training_rollout(self, task: T, resources: NamedResources, rollout: AttemptedRollout) -> RolloutResult:
        """Run `rollout` in mode `train`."""
        return self.rollout(task, resources, rollout)

    def validation_rollout(self, task: T, resources: NamedResources, rollout: AttemptedRollout) -> RolloutResult:
        """Run `rollout` in every other mode."""
        return self.rollout(task, resources, rollout)

    async def training_rollout_async(
        self, task: T, resources: NamedResources, rollout: AttemptedRollout
    ) -> RolloutResult:
        """Run `rollout_async` in mode `train`."""
        return await self.rollout_async(task, resources, rollout)

    async def validation_rollout_async(
        self, task: T, resources: NamedResources, rollout: AttemptedRollout
    ) -> RolloutResult:
        """Run `rollout_async` in every other mode."""
        return await self.rollout_async(task, resources, rollout)


def runs_nothing(agent: object) -> bool:
    """Return whether `agent` is a `LitAgent` that overrides none of the methods in `RUNNING`."""
    return isinstance(agent, LitAgent) and all(
        getattr(getattr(cast("Any", agent), name), "__func__", None) is getattr(LitAgent, name) for name in RUNNING
    )

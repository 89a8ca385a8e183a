"""`LitAgent`: an agent written for Leyden, with the method names of Agent Lightning, so that its tutorials work.

An agent that exists already needs none of this. Knows nothing of how attempts are claimed or recorded.
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
"""Methods of a `LitAgent`, of which one at least is the agent's own."""

RolloutResult: TypeAlias = float | dict[str, float] | list[Span] | None
"""What a rollout returns: its reward, the reward's dimensions, spans to store, or None when it emitted its reward."""


class LitAgent(Generic[T]):
    """Override `rollout` or `rollout_async`; `training_*` and `validation_*` where the two modes differ.

    Each attempt works on a deep copy; implement `__deepcopy__` to share what is costly to copy. An attempt that
    neither returns nor emits a reward is counted as having none, never as 0.
    """

    @property
    def tracer(self) -> AgentTracer:
        """Callback handlers of the installed adapters."""
        return AgentTracer()

    def is_async(self) -> bool:
        """Whether one of the `_async` methods is overridden; they are then the ones that run."""
        names = ("rollout_async", "training_rollout_async", "validation_rollout_async")
        return any(getattr(type(self), name) is not getattr(LitAgent, name) for name in names)

    def rollout(self, task: T, resources: NamedResources, rollout: AttemptedRollout) -> RolloutResult:
        """Run the agent on `task`; called in a thread."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither rollout nor rollout_async")

    async def rollout_async(self, task: T, resources: NamedResources, rollout: AttemptedRollout) -> RolloutResult:
        """Run the agent on `task`; called on the runner's loop, which it must not block."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither rollout nor rollout_async")

    def training_rollout(self, task: T, resources: NamedResources, rollout: AttemptedRollout) -> RolloutResult:
        """`rollout` in mode `train`."""
        return self.rollout(task, resources, rollout)

    def validation_rollout(self, task: T, resources: NamedResources, rollout: AttemptedRollout) -> RolloutResult:
        """`rollout` in every other mode."""
        return self.rollout(task, resources, rollout)

    async def training_rollout_async(
        self, task: T, resources: NamedResources, rollout: AttemptedRollout
    ) -> RolloutResult:
        """`rollout_async` in mode `train`."""
        return await self.rollout_async(task, resources, rollout)

    async def validation_rollout_async(
        self, task: T, resources: NamedResources, rollout: AttemptedRollout
    ) -> RolloutResult:
        """`rollout_async` in every other mode."""
        return await self.rollout_async(task, resources, rollout)


def runs_nothing(agent: object) -> bool:
    """Whether `agent` is a `LitAgent` that has none of the methods that could run it."""
    return isinstance(agent, LitAgent) and all(
        getattr(getattr(cast("Any", agent), name), "__func__", None) is getattr(LitAgent, name) for name in RUNNING
    )

"""Rollouts that an algorithm requests one by one: of which task, and with which version of the resources."""

from dataclasses import dataclass

import msgspec

from leyden.core.data.failure import Failure
from leyden.core.data.rollout import Rollout
from leyden.core.data.span import Span


class RolloutRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for one rollout of a task.

    Within a step, equal requests get the same rollout, also in a session that repeats the step after a crash.
    """

    row: int
    """Row number of the task in its set."""
    held_out: str | None = None
    """Name of the held-out set that contains the row; None: the training set."""
    resources_id: str | None = None
    """Version of the resources that the agent runs with (see `Context.add_resources`); None: the published version."""
    repeat: int = 0
    """Number that distinguishes several rollouts of the same task with the same version."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutResult:
    """A rollout that was requested, once it has finished."""

    request: RolloutRequest
    rollout: Rollout
    """With its id, its task (`input`), its status, and the version of the resources that it ran with."""
    reward: float | None
    """None if the rollout has no reward."""
    dimensions: dict[str, float]
    """Named parts of the reward; empty if the reward is a plain number."""
    failure: Failure | None
    """Why the rollout did not succeed; None if it did."""
    spans: tuple[Span, ...]
    """Everything recorded of the last attempt, in order."""
    calls: tuple[Span, ...]
    """Those of `spans` that are model calls of the agents that the run selects (`--agent-match` and similar)."""

    @property
    def score(self) -> float | None:
        """The reward; 0 for a rollout that failed, None for one without a reward, or in which Leyden itself failed."""
        if self.failure is None or self.reward is not None:
            return self.reward
        return None if self.failure.kind == "leyden" else 0.0

"""Critic options: which backbone a critic uses and how it learns. Does not import torch.

Each kind of critic has only the options that have an effect on it.
"""

import math
from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

from leyden.core.data.scheme import Schemes
from leyden.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticOptions(ABC):
    """Options of every critic; the subclass decides which backbone the value head is on."""

    shared: ClassVar[bool]
    """Whether the value loss changes the policy's own weights."""

    learning_rate: float = 1e-5
    """Learning rate of AdamW; a shared head follows the policy's schedule.

    The default is for some billion parameters; a tiny critic needs 1e-3.
    """
    warmup_steps: int = 0
    """Steps at the beginning of a run in which only the critic learns, not the policy."""
    clip: float | None = None
    """How far a value may move in one step before its loss has no gradient; needs several optimizer steps."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.learning_rate):
            raise UsageError(f"critic learning_rate must be a finite number, got {self.learning_rate}")
        if self.learning_rate < 0:
            raise UsageError(f"critic learning_rate must not be negative, got {self.learning_rate}")
        if self.warmup_steps < 0:
            raise UsageError(f"critic warmup_steps must not be negative, got {self.warmup_steps}")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise UsageError(f"critic clip must be a number above 0, got {self.clip}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBackbone(CriticOptions):
    """A copy of the initial policy, trained separately, so that the critic's training does not change the policy.

    Memory in float32: 16 bytes a parameter (weights, gradients, AdamW's two moments). If the policy is trained with
    adapters: 4 bytes a parameter, and 16 for each adapter parameter. Time: one more forward and backward pass over the
    prompts.
    """

    shared: ClassVar[bool] = False

    epochs: int = 1
    """Number of passes over a step's states."""
    minibatches: int = 1
    """Optimizer steps per epoch; whole rollouts are assigned to each, at random if there are several."""

    def __post_init__(self) -> None:
        CriticOptions.__post_init__(self)
        for name in ("epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise UsageError(f"critic {name} must be at least 1, got {getattr(self, name)}")
        if self.clip is not None and self.epochs * self.minibatches == 1:
            raise UsageError(
                "critic clip has no effect with one optimizer step per training step; set epochs or minibatches above 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBackbone(CriticOptions):
    """The policy itself, read once for both losses: the value loss changes the policy's weights as well.

    Each optimizer step descends policy loss + `coefficient` × value loss, in one backward pass. `learning_rate` is the
    value head's; the backbone has the policy's. In warm-up steps only the head learns. It needs almost no further
    memory.
    """

    shared: ClassVar[bool] = True

    coefficient: float = 0.5
    """Weight of the value loss in the sum of both losses."""

    def __post_init__(self) -> None:
        CriticOptions.__post_init__(self)
        if not 0 < self.coefficient < math.inf:
            raise UsageError(f"critic coefficient must be a number above 0, got {self.coefficient}")


CRITICS = Schemes[CriticOptions](
    "critic", CriticOptions, "leyden.critic", {"own": OwnBackbone, "shared": SharedBackbone}
)
"""The critics by name; installed packages may add others under the entry-point group `leyden.critic`."""

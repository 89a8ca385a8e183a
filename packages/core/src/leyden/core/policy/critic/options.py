"""What a user sets about a critic: where its backbone comes from and how it learns. Loads no torch.

The options of each kind are those that do something in it; what would be ignored is not there to be given.
"""

import math
from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

from leyden.core.data.scheme import Schemes
from leyden.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticOptions(ABC):
    """What every critic has; its kind says which backbone its value head sits on."""

    shared: ClassVar[bool]
    """Whether the value loss reaches the policy's own weights."""

    learning_rate: float = 1e-5
    """Of AdamW; a shared head follows the policy's schedule. For some billion parameters; a tiny critic takes 1e-3."""
    warmup_steps: int = 0
    """Steps at the beginning of a run in which the critic learns and the policy does not."""
    clip: float | None = None
    """How far a value may move within one step before its loss stops pulling it; needs several optimizer steps."""

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
    """A copy of the policy as it was at first, trained apart from it: nothing the critic learns moves the policy.

    Memory in float32: 16 bytes a parameter (weights, gradients, AdamW's two moments), where the policy is trained by
    adapters 4 bytes and 16 for each parameter of theirs. Time: one more forward and backward pass over the prompts.
    """

    shared: ClassVar[bool] = False

    epochs: int = 1
    """Times a step's states are gone through."""
    minibatches: int = 1
    """Optimizer steps per epoch; rollouts are dealt out whole, at random where there is more than one."""

    def __post_init__(self) -> None:
        CriticOptions.__post_init__(self)
        for name in ("epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise UsageError(f"critic {name} must be at least 1, got {getattr(self, name)}")
        if self.clip is not None and self.epochs * self.minibatches == 1:
            raise UsageError(
                "critic clip has no effect on one optimizer step a step; set epochs or minibatches above 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBackbone(CriticOptions):
    """The policy itself, read once for both: what the loss of values teaches the backbone moves the policy too.

    Each optimizer step descends policy loss + `coefficient` × value loss, in one backward pass; `learning_rate` is the
    value head's, the backbone's is the policy's. In warm-up steps the head learns alone. No memory to speak of.
    """

    shared: ClassVar[bool] = True

    coefficient: float = 0.5
    """Weight of the value loss beside the policy's."""

    def __post_init__(self) -> None:
        CriticOptions.__post_init__(self)
        if not 0 < self.coefficient < math.inf:
            raise UsageError(f"critic coefficient must be a number above 0, got {self.coefficient}")


CRITICS = Schemes[CriticOptions](
    "critic", CriticOptions, "leyden.critic", {"own": OwnBackbone, "shared": SharedBackbone}
)
"""The critics by name; installed packages may add others under the entry-point group `leyden.critic`."""

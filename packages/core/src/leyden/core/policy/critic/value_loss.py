"""Value loss: the training targets of a critic, and its loss. Does not import torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leyden.core.data.transition import Transition
from leyden.core.errors import TrainingError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ValueTarget:
    """A call and the target value of its state; `call.value` is the critic's value before the step."""

    call: Transition
    target: float

    @property
    def before(self) -> float:
        """The critic's value before the step. Raises TrainingError if the call has none."""
        if self.call.value is None:
            raise TrainingError(
                f"rollout {self.call.rollout_id}: the critic cannot learn from a call that it did not value before"
            )
        return self.call.value


def value_loss(
    values_N: "Tensor", before_N: "Tensor", targets_N: "Tensor", clip: float | None
) -> "tuple[Tensor, Tensor]":
    """Return (V - G)² / 2 of each state, and in which states the clip removes the gradient.

    With `clip` it is PPO's max((V - G)², (V_before + clamp(V - V_before, ±clip) - G)²) / 2. A value that has moved
    towards its target by more than `clip` since `before_N`, the values before the step, gets no gradient.
    """
    plain_N = (values_N - targets_N).square() / 2
    if clip is None:
        return plain_N, (plain_N < 0).detach()
    held_N = (before_N + (values_N - before_N).clamp(-clip, clip) - targets_N).square() / 2
    return plain_N.maximum(held_N), (held_N > plain_N).detach()

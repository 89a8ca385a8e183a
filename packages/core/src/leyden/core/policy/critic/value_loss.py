"""What a critic learns from, and the loss it learns by. Knows no model and no rewards; loads no torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leyden.core.data.transition import Transition
from leyden.core.errors import TrainingError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ValueTarget:
    """A call and what the critic should have said of its state; `call.value` is what it said before the step."""

    call: Transition
    target: float

    @property
    def before(self) -> float:
        """What the critic said. Raises TrainingError when nobody asked it."""
        if self.call.value is None:
            raise TrainingError(
                f"rollout {self.call.rollout_id}: the critic learns from a call, and was not asked of it"
            )
        return self.call.value


def value_loss(
    values_N: "Tensor", before_N: "Tensor", targets_N: "Tensor", clip: float | None
) -> "tuple[Tensor, Tensor]":
    """Return (V - G)² / 2 of each state, and which states it no longer pulls.

    With `clip` it is PPO's max((V - G)², (V_before + clamp(V - V_before, ±clip) - G)²) / 2: a value that has come
    closer to its target by more than `clip` since `before_N`, the values before the step, is left where it is.
    """
    plain_N = (values_N - targets_N).square() / 2
    if clip is None:
        return plain_N, (plain_N < 0).detach()
    held_N = (before_N + (values_N - before_N).clamp(-clip, clip) - targets_N).square() / 2
    return plain_N.maximum(held_N), (held_N > plain_N).detach()

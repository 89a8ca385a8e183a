"""DPO: raises the probability of the preferred one of two responses to the same state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from leyden.core.errors import UsageError
from leyden.core.policy.losses.base import EntryLosses, Loss, LossEntries
from leyden.core.policy.losses.segments import transition_sums
from leyden.core.policy.update.entries import WeightedTransition


@dataclass(frozen=True, slots=True, kw_only=True)
class DPO(Loss):
    """DPO: -log σ(β (log π/π_ref of the chosen - log π/π_ref of the rejected)) (arXiv 2305.18290, eq. 7).

    With label smoothing ε it is (1 - ε) times that plus ε times that of the swapped pair. See the section "conservative
    DPO" of the authors' note on noisy preferences. It records the margin inside σ, its two parts, and how often the
    margin is > 0. Transitions 2p and 2p + 1 are the chosen and the rejected of pair p. Every token of a pair has the
    pair's whole loss, so with `pair_weights` the sum is the mean over pairs.
    """

    together: ClassVar[int] = 2
    reads_advantages: ClassVar[bool] = False
    reads_ratios: ClassVar[bool] = False
    reads_reference: ClassVar[bool] = True

    beta: float = 0.1
    """Strength of the pull towards the reference policy: the larger, the less a pair changes the policy."""
    label_smoothing: float = 0.0
    """Assumed share of pairs with swapped labels (conservative DPO)."""

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise UsageError(f"beta must be above 0, got {self.beta}")
        if not 0 <= self.label_smoothing < 0.5:
            raise UsageError(f"label_smoothing must be at least 0 and below 0.5, got {self.label_smoothing}")

    def of(self, seen: LossEntries) -> EntryLosses:
        """Return the loss of each entry."""
        sums_M, which_N = transition_sums(seen.transition_N, seen.logprobs_N - seen.reference_N)
        chosen_P, rejected_P = sums_M[0::2], sums_M[1::2]
        margin_P = self.beta * (chosen_P - rejected_P)
        # log(1 + exp(-margin)), written so that it does not overflow; for the swapped pair, `margin` is added.
        loss_P = (-margin_P).logaddexp(margin_P.new_zeros(())) + self.label_smoothing * margin_P
        noted = {
            "dpo_margin": margin_P.detach(),
            "dpo_accuracy": (margin_P > 0).to(margin_P.dtype),
            "dpo_chosen": self.beta * chosen_P.detach(),
            "dpo_rejected": self.beta * rejected_P.detach(),
        }
        return EntryLosses(loss_N=loss_P[which_N // 2], noted=noted)


def pair_weights(pairs: Sequence[WeightedTransition]) -> list[float]:
    """Return the weight of each transition's tokens so that all pairs 2p, 2p + 1 have the same weight."""
    lengths = [len(item.transition.response_ids) for item in pairs]
    return [1.0 / ((len(pairs) // 2) * (lengths[i - i % 2] + lengths[i - i % 2 + 1])) for i in range(len(pairs))]

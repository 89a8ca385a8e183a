"""REINFORCE++ with a baseline: the group's mean, and one unit for the whole batch (arXiv 2501.03262)."""

from collections.abc import Sequence
from dataclasses import dataclass

from leyden.core.advantage.base import (
    AdvantageEstimator,
    DropReason,
    Floats,
    Group,
    GroupAdvantages,
    incomparable,
    is_zero,
)
from leyden.core.advantage.baselines import minus_group_mean
from leyden.core.advantage.checks import check_eps
from leyden.core.advantage.whitening import Counting, whitened_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlusBaseline(AdvantageEstimator):
    """REINFORCE++ with baseline: C_(g,n) = G_(g,n) - b_n as in `grpo`, A = (C - mean(C)) / sqrt(var(C) + eps).

    Mean and variance are over the transitions of the batch. A group without spread is dropped, but its zeros count in
    the deviation, as in other implementations. It is less biased than `grpo`, whose unit is each group's own: the
    batch's unit depends little on one rollout, and gives every task the same weight.
    """

    counting: Counting = "rollout"
    """`transition` counts each call once in mean and deviation; the group's mean counts rollouts in both cases."""
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def estimate(self, groups: Sequence[Group]) -> list[GroupAdvantages]:
        """Return the returns minus each group's mean, whitened over all groups."""
        reasons: list[DropReason | None] = [incomparable(group) for group in groups]
        centred: list[list[Floats]] = []
        for number, group in enumerate(groups):
            returns = [rollout.returns_N for rollout in group if len(rollout.returns_N)]
            centred.append([] if reasons[number] else minus_group_mean(returns))
            if reasons[number] is None and is_zero(centred[number], returns):
                reasons[number] = "no spread"
        white = whitened_groups(groups, centred, self.counting, self.eps)
        return [
            estimate if reason is None else GroupAdvantages(dropped=reason)
            for estimate, reason in zip(white, reasons, strict=True)
        ]

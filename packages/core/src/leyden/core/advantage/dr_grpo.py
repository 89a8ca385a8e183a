"""Dr. GRPO: GRPO without the division by the standard deviation (arXiv 2503.20783)."""

from collections.abc import Sequence
from dataclasses import dataclass

from leyden.core.advantage.base import Floats, GroupEstimator
from leyden.core.advantage.baselines import minus_group_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGRPO(GroupEstimator):
    """Dr. GRPO: A_(g,n) = G_(g,n) - b_n, with b_n as in `grpo`.

    The paper's loss divides by a constant, not by lengths. The advantages are exactly (1 - 1/G) times those of `rloo`,
    because the mean includes the rollout's own return. They are therefore unbiased in direction if the credit is
    unbiased, and too small by a factor that is the same for every group of this size.
    """

    def centred(self, returns: Sequence[Floats]) -> list[Floats]:
        """Return the returns minus the group's mean."""
        return minus_group_mean(returns)

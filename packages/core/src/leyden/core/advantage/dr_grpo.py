"""Dr. GRPO: GRPO without the division (arXiv 2503.20783)."""

from collections.abc import Sequence
from dataclasses import dataclass

from leyden.core.advantage.base import Floats, GroupEstimator
from leyden.core.advantage.baselines import minus_group_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGRPO(GroupEstimator):
    """A_(g,n) = G_(g,n) - b_n, b_n as in `grpo`. The paper's loss divides by a constant, not by lengths.

    Exactly (1 - 1/G) times `rloo`, since the mean holds the rollout's own return: unbiased in direction for credit that
    is, and small by a factor that is the same for every group of its size.
    """

    def centred(self, returns: Sequence[Floats]) -> list[Floats]:
        """Subtract the group's mean."""
        return minus_group_mean(returns)

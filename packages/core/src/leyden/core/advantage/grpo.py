"""GRPO: the group's mean as baseline and its standard deviation as unit (arXiv 2402.03300, section 4.1.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

from leyden.core.advantage.base import Floats, GroupEstimator
from leyden.core.advantage.baselines import deviation, minus_group_mean
from leyden.core.advantage.checks import check_eps


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPO(GroupEstimator):
    """GRPO: A_(g,n) = (G_(g,n) - b_n) / (std + eps), b_n the group's mean return at turn n, std the deviation from it.

    A rollout that has ended before turn n counts there with its last return. Each rollout thus counts once, at every
    turn and in the deviation (Bessel's correction, G - 1). Under uniform credit this is (R_g - mean(R)) / (std(R) +
    eps). Biased: dividing by a group's deviation gives more weight to tasks that are nearly always or never solved. The
    deviation also correlates with the rollout's own return. On the game of `testing.stopping_game`, in groups of three,
    its expected gradient is 11.0 degrees off the true one; larger groups are better.
    """

    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def centred(self, returns: Sequence[Floats]) -> list[Floats]:
        """Return the returns minus the group's mean."""
        return minus_group_mean(returns)

    def scaled(self, centred: Sequence[Floats]) -> Sequence[Floats]:
        """Return the centred returns, divided by the group's deviation."""
        unit = deviation(centred) + self.eps
        return [centred_N / unit for centred_N in centred]

"""RLOO: the mean of the other rollouts as baseline (arXiv 2402.14740, eq. 9)."""

from collections.abc import Sequence
from dataclasses import dataclass

from leyden.core.advantage.base import Floats, GroupEstimator
from leyden.core.advantage.baselines import minus_mean_of_others


@dataclass(frozen=True, slots=True, kw_only=True)
class RLOO(GroupEstimator):
    """RLOO: A_(g,n) = G_(g,n) - b_n, b_n the mean over the other rollouts of their return at turn n.

    A rollout that has ended before turn n counts there with its last return. Under uniform credit, b is thus the mean
    of the others' rewards. Unbiased if the credit is: the baseline does not depend on the rollout itself.
    """

    def centred(self, returns: Sequence[Floats]) -> list[Floats]:
        """Return the returns minus the mean of the others."""
        return minus_mean_of_others(returns)

"""Turn-level advantages: compare each call with the return-to-go of other rollouts at the same turn."""

from collections.abc import Sequence
from dataclasses import dataclass

from leyden.core.advantage.base import Floats, GroupEstimator
from leyden.core.advantage.baselines import minus_mean_of_others_there


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLevel(GroupEstimator):
    """Turn-level advantages: A_(g,n) = G_(g,n) - b_(g,n), b the mean return at turn n of the others that have one.

    If no other rollout reached turn n, b is that of `rloo`. It is meant for credit that differs between turns, such as
    intermediate rewards. Unbiased if the credit is, also if the policy decides when to stop: one number is subtracted
    from the complete return-to-go, and it depends only on other rollouts and on n. Centring the rewards of each turn
    first, and adding them up afterwards, is not unbiased: see verl issue 7244.
    """

    def centred(self, returns: Sequence[Floats]) -> list[Floats]:
        """Return the returns minus the mean of the others that reached the same turn."""
        return minus_mean_of_others_there(returns)

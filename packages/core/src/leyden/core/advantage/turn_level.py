"""Turn level: each call compared with what others had still to come when they were as far."""

from collections.abc import Sequence
from dataclasses import dataclass

from leyden.core.advantage.base import Floats, GroupEstimator
from leyden.core.advantage.baselines import minus_mean_of_others_there


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLevel(GroupEstimator):
    """A_(g,n) = G_(g,n) - b_(g,n), b the mean return at turn n of the other rollouts that have one.

    Where no other came as far, b is `rloo`'s. For credit that differs between turns, such as intermediate rewards.
    Unbiased for credit that is, also when the policy decides when to stop: the return-to-go is whole before one
    number is subtracted from it, and that number depends on other rollouts and on n alone. (Centring the rewards of
    each turn first and adding them up afterwards is not: see verl issue 7244.)
    """

    def centred(self, returns: Sequence[Floats]) -> list[Floats]:
        """Subtract the mean of the others that came as far."""
        return minus_mean_of_others_there(returns)

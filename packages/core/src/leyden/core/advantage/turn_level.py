"""Turn-level advantages: compare each call with the return-to-go of other rollouts at the same turn."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leyden.core.advantage.base import Floats, GroupEstimator
from leyden.core.advantage.baselines import returns_by_turn


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


def minus_mean_of_others_there(returns: Sequence[Floats]) -> list[Floats]:
    """Return the returns minus, at each turn, the mean over the other rollouts that reached it.

    If no other rollout reached the turn, the mean is over all others.
    """
    returns_GT = returns_by_turn(returns)
    there_GT = np.zeros_like(returns_GT)
    for there_T, returns_N in zip(there_GT, returns, strict=True):
        there_T[: len(returns_N)] = 1.0
    sums_GT = (returns_GT * there_GT).sum(axis=0) - returns_GT * there_GT
    counts_GT = there_GT.sum(axis=0) - there_GT
    alone_GT = np.equal(counts_GT, 0.0)
    sums_GT[alone_GT] = (returns_GT.sum(axis=0) - returns_GT)[alone_GT]
    counts_GT[alone_GT] = len(returns) - 1
    baseline_GT = sums_GT / counts_GT
    return [
        returns_N - baseline_T[: len(returns_N)] for returns_N, baseline_T in zip(returns, baseline_GT, strict=True)
    ]

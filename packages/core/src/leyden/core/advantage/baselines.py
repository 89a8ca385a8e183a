"""Baselines over the rollouts of a group, each counted once regardless of its number of transitions.

A baseline may depend on the other rollouts and on the turn that its own rollout has reached. It must never depend on
what its own rollout does from there on, and above all not on the rollout's length. Centring rewards turn by turn, and
then adding up the rest of the rollout, violates this: the longer the rollout, the more is subtracted. That rewards the
policy for stopping or for continuing. All functions are pure.
"""

from collections.abc import Sequence

import numpy as np

from leyden.core.advantage.base import Floats


def returns_by_turn(returns: Sequence[Floats]) -> Floats:
    """Return `returns_GT`: the return of rollout g at turn t; after its end, its last return.

    Every rollout thus has one return at every turn. With uniform credit it is always the reward.
    """
    turns = max(map(len, returns))
    return np.stack([np.pad(returns_N, (0, turns - len(returns_N)), mode="edge") for returns_N in returns])


def minus_group_mean(returns: Sequence[Floats]) -> list[Floats]:
    """Return the returns minus, at each turn, the mean over all rollouts, including the rollout itself."""
    mean_T = returns_by_turn(returns).mean(axis=0)
    return [returns_N - mean_T[: len(returns_N)] for returns_N in returns]


def minus_mean_of_others(returns: Sequence[Floats]) -> list[Floats]:
    """Return the returns minus, at each turn, the mean over all other rollouts."""
    returns_GT = returns_by_turn(returns)
    others_GT = (returns_GT.sum(axis=0) - returns_GT) / (len(returns) - 1)
    return [returns_N - others_T[: len(returns_N)] for returns_N, others_T in zip(returns, others_GT, strict=True)]


def deviation(centred: Sequence[Floats]) -> float:
    """Return the standard deviation of centred returns over rollouts, each counted once, with Bessel's correction.

    Needs at least two rollouts.
    """
    square = sum(float(np.square(centred_N).mean()) for centred_N in centred)
    return float(np.sqrt(square / (len(centred) - 1)))

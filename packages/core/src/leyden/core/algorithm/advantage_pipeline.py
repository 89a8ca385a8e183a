"""Advantage pipeline: turns trajectories into weighted transitions, by credit first and then by advantages."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leyden.core.advantage.base import AdvantageEstimator, CreditedRollout
from leyden.core.algorithm.account import Account, account_of
from leyden.core.credit.base import Credit, CreditAssigner, roles_of
from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition
from leyden.core.errors import TrainingError
from leyden.core.policy.update.entries import WeightedTransition


@dataclass(frozen=True, slots=True)
class WeightedBatch:
    """The weighted transitions of a batch of trajectory groups, and what was left out of it."""

    transitions: list[WeightedTransition]
    dropped: Counter[str]
    """Number of groups that give no training signal, by the reason why."""
    uncredited: int
    """Number of transitions of rewarded rollouts that the credit scheme leaves out."""
    account: Account
    """Account of every rollout and call of the batch."""


@dataclass(frozen=True, slots=True)
class _Rewarded:
    """A rewarded rollout: its credited transitions and their weights."""

    transitions: list[Transition]
    weights: list[float]
    credited: CreditedRollout
    uncredited: int


def weigh(
    groups: Sequence[TrajectoryGroup],
    credit: CreditAssigner,
    advantage: AdvantageEstimator,
    *,
    one_per_rollout: bool = False,
) -> WeightedBatch:
    """Turn rewards of attempts into returns of transitions, and those into weighted advantages.

    The advantage of a transition in the result is the estimate multiplied by the transition's weight. With
    `one_per_rollout`, the estimator gets the return of a rollout's first transition alone, as if the rollout were one
    call, and all of its transitions get the estimate.
    """
    rewarded = [_rewarded(group, credit, one_per_rollout=one_per_rollout) for group in groups]
    estimates = advantage.estimate([[rollout.credited for rollout in group] for group in rewarded])
    weighted: list[WeightedTransition] = []
    dropped: Counter[str] = Counter()
    for group, estimate in zip(rewarded, estimates, strict=True):
        if estimate.dropped is not None:
            dropped[estimate.dropped] += 1
            continue
        for rollout, estimated_N in zip(group, estimate.advantages, strict=True):
            advantages_N = np.broadcast_to(estimated_N, len(rollout.transitions))
            for call, weight, value in zip(rollout.transitions, rollout.weights, advantages_N.tolist(), strict=True):
                weighted.append(WeightedTransition(transition=call, advantage=weight * value))
    uncredited = sum(rollout.uncredited for group in rewarded for rollout in group)
    account = account_of(
        groups,
        {item.transition.span_id for item in weighted},
        dropped=[estimate.dropped for estimate in estimates],
        unmoved=[item.transition.span_id for item in weighted if item.advantage == 0.0],
    )
    return WeightedBatch(weighted, dropped, uncredited, account)


def absent_roles(credit: CreditAssigner, groups: Sequence[TrajectoryGroup]) -> list[str]:
    """Return the roles that the credit scheme names and that no transition of `groups` has."""
    seen_roles = {
        role for group in groups for t in group.trajectories for call in t.transitions for role in roles_of(call)
    }
    return sorted(credit.roles - seen_roles)


def _rewarded(group: TrajectoryGroup, scheme: CreditAssigner, *, one_per_rollout: bool) -> list[_Rewarded]:
    found: list[_Rewarded] = []
    for trajectory in group.trajectories:
        credit = credit_of(trajectory, scheme)
        if credit is not None:
            found.append(_credited(trajectory, credit, one_per_rollout=one_per_rollout))
    return found


def credit_of(trajectory: Trajectory, scheme: CreditAssigner) -> Credit | None:
    """Return the credit of the trajectory's transitions; None without transitions or without a reward.

    Raises TrainingError if the scheme returns credit for another number of transitions.
    """
    credit = scheme.assign(trajectory) if trajectory.transitions else None
    if credit is not None and len(credit.returns_N) != len(trajectory.transitions):
        raise TrainingError(
            f"rollout {trajectory.rollout_id} has {len(trajectory.transitions)} transitions, and its credit has "
            f"values for {len(credit.returns_N)}"
        )
    return credit


def _credited(trajectory: Trajectory, credit: Credit, *, one_per_rollout: bool) -> _Rewarded:
    kept_N = credit.weights_N > 0
    transitions = [call for call, kept in zip(trajectory.transitions, kept_N, strict=True) if kept]
    values = [call.value for call in transitions if call.value is not None]
    values_N = np.array(values, dtype=np.float64) if len(values) == len(transitions) else None
    returns_N = credit.returns_N[kept_N]
    compared = CreditedRollout(returns_N=returns_N, values_N=values_N)
    return _Rewarded(
        transitions=transitions,
        weights=credit.weights_N[kept_N].tolist(),
        credited=CreditedRollout(returns_N=returns_N[:1]) if one_per_rollout else compared,
        uncredited=len(kept_N) - len(transitions),
    )

"""Critic targets: fills in values of calls, builds what a critic learns, and checks that a critic is used."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from leyden.core.advantage.base import AdvantageEstimator
from leyden.core.credit.base import CreditAssigner
from leyden.core.credit.nesting import expected_returns, needs_values
from leyden.core.data.reasons import NO_VALUE
from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition
from leyden.core.errors import UsageError
from leyden.core.policy.critic.options import CriticOptions
from leyden.core.policy.critic.value_loss import ValueTarget
from leyden.core.policy.update.config import UpdateOptions

Critic = Callable[[Sequence[Transition]], NDArray[np.float64]]
"""Function from N transitions to N values: the expected return of the rollout in the state before each."""


def check_critic(
    critic: CriticOptions | None, credit: CreditAssigner, advantage: AdvantageEstimator, update: UpdateOptions
) -> None:
    """Raise UsageError if a critic is needed and missing, or if a critic is configured that has no reader.

    Also raises UsageError if an option of the critic has no effect, or distorts its values, in this combination.
    """
    by_credit = needs_values(credit)
    reader = "the credit scheme" if by_credit else "the advantage estimator" if advantage.needs_values else None
    if reader is not None and critic is None:
        raise UsageError(f"{reader} needs a critic: set critic=own, or critic=shared for one on the policy's backbone")
    if critic is None:
        return
    if reader is None:
        raise UsageError(
            "neither credit nor advantage reads the critic: set advantage=gae or credit=learned_value, or leave "
            "critic out"
        )
    if by_credit and advantage.needs_values:
        raise UsageError(
            "credit and advantage both read the critic, which would count the change of value twice: set "
            "credit=uniform with advantage=gae, or credit=learned_value with advantage=rloo"
        )
    if by_credit and critic.shared:
        raise UsageError(
            "critic=shared learns only from the calls that the policy is trained on, without the groups that were "
            "dropped, so its values would be biased: with credit=learned_value set critic=own"
        )
    if critic.shared and critic.clip is not None and update.epochs * update.minibatches == 1:
        raise UsageError(
            "critic clip has no effect with one optimizer step per training step; set epochs or minibatches above 1"
        )


def valued(
    groups: Sequence[TrajectoryGroup], critic: Critic, readable: Callable[[Transition], bool] = lambda _: True
) -> list[TrajectoryGroup]:
    """Return the groups with a value on every call of each rewarded rollout; `critic` is called once for all.

    Calls that are not `readable` are left out, and counted among the rollout's excluded calls.
    """
    read = [replace(group, trajectories=tuple(_read(t, readable) for t in group.trajectories)) for group in groups]
    calls = [call for group in read for t in group.trajectories for call in _rewarded_calls(t)]
    values = iter(critic(calls).tolist() if calls else [])
    return [replace(group, trajectories=tuple(_with_values(t, values) for t in group.trajectories)) for group in read]


def value_targets(groups: Sequence[TrajectoryGroup], credit: CreditAssigner) -> list[ValueTarget]:
    """Return the critic's training targets: one for each credited call of each rewarded rollout.

    Groups that give the policy no training signal are included. A critic that learned only from groups whose rewards
    differ would expect success half as often as it occurs, or twice as often.
    """
    expected = expected_returns(credit)
    found: list[ValueTarget] = []
    for trajectory in (t for group in groups for t in group.trajectories):
        assigned = expected.assign(trajectory) if trajectory.transitions else None
        if assigned is not None:
            every = zip(trajectory.transitions, assigned.returns_N.tolist(), assigned.weights_N.tolist(), strict=True)
            found += [ValueTarget(call, target) for call, target, weight in every if weight > 0]
    return found


def unvalued(groups: Sequence[TrajectoryGroup]) -> int:
    """Return the number of calls left out because the critic could not read them."""
    return sum(t.excluded.get(NO_VALUE, 0) for group in groups for t in group.trajectories)


def _rewarded_calls(trajectory: Trajectory) -> tuple[Transition, ...]:
    return () if trajectory.reward is None else trajectory.transitions


def _read(trajectory: Trajectory, readable: Callable[[Transition], bool]) -> Trajectory:
    kept = tuple(call for call in trajectory.transitions if readable(call))
    if len(kept) == len(trajectory.transitions):
        return trajectory
    read = {call.span_id for call in kept}
    unread = {call.span_id: NO_VALUE for call in trajectory.transitions if call.span_id not in read}
    return replace(trajectory, transitions=kept, untrained={**trajectory.untrained, **unread})


def _with_values(trajectory: Trajectory, values: Iterator[float]) -> Trajectory:
    calls = _rewarded_calls(trajectory)
    if not calls:
        return trajectory
    return replace(trajectory, transitions=tuple(replace(call, value=next(values)) for call in calls))

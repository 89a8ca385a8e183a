"""`Account`: what became of each rollout of a batch and of each of its calls: trained, or the reason why not.

Invariant: every rollout is named once, under `trained` or under one reason. A call of a trained rollout is trained
unless it is named under a reason; a call of another rollout shares the rollout's reason unless it has one of its own.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from leyden.core.data.reasons import (
    FAILED,
    IN_NO_PAIR,
    NO_ACTING_SIDE,
    NO_CALL,
    NO_CALL_LEFT,
    NO_CREDITED_CALL,
    NO_REWARD,
    NO_VALUE,
    UNCREDITED,
    failed_by,
)
from leyden.core.data.tally import Tally
from leyden.core.data.transition import Trajectory, TrajectoryGroup

FOUND_WHILE_LEARNING = frozenset({UNCREDITED, NO_VALUE, IN_NO_PAIR})
"""Reasons of calls that an algorithm finds; the others are known when the calls are collected."""


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one batch; of algorithms side by side, of one of them."""

    side: str | None = None
    trained: list[str] = []
    """Ids of rollouts of which at least one call is trained."""
    rollouts: dict[str, list[str]] = {}
    """By reason: ids of rollouts of which none is."""
    calls: dict[str, list[str]] = {}
    """By reason: ids of the spans of calls that are not trained."""
    unmoved: list[str] = []
    """Ids of the spans of calls that are trained with advantage 0: they push the policy nowhere."""

    def of_side(self, side: str) -> "Account":
        """The same, as the account of one of several algorithms."""
        return msgspec.structs.replace(self, side=side)

    def without_step(self) -> "Account":
        """The same, where no step is taken from the batch after all."""
        if not self.trained:
            return self
        given_up = {NO_ACTING_SIDE: [*self.rollouts.get(NO_ACTING_SIDE, []), *self.trained]}
        return msgspec.structs.replace(self, trained=[], rollouts={**self.rollouts, **given_up}, unmoved=[])

    def counts(self) -> dict[str, int]:
        """Numbers for a log: rollouts and calls left out, by reason."""
        found = {f"rollouts_left_out/{reason}": len(ids) for reason, ids in self.rollouts.items()}
        return found | {f"calls_left_out/{reason}": len(ids) for reason, ids in self.calls.items()}


def account_of(
    groups: Sequence[TrajectoryGroup],
    trained: Collection[str],
    *,
    unused: str = UNCREDITED,
    dropped: Sequence[str | None] | None = None,
    objections: Mapping[str, str] | None = None,
    calls: Mapping[str, str] | None = None,
    unmoved: Sequence[str] = (),
) -> Account:
    """Return the account of `groups`, of which the calls with the span ids `trained` are learned from.

    `unused` is why another call of a rollout that is learned from is not, unless `calls` has a reason under its span's
    id; `dropped` has for each group why it is dropped; `objections` has by rollout why the algorithm leaves it out.
    """
    own_reasons = calls or {}
    account = Account(trained=[], rollouts={}, calls={}, unmoved=list(unmoved))
    for group, reason in zip(groups, dropped or [None] * len(groups), strict=True):
        for trajectory in group.trajectories:
            for span_id, why in trajectory.untrained.items():
                account.calls.setdefault(why, []).append(span_id)
            left = [call.span_id for call in trajectory.transitions if call.span_id not in trained]
            is_trained = len(left) < len(trajectory.transitions)
            for span_id in left:
                if is_trained or span_id in own_reasons:
                    account.calls.setdefault(own_reasons.get(span_id, unused), []).append(span_id)
            if is_trained:
                account.trained.append(trajectory.rollout_id)
                continue
            objection = (objections or {}).get(trajectory.rollout_id)
            why = objection or lacking(trajectory) or reason or _unused_as_a_whole(unused)
            account.rollouts.setdefault(why, []).append(trajectory.rollout_id)
    return account


def lacking(trajectory: Trajectory) -> str | None:
    """What a trajectory lacks that any algorithm with rewards needs; None: it has a reward and a call."""
    if trajectory.reward is None or not trajectory.transitions:
        if trajectory.failure is not None:
            return failed_by(trajectory.failure)
        if not trajectory.succeeded:
            return FAILED["unknown"]
    if trajectory.reward is None:
        return NO_REWARD
    if not trajectory.transitions:
        return NO_CALL_LEFT if trajectory.untrained else NO_CALL
    return None


def failures(groups: Sequence[TrajectoryGroup]) -> Tally:
    """Why rollouts of `groups` failed, as their attempts say."""
    tally = Tally()
    for trajectory in (one for group in groups for one in group.trajectories):
        if trajectory.failure is not None:
            tally.add(trajectory.failure.text, trajectory.rollout_id)
    return tally


def failed_line(groups: Sequence[TrajectoryGroup]) -> str:
    """How many rollouts of `groups` failed, and of what, in one line; empty where none did."""
    tally = failures(groups)
    if not tally.total:
        return ""
    count = sum(len(group.trajectories) for group in groups)
    return f"{tally.total} of {count} rollouts failed: {tally.line()}"


def _unused_as_a_whole(unused: str) -> str:
    return NO_CREDITED_CALL if unused == UNCREDITED else unused

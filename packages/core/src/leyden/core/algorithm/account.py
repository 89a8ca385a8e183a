"""`Account`: records for every rollout and call of a batch whether it was trained, or the reason why not.

Invariant: every rollout is listed once, under `trained` or under one reason. A call of a trained rollout counts as
trained unless it is listed under a reason. A call of any other rollout has the reason of its rollout, unless it is
listed under a reason of its own.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from leyden.core.algorithm.task_rollouts import RolloutResult
from leyden.core.data.reasons import (
    BEYOND_CONTEXT,
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
from leyden.core.data.similar_messages import Tally
from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition

FOUND_WHILE_LEARNING = frozenset({UNCREDITED, NO_VALUE, IN_NO_PAIR, BEYOND_CONTEXT})
"""Reasons that an algorithm finds for calls. All other reasons are found when the calls are collected."""


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The account of one batch. If algorithms train side by side, each of them has an account of its own."""

    side: str | None = None
    trained: list[str] = []
    """Ids of the rollouts with at least one trained call."""
    rollouts: dict[str, list[str]] = {}
    """Ids of the rollouts without a trained call, by the reason why."""
    calls: dict[str, list[str]] = {}
    """Span ids of the calls that are not trained, by the reason why."""
    unmoved: list[str] = []
    """Span ids of the calls that are trained with advantage 0, so their gradient is zero."""

    def of_side(self, side: str) -> "Account":
        """Return a copy that belongs to `side`, one of several algorithms that train side by side."""
        return msgspec.structs.replace(self, side=side)

    def without_calls(self, calls: Sequence[Transition], reason: str, trained: Collection[str]) -> "Account":
        """Return a copy in which `calls` are not trained, for `reason`; rollouts outside of `trained` neither."""
        if not calls:
            return self
        spans = [call.span_id for call in calls]
        gone = [name for name in self.trained if name not in trained]
        return msgspec.structs.replace(
            self,
            trained=[name for name in self.trained if name in trained],
            rollouts=_with(self.rollouts, reason, gone),
            calls=_with(self.calls, reason, spans),
            unmoved=[span for span in self.unmoved if span not in set(spans)],
        )

    def without_step(self) -> "Account":
        """Return a copy in which nothing is trained, for a batch from which no step is taken."""
        if not self.trained:
            return self
        rollouts = _with(self.rollouts, NO_ACTING_SIDE, self.trained)
        return msgspec.structs.replace(self, trained=[], rollouts=rollouts, unmoved=[])

    def counts(self) -> dict[str, int]:
        """Return the number of rollouts and calls left out, by reason, as metrics for a log."""
        found = {f"rollouts_left_out/{reason}": len(ids) for reason, ids in self.rollouts.items()}
        return found | {f"calls_left_out/{reason}": len(ids) for reason, ids in self.calls.items()}


def _with(ids_by_reason: Mapping[str, list[str]], reason: str, ids: Sequence[str]) -> dict[str, list[str]]:
    """Return a copy with further ids for one reason."""
    return {**ids_by_reason, reason: [*ids_by_reason.get(reason, []), *ids]} if ids else dict(ids_by_reason)


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
    """Return the account of `groups`, in which the calls with the span ids in `trained` are trained.

    `unused` is the reason for untrained calls of trained rollouts. `calls` maps span ids to reasons, which replace
    `unused`. `dropped` holds for each group the reason why it is dropped, or None. `objections` maps rollout ids to the
    reason why the algorithm leaves the rollout out.
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


def account_of_results(results: Sequence[RolloutResult]) -> Account:
    """Return the account of rollouts that an algorithm requested one by one, to compare versions of the resources.

    Rollouts with a reward count as trained. Held-out rollouts are left out: they only measure.
    """
    account = Account(trained=[], rollouts={})
    for result in (one for one in results if one.request.held_out is None):
        if result.reward is not None:
            account.trained.append(result.rollout.rollout_id)
        else:
            why = NO_REWARD if result.failure is None else failed_by(result.failure)
            account.rollouts.setdefault(why, []).append(result.rollout.rollout_id)
    return account


def lacking(trajectory: Trajectory) -> str | None:
    """Return what a trajectory lacks that algorithms with rewards need; None if it has a reward and a call."""
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
    """Return a tally of the reasons why rollouts of `groups` failed, as recorded on their attempts."""
    tally = Tally()
    for trajectory in (one for group in groups for one in group.trajectories):
        if trajectory.failure is not None:
            tally.add(trajectory.failure.text, trajectory.rollout_id)
    return tally


def failed_line(groups: Sequence[TrajectoryGroup]) -> str:
    """Return one line with how many rollouts of `groups` failed, and why; an empty string if none failed."""
    tally = failures(groups)
    if not tally.total:
        return ""
    count = sum(len(group.trajectories) for group in groups)
    return f"{tally.total} of {count} rollouts failed: {tally.line()}"


def _unused_as_a_whole(unused: str) -> str:
    return NO_CREDITED_CALL if unused == UNCREDITED else unused

"""Preference pairs: pairs responses to the same state where one has a higher return than the other.

Invariant: the two responses of a pair have the same prompt ids and different response ids. The chosen one has the
higher return. No response is in two pairs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from leyden.core.credit.base import CreditAssigner
from leyden.core.data.reasons import NO_BETTER_ANSWER, NO_STATE_TWICE, TOO_FEW_REWARDS
from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A transition and its return."""

    transition: Transition
    value: float
    """The return of the transition."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Two responses to one state."""

    chosen: Transition
    rejected: Transition
    gap: float
    """Return of the chosen response minus return of the rejected one."""


@dataclass(frozen=True, slots=True)
class PairedGroups:
    """The pairs made from groups of trajectories."""

    pairs: list[Pair]
    reasons: list[str | None]
    """For each group the reason why it has no pair; None if it has one."""

    @property
    def dropped(self) -> Counter[str]:
        """Number of groups without a pair, by the reason why."""
        return Counter(reason for reason in self.reasons if reason is not None)


def pairs_of(
    groups: Sequence[TrajectoryGroup],
    credit: CreditAssigner,
    *,
    min_gap: float = 0.0,
    per_state: int | None = None,
    apart: bool = False,
) -> PairedGroups:
    """Return the pairs of every group.

    Pairs are made within a group only: between tasks, returns would measure how hard the task was. Each transition has
    its return under `credit`. A transition with weight 0 is not used. With `apart`, both responses of a pair come from
    the same policy, so that each of several policies learns only from its own responses.
    """
    pairs: list[Pair] = []
    reasons: list[str | None] = []
    for group in groups:
        rewarded = [_answers(trajectory, credit) for trajectory in group.trajectories]
        if sum(answers is not None for answers in rewarded) < 2:
            reasons.append(TOO_FEW_REWARDS)
            continue
        states = by_state([answer for answers in rewarded for answer in answers or ()], apart=apart)
        found = [pair for answers in states for pair in pairs_of_state(answers, min_gap=min_gap)[:per_state]]
        pairs += found
        none = NO_BETTER_ANSWER if any(len(answers) > 1 for answers in states) else NO_STATE_TWICE
        reasons.append(None if found else none)
    return PairedGroups(pairs, reasons)


def by_state(answers: Sequence[Answer], *, apart: bool = False) -> list[list[Answer]]:
    """Return the distinct responses to each state, best first; states are in order of first appearance.

    Equal responses are merged into one with the mean of their returns, because their returns differ only by chance.
    With `apart`, a state that several policies answered counts as one state for each policy.
    """
    states: dict[tuple[str, bytes], dict[bytes, list[Answer]]] = {}
    for answer in answers:
        call = answer.transition
        state = (call.policy if apart else "", call.state)
        states.setdefault(state, {}).setdefault(call.response_ids.tobytes(), []).append(answer)
    return [sorted(map(_merged, responses.values()), key=_rank) for responses in states.values()]


def pairs_of_state(answers: Sequence[Answer], *, min_gap: float = 0.0) -> list[Pair]:
    """Return pairs of the best of `answers` with the worst, the second best with the second worst, and so on.

    `answers` are sorted best first. In each pair the better response must be better by more than `min_gap`. No other
    pairing has a larger sum of gaps.
    """
    pairs: list[Pair] = []
    for better, worse in zip(answers[: len(answers) // 2], reversed(answers), strict=False):
        gap = better.value - worse.value
        if gap > min_gap:
            pairs.append(Pair(better.transition, worse.transition, gap))
    return pairs


def _answers(trajectory: Trajectory, scheme: CreditAssigner) -> list[Answer] | None:
    """Return the credited transitions of one trajectory; None if it has no reward or no call."""
    credit = scheme.assign(trajectory) if trajectory.transitions else None
    if credit is None:
        return None
    found = zip(trajectory.transitions, credit.returns_N.tolist(), credit.weights_N.tolist(), strict=True)
    return [Answer(transition, value) for transition, value, weight in found if weight > 0]


def _merged(same: Sequence[Answer]) -> Answer:
    """Return one response for several equal ones; the result does not depend on their order."""
    first = min(same, key=lambda answer: (answer.transition.rollout_id, answer.transition.span_id))
    return Answer(first.transition, sum(sorted(answer.value for answer in same)) / len(same))


def _rank(answer: Answer) -> tuple[float, bytes]:
    """Return the sort key: best first, and equal returns by their token ids, so that the order is reproducible."""
    return (-answer.value, answer.transition.response_ids.tobytes())

"""Pairs of answers to the same state of which one turned out better. Knows nothing of losses, policies or loops.

Invariant: the two of a pair have the same prompt ids and different response ids, the chosen has the higher return, and
no answer is in two pairs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from leyden.core.credit.base import CreditAssigner
from leyden.core.data.reasons import NO_BETTER_ANSWER, NO_STATE_TWICE, TOO_FEW_REWARDS
from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A transition, and what followed from it."""

    transition: Transition
    value: float
    """Its return."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Two answers to one state."""

    chosen: Transition
    rejected: Transition
    gap: float
    """How much more followed from the chosen."""


@dataclass(frozen=True, slots=True)
class Paired:
    """What groups of trajectories came to."""

    pairs: list[Pair]
    reasons: list[str | None]
    """For each group why it has no pair; None where it has one."""

    @property
    def dropped(self) -> Counter[str]:
        """Groups without a pair, by the reason why."""
        return Counter(reason for reason in self.reasons if reason is not None)


def pairs_of(
    groups: Sequence[TrajectoryGroup],
    credit: CreditAssigner,
    *,
    min_gap: float = 0.0,
    per_state: int | None = None,
    apart: bool = False,
) -> Paired:
    """Return the pairs of every group, each within its group: across tasks, returns say how hard the task was.

    A transition counts with its return under `credit`; one that is given no weight does not count.
    With `apart`, the two of a pair are one policy's: each of several learns from its own answers alone.
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
    return Paired(pairs, reasons)


def by_state(answers: Sequence[Answer], *, apart: bool = False) -> list[list[Answer]]:
    """Return the different answers to each state, the best first; the states in the order they first appear.

    The same tokens said several times are one answer, with the mean of its returns: what follows from it is chance.
    With `apart`, a state that several policies answered is a state of each.
    """
    states: dict[tuple[str, bytes], dict[bytes, list[Answer]]] = {}
    for answer in answers:
        call = answer.transition
        state = (call.policy if apart else "", call.prompt_ids.tobytes())
        states.setdefault(state, {}).setdefault(call.response_ids.tobytes(), []).append(answer)
    return [sorted(map(_merged, said.values()), key=_rank) for said in states.values()]


def pairs_of_state(answers: Sequence[Answer], *, min_gap: float = 0.0) -> list[Pair]:
    """Pair the best of `answers` with the worst, the second best with the second worst, and so on; the best are first.

    Each must be better by more than `min_gap`. No other pairing of answers has larger gaps in sum.
    """
    pairs: list[Pair] = []
    for better, worse in zip(answers[: len(answers) // 2], reversed(answers), strict=False):
        gap = better.value - worse.value
        if gap > min_gap:
            pairs.append(Pair(better.transition, worse.transition, gap))
    return pairs


def _answers(trajectory: Trajectory, scheme: CreditAssigner) -> list[Answer] | None:
    """The credited transitions of one trajectory; None when it has no reward or no call."""
    credit = scheme.assign(trajectory) if trajectory.transitions else None
    if credit is None:
        return None
    found = zip(trajectory.transitions, credit.returns_N.tolist(), credit.weights_N.tolist(), strict=True)
    return [Answer(transition, value) for transition, value, weight in found if weight > 0]


def _merged(same: Sequence[Answer]) -> Answer:
    """One answer for several of the same tokens, whichever came first."""
    first = min(same, key=lambda answer: (answer.transition.rollout_id, answer.transition.span_id))
    return Answer(first.transition, sum(sorted(answer.value for answer in same)) / len(same))


def _rank(answer: Answer) -> tuple[float, bytes]:
    """The best first; of equals, in an order that does not depend on who came first."""
    return (-answer.value, answer.transition.response_ids.tobytes())

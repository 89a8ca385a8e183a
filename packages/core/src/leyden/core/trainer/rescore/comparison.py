"""Comparison of rewards before and after: distribution, ranks, and the spread within groups."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from leyden.core.trainer.rescore.ranks import kendall_tau_b, mean_ranks, spread
from leyden.core.trainer.rescore.result import (
    Distribution,
    GroupChange,
    GroupChanges,
    Move,
    RankChanges,
    RescoredRollout,
    SpreadChange,
)

BINS = 10
MOST_MOVES = 10
Pair = tuple[float, float]
"""A reward before and after."""


def pairs_of(rollouts: Iterable[RescoredRollout]) -> dict[str, Pair]:
    """Return both rewards by rollout, of the rollouts that have both."""
    return {
        one.rollout_id: (one.before, one.after) for one in rollouts if one.before is not None and one.after is not None
    }


def distribution(pairs: Sequence[Pair], bins: int = BINS) -> Distribution | None:
    """Return the distribution of both sides over the same bins of equal width; None without pairs.

    One bin is used where all values are equal.
    """
    if not pairs:
        return None
    before, after = [one for one, _ in pairs], [other for _, other in pairs]
    low, high = min(before + after), max(before + after)
    bins = bins if high > low else 1
    edges = [low + (high - low) * (number / bins) for number in range(bins)] + [high]
    return Distribution(
        rollouts=len(pairs),
        mean_before=fmean(before),
        mean_after=fmean(after),
        deviation_before=pstdev(before),
        deviation_after=pstdev(after),
        edges=edges,
        before=_counts(before, low, high, bins),
        after=_counts(after, low, high, bins),
    )


def dimension_distributions(rollouts: Iterable[RescoredRollout]) -> dict[str, Distribution]:
    """Return the distribution of each dimension that a rollout has before and after."""
    found: dict[str, list[Pair]] = {}
    for one in rollouts:
        for name, before in one.dimensions_before.items():
            if name in one.dimensions_after:
                found.setdefault(name, []).append((before, one.dimensions_after[name]))
    made = {name: distribution(pairs) for name, pairs in found.items()}
    return {name: one for name, one in made.items() if one is not None}


def rank_changes(rollouts: Sequence[RescoredRollout], most: int = MOST_MOVES) -> RankChanges | None:
    """Return how the order changes among all rollouts with both rewards, and within groups; None without any."""
    pairs = pairs_of(rollouts)
    if not pairs:
        return None
    before, after = [one for one, _ in pairs.values()], [other for _, other in pairs.values()]
    ranks = zip(pairs, before, after, mean_ranks(before), mean_ranks(after), strict=True)
    moves = [
        Move(rollout_id=name, before=one, after=other, rank_before=first, rank_after=second)
        for name, one, other, first, second in ranks
        if first != second
    ]
    moves.sort(key=lambda move: -abs(move.rank_after - move.rank_before))
    taus = [tau for tau in map(_tau, _by_group(rollouts).values()) if tau is not None]
    return RankChanges(
        tau=kendall_tau_b(before, after),
        tau_in_groups=fmean(taus) if taus else None,
        groups=len(taus),
        moved=len(moves),
        most=moves[:most],
    )


def complete_groups(
    rollouts: Iterable[RescoredRollout], without_result: Iterable[str] = ()
) -> tuple[dict[str, list[RescoredRollout]], int]:
    """Return the rollouts by group, without the groups that cannot be compared, and the number of these.

    A group cannot be compared if a rollout in it has no new reward, unless the rollout is in `without_result` and has
    no stored reward either: no reward function scores it.
    """
    unscored = set(without_result)
    by_group, incomplete = dict[str, list[RescoredRollout]](), set[str]()
    for one in rollouts:
        if not one.group:
            continue
        by_group.setdefault(one.group, []).append(one)
        if one.after is None and not (one.before is None and one.rollout_id in unscored):
            incomplete.add(one.group)
    return {key: members for key, members in by_group.items() if key not in incomplete}, len(incomplete)


def group_changes(
    groups: Mapping[str, Sequence[RescoredRollout]],
    incomplete: int = 0,
    dropped: Mapping[str, tuple[str, str]] | None = None,
) -> GroupChanges:
    """Return the change of the spread of each group.

    `dropped` has the reasons why an advantage estimator drops a group before and after; empty where it does not.
    """
    changes: list[GroupChange] = []
    for key, members in groups.items():
        before = spread([one.before for one in members if one.before is not None])
        after = spread([one.after for one in members if one.after is not None])
        reasons = (dropped or {}).get(key, ("", ""))
        changes.append(
            GroupChange(
                group=key,
                rollouts=len(members),
                before=before,
                after=after,
                change=_change(before, after),
                dropped_before=reasons[0],
                dropped_after=reasons[1],
            )
        )
    counts = Counter(one.change for one in changes)
    kinds: tuple[SpreadChange, ...] = ("gains", "loses", "keeps", "none")
    return GroupChanges(groups=changes, counts={kind: counts[kind] for kind in kinds}, incomplete=incomplete)


def _change(before: float, after: float) -> SpreadChange:
    if before and after:
        return "keeps"
    return "loses" if before else "gains" if after else "none"


def _by_group(rollouts: Iterable[RescoredRollout]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {}
    for one in rollouts:
        if one.group and one.before is not None and one.after is not None:
            found.setdefault(one.group, []).append((one.before, one.after))
    return found


def _tau(pairs: Sequence[Pair]) -> float | None:
    return kendall_tau_b([one for one, _ in pairs], [other for _, other in pairs])


def _counts(values: Iterable[float], low: float, high: float, bins: int) -> list[int]:
    width = high - low
    counts = Counter(min(int((value - low) / width * bins), bins - 1) if width else 0 for value in values)
    return [counts[number] for number in range(bins)]

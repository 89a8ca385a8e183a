"""Ranks: how much two rewards agree about the order of rollouts."""

import math
from collections.abc import Sequence
from itertools import groupby

from leyden.core.advantage.base import SPREAD


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-b of paired values; None where one side has fewer than two different values.

    tau-b = (concordant - discordant) / sqrt((n0 - ties in first) (n0 - ties in second)), with n0 = n (n - 1) / 2 pairs
    (Kendall 1945). Knight's algorithm (1966), n log n. Raises ValueError for sequences of different lengths.
    """
    pairs = sorted(zip(first, second, strict=True))
    all_pairs = _pairs(len(pairs))
    tied_first = _tied_pairs([one for one, _ in pairs])
    tied_second = _tied_pairs(sorted(other for _, other in pairs))
    tied_both = _tied_pairs(pairs)
    different = (all_pairs - tied_first) * (all_pairs - tied_second)
    if not different:
        return None
    _, discordant = _sorted_with_exchanges([other for _, other in pairs])
    concordant = all_pairs - tied_first - tied_second + tied_both - discordant
    return (concordant - discordant) / math.sqrt(different)


def mean_ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, 1 for the largest; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda index: -values[index])
    ranks, first = [0.0] * len(values), 1
    for _, tied in groupby(order, key=lambda index: values[index]):
        members = list(tied)
        for index in members:
            ranks[index] = first + (len(members) - 1) / 2
        first += len(members)
    return ranks


def spread(values: Sequence[float]) -> float:
    """Return the largest minus the smallest value; 0 where they differ only by rounding, or without values."""
    if not values:
        return 0.0
    width = max(values) - min(values)
    return width if width > SPREAD * max(map(abs, values)) else 0.0


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


def _tied_pairs(ordered: Sequence[object]) -> int:
    """Return the number of pairs of equal values in a sorted sequence."""
    return sum(_pairs(len(list(tied))) for _, tied in groupby(ordered))


def _sorted_with_exchanges(values: list[float]) -> tuple[list[float], int]:
    """Return the values sorted, and the number of pairs that were in the wrong order."""
    if len(values) < 2:
        return values, 0
    middle = len(values) // 2
    left, exchanges_left = _sorted_with_exchanges(values[:middle])
    right, exchanges_right = _sorted_with_exchanges(values[middle:])
    merged: list[float] = []
    exchanges, at = exchanges_left + exchanges_right, 0
    for value in right:
        while at < len(left) and left[at] <= value:
            merged.append(left[at])
            at += 1
        merged.append(value)
        exchanges += len(left) - at
    return merged + left[at:], exchanges

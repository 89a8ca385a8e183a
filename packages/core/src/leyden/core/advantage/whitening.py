"""Whitening over a whole batch: scales numbers to mean 0 and deviation 1. All functions are pure."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from leyden.core.advantage.base import SPREAD, Floats, Group, GroupAdvantages, in_order

Counting = Literal["rollout", "transition"]
"""What counts once in a mean over a batch: a rollout, divided among its transitions, or every transition."""


def whiten(batch: Sequence[Floats], counting: Counting, eps: float) -> list[Floats] | None:
    """Return (x - mean) / sqrt(var + eps) over the batch's rollouts, none of them empty; None if nothing is left.

    The result is None for an empty batch, or without spread. The variance has Bessel's correction, W - 1 for the W
    rollouts or transitions counted.
    """
    if not batch:
        return None
    x_M = np.concatenate(batch)
    once = counting == "rollout"
    weight_M = np.concatenate([np.full(len(x_N), 1.0 / len(x_N) if once else 1.0) for x_N in batch])
    total = len(batch) if once else len(x_M)
    centred_M = x_M - np.average(x_M, weights=weight_M)
    if total < 2 or np.abs(centred_M).max() <= SPREAD * np.abs(x_M).max():
        return None
    variance = (weight_M * np.square(centred_M)).sum() / (total - 1)
    return np.split(centred_M / np.sqrt(variance + eps), np.cumsum([len(x_N) for x_N in batch])[:-1])


def whitened_groups(
    groups: Sequence[Group], x: Sequence[Sequence[Floats]], counting: Counting, eps: float
) -> list[GroupAdvantages]:
    """Return `x`, the numbers of each group's rollouts with transitions, whitened over all groups together."""
    white = whiten([x_N for group in x for x_N in group], counting, eps)
    if white is None:
        return [GroupAdvantages(dropped="no spread" if group else "fewer than two rewards") for group in groups]
    rest = iter(white)
    return [
        GroupAdvantages(advantages=in_order(group, [next(rest) for _ in own]))
        if own
        else GroupAdvantages(dropped="no credited call" if group else "fewer than two rewards")
        for group, own in zip(groups, x, strict=True)
    ]

"""Paired comparison: compares two policy versions task by task.

Differences are paired because both versions ran the same tasks. The difficulty of a task then cancels out.
"""

import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec

from leyden.core.trainer.run_folder.versions import is_share


class PairedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of `b` with `a` on the tasks that both ran."""

    tasks: int
    a: float
    """Mean reward on these tasks."""
    b: float
    wins: int
    """Number of tasks on which `b` earned more."""
    losses: int
    ties: int
    p_value: float
    """Two-sided p-value of the sign test: probability of an outcome at least as uneven, if `a` and `b` are equally
    good."""
    is_share: bool
    """Whether each task earned 0 or 1, so that both means are shares of solved tasks."""
    difference: tuple[float, float]
    """95 % interval of the mean of `b - a`, from a paired bootstrap."""


def compare(a: Mapping[str, float], b: Mapping[str, float]) -> PairedComparison | None:
    """Compare the rewards of `a` and `b` by task; None if they have no task in common."""
    common = sorted(a.keys() & b.keys())
    if not common:
        return None
    differences = [b[task] - a[task] for task in common]
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return PairedComparison(
        tasks=len(common),
        a=fmean(a[task] for task in common),
        b=fmean(b[task] for task in common),
        wins=wins,
        losses=losses,
        ties=len(common) - wins - losses,
        p_value=sign_test(wins, losses),
        is_share=is_share([rewards[task] for rewards in (a, b) for task in common]),
        difference=bootstrap_interval(differences),
    )


def sign_test(wins: int, losses: int) -> float:
    """Return the p-value of the exact two-sided sign test.

    It is P(an outcome at least as uneven) under Binomial(wins + losses, 1/2).
    """
    count, fewer = wins + losses, min(wins, losses)
    tail = outcomes = 1  # C(count, 0); the loop computes each binomial coefficient from the previous one
    for k in range(fewer):
        outcomes = outcomes * (count - k) // (k + 1)
        tail += outcomes
    return min(1.0, 2 * tail / 2**count)


def bootstrap_interval(
    differences: Sequence[float], *, draws: int = 2000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile bootstrap interval (Efron 1979) of the mean of `differences`, as (low, high).

    The result is deterministic: equal arguments give the same interval.
    """
    chance = random.Random(seed)
    count = len(differences)
    means = sorted(fmean(chance.choices(differences, k=count)) for _ in range(draws))
    low = math.floor((1 - level) / 2 * (draws - 1))
    return means[low], means[draws - 1 - low]

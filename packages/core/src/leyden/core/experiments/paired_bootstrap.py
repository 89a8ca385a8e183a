"""Paired bootstrap over seeds and held-out tasks: an interval of the mean difference between two arms.

Differences are paired: both arms ran the same tasks, with the same seeds. Seeds and tasks are both drawn with
replacement, independently (the pigeonhole bootstrap: Owen, "The pigeonhole bootstrap", 2007). All tasks of a seed share
the policy of one run, so differences of one seed are not independent. Drawing single differences would ignore that, and
give an interval that is too narrow.
"""

from collections.abc import Mapping, Sequence

import msgspec

Rewards = Mapping[str, float]
"""Rewards by task."""


class PairedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Mean difference of two arms on what both ran."""

    mean: float
    low: float
    high: float
    seeds: int
    tasks: int
    """Number of tasks that both arms ran with at least one seed."""


def paired_difference(
    ours: Mapping[int, Rewards],
    theirs: Mapping[int, Rewards],
    *,
    draws: int = 4000,
    level: float = 0.95,
    seed: int = 0,
) -> PairedDifference | None:
    """Compare the rewards of two arms by seed and task; None if they share no task of any seed.

    The interval is the percentile interval (Efron 1979) of the mean of `ours - theirs`. Equal arguments give the same
    interval.
    """
    pairs = {one: _differences(ours[one], theirs[one]) for one in sorted(ours.keys() & theirs.keys())}
    pairs = {one: found for one, found in pairs.items() if found}
    tasks = sorted({task for found in pairs.values() for task in found})
    if not tasks:
        return None
    low, high = crossed_interval([[found.get(task) for task in tasks] for found in pairs.values()], draws, level, seed)
    cells = [value for found in pairs.values() for value in found.values()]
    return PairedDifference(mean=sum(cells) / len(cells), low=low, high=high, seeds=len(pairs), tasks=len(tasks))


def _differences(ours: Rewards, theirs: Rewards) -> dict[str, float]:
    return {task: ours[task] - theirs[task] for task in ours.keys() & theirs.keys()}


def crossed_interval(
    differences_ST: Sequence[Sequence[float | None]], draws: int, level: float, seed: int
) -> tuple[float, float]:
    """Return the interval of the mean of a table of differences, as (low, high).

    Rows are seeds and columns are tasks; a cell that was not measured is None. With one row, only tasks are drawn.
    """
    import numpy as np

    known_ST = np.array([[cell is not None for cell in row] for row in differences_ST], dtype=np.float64)
    values_ST = np.array([[0.0 if cell is None else cell for cell in row] for row in differences_ST])
    seeds, tasks = values_ST.shape
    chance = np.random.default_rng(seed)
    # A drawn seed or task counts as often as it was drawn.
    times_DS = chance.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws).astype(np.float64)
    times_DT = chance.multinomial(tasks, np.full(tasks, 1 / tasks), size=draws).astype(np.float64)
    sums_D = np.einsum("ds,st,dt->d", times_DS, values_ST, times_DT, optimize=True)
    counts_D = np.einsum("ds,st,dt->d", times_DS, known_ST, times_DT, optimize=True)
    means_D = sums_D[counts_D > 0] / counts_D[counts_D > 0]
    low, high = np.quantile(means_D, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return float(low), float(high)

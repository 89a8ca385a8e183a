"""The interval of a difference over seeds × tasks, held against every resample there is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.experiments.paired_bootstrap import crossed_interval, paired_difference


def every_mean(rows: list[list[float | None]]) -> list[float]:
    """Means of the table for every way to draw its rows and its columns, each as likely, by plain loops."""
    found: list[float] = []
    for drawn in itertools.product(range(len(rows)), repeat=len(rows)):
        for columns in itertools.product(range(len(rows[0])), repeat=len(rows[0])):
            cells = [cell for row in drawn for column in columns if (cell := rows[row][column]) is not None]
            if cells:
                found.append(sum(cells) / len(cells))
    return sorted(found)


@pytest.mark.parametrize(
    "rows",
    [
        [[1.0, 0.0, 0.0, -1.0, 0.5]],
        [[1.0, 0.0, 0.25, -1.0], [0.5, 0.5, -0.75, 1.0]],
        [[1.0, 0.0, None, -1.0], [0.5, None, -0.75, 1.0]],
    ],
)
@pytest.mark.parametrize("level", [0.95, 0.5])
def test_the_interval_agrees_with_every_resample(rows: list[list[float | None]], level: float) -> None:
    means = every_mean(rows)
    low, high = crossed_interval(rows, 40_000, level, 0)
    # Each end is the exact quantile of the 16 to 4,096 resamples, up to the chance of 40,000 draws.
    for end, share in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
        below = sum(mean < end - 1e-9 for mean in means) / len(means)
        up_to = sum(mean <= end + 1e-9 for mean in means) / len(means)
        assert below - 0.01 <= share <= up_to + 0.01


def test_seeds_that_disagree_widen_the_interval() -> None:
    alike = {seed: dict.fromkeys("abcdefgh", 0.5) for seed in range(3)}
    apart = {seed: dict.fromkeys("abcdefgh", gain) for seed, gain in enumerate((0.0, 0.5, 1.0))}
    zero = {seed: dict.fromkeys("abcdefgh", 0.0) for seed in range(3)}
    first, second = paired_difference(alike, zero), paired_difference(apart, zero)
    assert first is not None and second is not None
    assert (first.mean, first.low, first.high) == (0.5, 0.5, 0.5)
    assert second.mean == 0.5
    assert (second.low, second.high) == (0.0, 1.0)  # all three draws take one seed with probability 1/27 > 2.5 %


def test_only_what_both_arms_ran_is_compared() -> None:
    found = paired_difference({0: {"a": 1.0, "b": 0.0}, 1: {"a": 9.0}}, {0: {"a": 0.0, "c": 5.0}, 2: {"a": 7.0}})
    assert found is not None
    assert (found.mean, found.low, found.high, found.seeds, found.tasks) == (1.0, 1.0, 1.0, 1, 1)
    assert paired_difference({0: {"a": 1.0}}, {1: {"a": 1.0}}) is None
    assert paired_difference({0: {"a": 1.0}}, {0: {"b": 1.0}}) is None


@given(st.lists(st.lists(st.floats(-1, 1), min_size=3, max_size=3), min_size=1, max_size=3))
def test_the_interval_lies_within_the_differences_and_is_the_same_again(rows: list[list[float]]) -> None:
    low, high = crossed_interval(rows, 200, 0.95, 0)
    assert min(map(min, rows)) - 1e-9 <= low <= high <= max(map(max, rows)) + 1e-9
    assert crossed_interval(rows, 200, 0.95, 0) == (low, high)

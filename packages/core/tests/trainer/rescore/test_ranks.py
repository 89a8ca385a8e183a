import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.trainer.rescore.ranks import kendall_tau_b, mean_ranks, spread

PAIRS = st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), max_size=25)


def by_pairs(pairs: list[tuple[int, int]]) -> float | None:
    """tau-b by its definition, over all pairs."""
    concordant = discordant = only_first = only_second = 0
    for (a, x), (b, y) in combinations(pairs, 2):
        concordant += (a - b) * (x - y) > 0
        discordant += (a - b) * (x - y) < 0
        only_first += a == b and x != y
        only_second += a != b and x == y
    decided = concordant + discordant
    below = (decided + only_first) * (decided + only_second)
    return (concordant - discordant) / math.sqrt(below) if below else None


@given(PAIRS)
def test_tau_is_that_of_its_definition(pairs: list[tuple[int, int]]) -> None:
    found = kendall_tau_b([one for one, _ in pairs], [other for _, other in pairs])
    expected = by_pairs(pairs)
    assert found == (None if expected is None else pytest.approx(expected))


def test_tau_of_a_published_example() -> None:
    # scipy.stats.kendalltau([12, 2, 1, 12, 2], [1, 4, 7, 1, 0]) in SciPy's documentation
    assert kendall_tau_b([12, 2, 1, 12, 2], [1, 4, 7, 1, 0]) == pytest.approx(-0.47140452079103173)


@given(st.lists(st.integers(0, 4), min_size=1))
def test_ranks_count_the_larger_values_and_half_of_the_equal_ones(values: list[int]) -> None:
    expected = [1 + sum(v > value for v in values) + (sum(v == value for v in values) - 1) / 2 for value in values]
    assert mean_ranks(values) == expected


def test_spread_ignores_rounding() -> None:
    assert spread([0.1 + 0.2, 0.3]) == 0.0
    assert spread([0.0, 0.5]) == 0.5
    assert spread([]) == 0.0

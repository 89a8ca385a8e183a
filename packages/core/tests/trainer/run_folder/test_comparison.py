import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.trainer.run_folder.comparison import bootstrap_interval, compare, sign_test


def test_wins_losses_and_means_are_of_the_tasks_both_were_asked() -> None:
    found = compare({"a": 1.0, "b": 0.0, "c": 0.5, "only a": 9.0}, {"a": 0.0, "b": 1.0, "c": 0.5, "d": 9.0})
    assert found is not None
    assert (found.tasks, found.wins, found.losses, found.ties) == (3, 1, 1, 1)
    assert (found.a, found.b, found.p_value) == (0.5, 0.5, 1.0)
    assert compare({"a": 1.0}, {"b": 1.0}) is None


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (3, 3), (5, 0), (7, 2), (4, 6), (10, 1)])
def test_the_sign_test_counts_every_outcome_as_uneven(wins: int, losses: int) -> None:
    count = wins + losses
    outcomes = list(itertools.product((0, 1), repeat=count))
    uneven = [o for o in outcomes if abs(2 * sum(o) - count) >= abs(wins - losses)]
    assert sign_test(wins, losses) == pytest.approx(len(uneven) / len(outcomes))


def test_the_sign_test_takes_many_tasks() -> None:
    assert sign_test(6000, 4000) < 1e-80
    assert sign_test(5000, 5000) == 1.0


def test_the_interval_agrees_with_every_resample() -> None:
    """All 5^5 resamples of five differences, each as likely; their quantiles are the bootstrap's, but for its draws."""
    differences = [1.0, 0.0, 0.0, 0.0, -1.0]
    means = sorted(sum(drawn) / 5 for drawn in itertools.product(differences, repeat=5))
    low, high = bootstrap_interval(differences, draws=4000)
    assert low == pytest.approx(means[int(0.025 * len(means))])
    assert high == pytest.approx(means[int(0.975 * len(means))])


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    chance = random.Random(0)
    covered = 0
    for _ in range(100):
        drawn = [chance.choice((1.0, 0.0, 0.0, -1.0)) + 0.1 for _ in range(40)]
        low, high = bootstrap_interval(drawn, draws=200)
        covered += low <= 0.1 <= high
    assert 0.88 <= covered / 100 <= 0.99


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12))
def test_the_interval_lies_within_the_differences_and_turns_round_with_the_sign(differences: list[float]) -> None:
    low, high = bootstrap_interval(differences, draws=200)
    assert min(differences) - 1e-9 <= low <= high <= max(differences) + 1e-9
    turned = bootstrap_interval([-d for d in differences], draws=200)
    assert turned == pytest.approx((-high, -low))

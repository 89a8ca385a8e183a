import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leyden.core.advantage.base import CreditedRollout, Group
from leyden.core.advantage.grpo import GRPO
from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.errors import TrainingError, UsageError

RewardsAndCalls = list[tuple[float, int]]
reward = st.integers(-8, 8).map(lambda eighths: eighths / 8)
groups = st.lists(st.tuples(reward, st.integers(1, 5)), min_size=2, max_size=8).filter(
    lambda group: len({r for r, _ in group}) > 1
)


def uniform(group: RewardsAndCalls) -> Group:
    return [CreditedRollout(returns_N=np.full(calls, value, dtype=np.float64)) for value, calls in group]


def firsts(estimator: GRPO, group: RewardsAndCalls) -> list[float]:
    [result] = estimator.estimate([uniform(group)])
    return [float(advantages_N[0]) for advantages_N in result.advantages]


def test_a_hand_worked_group() -> None:
    # Rewards 1, 0, 0, 1 of rollouts with 1, 3, 2, 1 calls: mean 1/2, unbiased standard deviation 1/sqrt(3).
    # Over transitions the mean would be 2/7.
    [result] = GRPO(eps=0.0).estimate([uniform([(1.0, 1), (0.0, 3), (0.0, 2), (1.0, 1)])])

    half = math.sqrt(3) / 2
    expected = [[half], [-half] * 3, [-half] * 2, [half]]
    assert result.dropped is None
    for advantages_N, expected_N in zip(result.advantages, expected, strict=True):
        np.testing.assert_allclose(advantages_N, expected_N, rtol=1e-12)


def test_it_is_registered_with_its_defaults() -> None:
    assert ADVANTAGE.make("grpo") == GRPO(eps=1e-6)


@settings(max_examples=30)
@given(groups)
def test_advantages_sum_to_zero_over_rollouts(group: RewardsAndCalls) -> None:
    assert sum(firsts(GRPO(), group)) == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=30)
@given(groups, st.lists(st.integers(1, 5), min_size=8, max_size=8))
def test_how_many_calls_a_rollout_made_changes_nothing(group: RewardsAndCalls, calls: list[int]) -> None:
    other = [(value, count) for (value, _), count in zip(group, calls, strict=False)]

    assert firsts(GRPO(), group) == pytest.approx(firsts(GRPO(), other), abs=1e-12)


@settings(max_examples=30)
@given(groups, st.floats(0.1, 100.0), st.floats(-10.0, 10.0))
def test_scale_and_offset_of_the_reward_change_nothing(group: RewardsAndCalls, scale: float, offset: float) -> None:
    moved = [(value * scale + offset, calls) for value, calls in group]

    assert firsts(GRPO(eps=0.0), moved) == pytest.approx(firsts(GRPO(eps=0.0), group), abs=1e-6)


def test_a_group_without_spread_is_dropped_even_when_rounding_differs() -> None:
    # The mean of three tenths is not a tenth in floating point.
    assert np.full(3, 0.1).mean() != 0.1

    same = [uniform([(0.1, 1), (0.1, 3), (0.1, 2)]), uniform([(0.0, 1), (0.0, 3)]), uniform([(1e-6, 1), (2e-6, 3)])]
    assert [result.dropped for result in GRPO(eps=0.0).estimate(same)] == ["no spread", "no spread", None]


def test_turns_are_compared_with_turns_where_credit_differs_between_them() -> None:
    # At turn 1 returns 1, 3 (mean 2), at turn 2 the first rollout's last return counts: 1, 5 (mean 3).
    group = [CreditedRollout(returns_N=np.array([1.0])), CreditedRollout(returns_N=np.array([3.0, 5.0]))]
    [result] = GRPO(eps=0.0).estimate([group])

    unit = math.sqrt(1 + (1 + 4) / 2)
    assert [(advantages_N * unit).tolist() for advantages_N in result.advantages] == [
        pytest.approx([-1.0]),
        pytest.approx([1.0, 2.0]),
    ]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_returns_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(TrainingError, match="returns must be finite"):
        GRPO().estimate([uniform([(bad, 1), (0.0, 1)])])


@pytest.mark.parametrize("eps", [-1.0, math.nan, math.inf])
def test_an_eps_that_cannot_work_is_refused(eps: float) -> None:
    with pytest.raises(UsageError, match="eps"):
        GRPO(eps=eps)

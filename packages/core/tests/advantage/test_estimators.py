"""What holds for every estimator, and each on worked cases."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leyden.core.advantage.base import AdvantageEstimator, CreditedRollout, Group
from leyden.core.advantage.gae import GAE, gae
from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.advantage.whitening import whiten
from leyden.core.errors import TrainingError, UsageError

COMPARING = ["dr_grpo", "grpo", "grpo_transitions", "reinforce_plus_plus_baseline", "rloo", "turn_level"]
EVERY = [*COMPARING, "reinforce_plus_plus", "gae"]
CENTRED_OVER_ROLLOUTS = ["dr_grpo", "grpo", "reinforce_plus_plus_baseline", "rloo", "reinforce_plus_plus"]

eighths = st.integers(-16, 16).map(lambda number: number / 8)
returns = st.lists(eighths, min_size=1, max_size=4)
batches = st.lists(st.lists(returns, min_size=2, max_size=4), min_size=1, max_size=3)


def group(*returns: list[float], values: list[list[float]] | None = None) -> Group:
    says = values or [[0.0] * len(own) for own in returns]
    return [
        CreditedRollout(returns_N=np.array(own, dtype=np.float64), values_N=np.array(value, dtype=np.float64))
        for own, value in zip(returns, says, strict=True)
    ]


def advantages(estimator: AdvantageEstimator, *groups: Group) -> list[list[list[float]]]:
    return [[a_N.tolist() for a_N in result.advantages] for result in estimator.estimate(groups)]


def flat(estimator: AdvantageEstimator, batch: list[list[list[float]]]) -> list[float]:
    """All advantages; 0 for those of a group that is dropped."""
    numbers: list[float] = []
    for given_, result in zip(batch, estimator.estimate([group(*own) for own in batch]), strict=True):
        shapes = [np.zeros(len(own)) for own in given_] if result.dropped else result.advantages
        numbers.extend(number for own in shapes for number in own.tolist())
    return numbers


def test_every_estimator_is_tested_here() -> None:
    assert sorted(EVERY) == sorted(ADVANTAGE.built_in)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=15)
@given(batch=batches, random_=st.randoms(use_true_random=False))
def test_order_changes_nothing(name: str, batch: list[list[list[float]]], random_: random.Random) -> None:
    estimator = ADVANTAGE.make(name)
    order = list(range(len(batch)))
    random_.shuffle(order)
    orders = [random_.sample(range(len(own)), len(own)) for own in batch]
    moved = estimator.estimate([group(*(batch[n][m] for m in orders[n])) for n in order])
    plain = estimator.estimate([group(*own) for own in batch])
    for place, n in enumerate(order):
        assert moved[place].dropped == plain[n].dropped
        for where, m in enumerate(orders[n]):
            if plain[n].dropped is None:
                np.testing.assert_allclose(moved[place].advantages[where], plain[n].advantages[m], atol=1e-9)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=15)
@given(batch=batches, scale=st.sampled_from([0.5, 2.0, 64.0]))
def test_scale_is_either_kept_or_divided_out(name: str, batch: list[list[list[float]]], scale: float) -> None:
    options = {"eps": 0.0} if "eps" in ADVANTAGE.settings(ADVANTAGE.make(name)) else {}
    estimator = ADVANTAGE.make({"name": name, **options})
    larger = flat(estimator, [[[x * scale for x in own] for own in rollouts] for rollouts in batch])
    factor = 1.0 if options else scale
    np.testing.assert_allclose(larger, np.array(flat(estimator, batch)) * factor, atol=1e-7)


@pytest.mark.parametrize("name", COMPARING)
@settings(max_examples=15)
@given(batch=batches, offsets=st.lists(eighths, min_size=3, max_size=3))
def test_what_every_rollout_of_a_task_earns_alike_changes_nothing(
    name: str, batch: list[list[list[float]]], offsets: list[float]
) -> None:
    estimator = ADVANTAGE.make(name)
    moved = [[[x + by for x in own] for own in rollouts] for rollouts, by in zip(batch, offsets, strict=False)]
    np.testing.assert_allclose(flat(estimator, moved), flat(estimator, batch), atol=1e-6)


@pytest.mark.parametrize("name", CENTRED_OVER_ROLLOUTS)
@settings(max_examples=15)
@given(rewards=st.lists(eighths, min_size=2, max_size=6), calls=st.lists(st.integers(1, 5), min_size=6, max_size=6))
def test_each_rollout_counts_once_under_uniform_credit(name: str, rewards: list[float], calls: list[int]) -> None:
    estimator = ADVANTAGE.make(name)
    [long] = estimator.estimate([group(*([r] * n for r, n in zip(rewards, calls, strict=False)))])
    [short] = estimator.estimate([group(*([r] for r in rewards))])
    assert long.dropped == short.dropped
    firsts = [float(own[0]) for own in long.advantages]
    assert firsts == pytest.approx([float(own[0]) for own in short.advantages], abs=1e-9)
    assert sum(firsts) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("name", COMPARING)
def test_groups_that_cannot_be_compared_are_dropped_and_places_are_kept(name: str) -> None:
    results = ADVANTAGE.make(name).estimate(
        [group(), group([1.0, 1.0]), group([1.0], []), group([2.0], [2.0, 2.0]), group([], [1.0], [0.0, 0.0])]
    )
    reasons = ["fewer than two rewards", "fewer than two rewards", "no credited call", "no spread", None]
    assert [result.dropped for result in results] == reasons
    assert [len(own) for own in results[-1].advantages] == [0, 1, 2]


def test_a_batch_needs_no_group_for_reinforce_plus_plus_but_it_needs_spread() -> None:
    estimator = ADVANTAGE.make({"name": "reinforce_plus_plus", "eps": 0.0})
    alone = [group([1.0]), group([0.0, 0.0]), group(), group([])]
    root = 2**-0.5
    assert advantages(estimator, *alone)[:2] == [[pytest.approx([root])], [pytest.approx([-root] * 2)]]
    dropped = [result.dropped for result in estimator.estimate(alone)]
    assert dropped == [None, None, "fewer than two rewards", "no credited call"]
    assert [result.dropped for result in estimator.estimate([group([1.0]), group([1.0, 1.0])])] == ["no spread"] * 2
    assert [result.dropped for result in estimator.estimate([group([1.0, 0.0])])] == ["no spread"]


def test_a_group_without_spread_counts_in_the_batchs_deviation() -> None:
    # Centred: 1/2, -1/2 and two zeros; the variance over four rollouts is (1/4 + 1/4) / 3 = 1/6.
    estimator = ADVANTAGE.make({"name": "reinforce_plus_plus_baseline", "eps": 0.0})
    results = estimator.estimate([group([1.0], [0.0]), group([7.0], [7.0])])
    assert results[1].dropped == "no spread"
    np.testing.assert_allclose(np.concatenate(results[0].advantages), [1.5**0.5, -(1.5**0.5)])


def test_rloo_and_turn_level_on_a_worked_case() -> None:
    # Turn 1: 4, 1, 1. Turn 2: only the first two came so far; to rloo the third counts with its last return, 1.
    rollouts = group([4.0, 3.0, 9.0], [1.0, 5.0], [1.0])
    assert advantages(ADVANTAGE.make("rloo"), rollouts) == [[[3.0, 0.0, 6.0], [-1.5, 3.0], [-1.5]]]
    # Nobody else came to turn 3, so that turn is compared as by rloo.
    assert advantages(ADVANTAGE.make("turn_level"), rollouts) == [[[3.0, -2.0, 6.0], [-1.5, 2.0], [-1.5]]]


def test_dr_grpo_is_rloo_but_for_a_factor() -> None:
    rollouts = group([4.0, 3.0, 9.0], [1.0, 5.0], [1.0])
    [dr], [rloo] = advantages(ADVANTAGE.make("dr_grpo"), rollouts), advantages(ADVANTAGE.make("rloo"), rollouts)
    for own, other in zip(dr, rloo, strict=True):
        assert own == pytest.approx([2 / 3 * x for x in other])


def test_over_transitions_a_rollout_counts_as_often_as_it_called() -> None:
    # Rewards 1 once and 0 three times: mean 1/4, deviation over four transitions 1/2.
    estimator = ADVANTAGE.make({"name": "grpo_transitions", "eps": 0.0})
    assert advantages(estimator, group([1.0], [0.0, 0.0, 0.0])) == [[[1.5], [-0.5, -0.5, -0.5]]]


def test_whitening_by_hand() -> None:
    # By transitions 3, 1, 1, 1: mean 1.5, variance 1. By rollouts 3 and 1: mean 2, variance 2.
    batch = [np.array([3.0]), np.array([1.0, 1.0, 1.0])]
    by_transition, by_rollout = whiten(batch, "transition", 0.0), whiten(batch, "rollout", 0.0)
    assert by_transition is not None and by_rollout is not None
    np.testing.assert_allclose(np.concatenate(by_transition), [1.5, -0.5, -0.5, -0.5])
    np.testing.assert_allclose(np.concatenate(by_rollout), np.array([1.0, -1.0, -1.0, -1.0]) / 2**0.5)
    assert whiten([], "rollout", 0.0) is None


def test_gae_by_hand() -> None:
    # Deltas 1 + 0.5·2 - 1 = 1 and 3 - 2 = 1; the first step sees half of half of the second's.
    assert gae(np.array([1.0, 3.0]), np.array([1.0, 2.0]), 0.5, 0.5).tolist() == [1.25, 1.0]


@settings(max_examples=30)
@given(st.lists(st.tuples(eighths, eighths), min_size=1, max_size=6), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_gae_is_its_sum_of_deltas(steps: list[tuple[float, float]], gamma: float, lam: float) -> None:
    rewards, values = [r for r, _ in steps], [v for _, v in steps]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, [*values[1:], 0.0], strict=True)]
    expected = [sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(steps))]
    np.testing.assert_allclose(gae(np.array(rewards), np.array(values), gamma, lam), expected, atol=1e-12)


def test_gae_with_lam_one_is_the_return_less_the_value() -> None:
    rollouts = group([4.0, 3.0], [1.0], [], values=[[1.0, 1.0], [2.0], []])
    assert advantages(GAE(lam=1.0, whiten=False), rollouts) == [[[3.0, 2.0], [-1.0], []]]
    # With lam 0 the first call is judged by its own reward, 4 - 3, and what the critic says of the next.
    assert advantages(GAE(lam=0.0, whiten=False), rollouts) == [[[1.0, 2.0], [-1.0], []]]
    white = advantages(GAE(lam=1.0, eps=0.0), rollouts)[0]
    assert [len(own) for own in white] == [2, 1, 0]
    assert np.mean(white[0]) + white[1][0] == pytest.approx(0.0)


def test_gae_drops_what_the_critic_foresaw_and_cannot_do_without_one() -> None:
    foreseen = group([1.0, 1.0], [2.0], values=[[1.0, 1.0], [2.0]])
    assert [result.dropped for result in GAE(whiten=False).estimate([foreseen, group(), group([])])] == [
        "no spread",
        "fewer than two rewards",
        "no credited call",
    ]
    assert GAE.needs_values
    with pytest.raises(TrainingError, match="needs the values of a critic"):
        GAE().estimate([[CreditedRollout(returns_N=np.ones(1))]])
    with pytest.raises(UsageError, match="lam must be between 0 and 1"):
        GAE(lam=1.5)
    with pytest.raises(TrainingError, match="do not match"):
        CreditedRollout(returns_N=np.ones(2), values_N=np.ones(3))

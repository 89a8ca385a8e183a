"""Against formulas published elsewhere, written out as brute force, and numbers those implementations gave.

verl: `compute_*_advantage` and `masked_whiten` of version 0.9.1 (Apache-2.0), in `verl/trainer/ppo/core_algos.py`; its
numbers are for responses of one token. It adds 1e-8 to the counts it divides by, hence the tolerance. TRL: version
1.16.0 (Apache-2.0), `trainer/grpo_trainer.py` and `trainer/rloo_trainer.py`, where a row is a rollout.
"""

import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.advantage.base import CreditedRollout
from leyden.core.advantage.gae import gae
from leyden.core.advantage.registry import ADVANTAGE

REWARDS = [[1.0, 0.0, 0.5, 1.0], [0.0, 0.25, 0.0, 1.0]]
"""Two tasks with four rollouts each."""
CALLS = [[1, 3, 2, 1], [2, 1, 4, 3]]
ROWS = [
    (task, reward)
    for task, rewards in enumerate(REWARDS)
    for reward, calls in zip(rewards, CALLS[task], strict=True)
    for _ in range(calls)
]
"""One row per call: task and reward."""


def per_rollout(settings: Any) -> list[float]:
    """The advantage of each rollout, the same at all of its calls."""
    found = [own.tolist() for result in estimate(settings) for own in result]
    assert all(own == pytest.approx([own[0]] * len(own)) for own in found)
    return [own[0] for own in found]


def per_call(settings: Any) -> list[float]:
    return [number for result in estimate(settings) for own in result for number in own.tolist()]


def estimate(settings: Any) -> list[tuple[Any, ...]]:
    groups = [
        [CreditedRollout(returns_N=np.full(n, r, dtype=np.float64)) for r, n in zip(rewards, calls, strict=True)]
        for rewards, calls in zip(REWARDS, CALLS, strict=True)
    ]
    return [result.advantages for result in ADVANTAGE.make(settings).estimate(groups)]


def masked_whiten(rows: list[float]) -> list[float]:
    """verl: mean and Bessel-corrected variance over all tokens, 1e-8 under the root."""
    mean, variance = statistics.fmean(rows), statistics.variance(rows)
    return [(row - mean) / math.sqrt(variance + 1e-8) for row in rows]


def test_grpo_is_verls_and_trls_with_one_row_per_rollout() -> None:
    verl: list[float] = []
    trl: list[float] = []
    for rewards in REWARDS:
        mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
        verl += [(r - mean) / (deviation + 1e-6) for r in rewards]
        trl += [(r - mean) / (deviation + 1e-4) for r in rewards]
    assert per_rollout("grpo") == pytest.approx(verl, abs=1e-12)
    assert per_rollout({"name": "grpo", "eps": 1e-4}) == pytest.approx(trl, abs=1e-12)
    given_by_verl = [0.78334781544, -1.305579692401, -0.26111593848, 0.78334781544, -0.660336784398, -0.13206735688]
    assert per_rollout("grpo")[:6] == pytest.approx(given_by_verl, abs=1e-8)


def test_dr_grpo_is_verls_without_its_deviation_and_trls_without_scaling() -> None:
    expected = [r - statistics.fmean(rewards) for rewards in REWARDS for r in rewards]
    assert per_rollout("dr_grpo") == pytest.approx(expected, abs=1e-12)
    assert expected == [0.375, -0.625, -0.125, 0.375, -0.3125, -0.0625, -0.3125, 0.6875]  # verl's own numbers


def test_rloo_is_verls_and_trls() -> None:
    verl = [r * 4 / 3 - statistics.fmean(rewards) * 4 / 3 for rewards in REWARDS for r in rewards]
    trl = [r - (sum(rewards) - r) / (4 - 1) for rewards in REWARDS for r in rewards]
    assert per_rollout("rloo") == pytest.approx(verl, abs=1e-12)
    assert per_rollout("rloo") == pytest.approx(trl, abs=1e-12)
    assert per_rollout("rloo")[:3] == pytest.approx([0.5, -0.833333333333, -0.166666666667], abs=1e-8)


def test_grpo_over_transitions_is_verls_with_one_row_per_call() -> None:
    expected: list[float] = []
    for task in (0, 1):
        rows = [r for own, r in ROWS if own == task]
        expected += [(r - statistics.fmean(rows)) / (statistics.stdev(rows) + 1e-6) for r in rows]
    assert per_call("grpo_transitions") == pytest.approx(expected, abs=1e-12)
    given_by_verl = [1.270211874137, *[-0.952658905603] * 3, *[0.158776484267] * 2, 1.270211874137]
    assert per_call("grpo_transitions")[:7] == pytest.approx(given_by_verl, abs=1e-8)


def test_reinforce_plus_plus_is_verls_with_one_row_per_call_and_with_one_per_rollout() -> None:
    by_call = {"name": "reinforce_plus_plus", "counting": "transition"}
    assert per_call(by_call) == pytest.approx(masked_whiten([r for _, r in ROWS]), abs=1e-12)
    assert per_call(by_call)[:2] == pytest.approx([1.399901545382, -0.813896246558], abs=1e-8)
    rewards = [r for own in REWARDS for r in own]
    assert per_rollout("reinforce_plus_plus") == pytest.approx(masked_whiten(rewards), abs=1e-12)
    assert per_rollout("reinforce_plus_plus")[:2] == pytest.approx([1.127265980323, -0.994646450886], abs=1e-8)


def test_reinforce_plus_plus_with_a_baseline_is_verls_with_one_row_per_rollout() -> None:
    centred = [r - statistics.fmean(rewards) for rewards in REWARDS for r in rewards]
    assert per_rollout("reinforce_plus_plus_baseline") == pytest.approx(masked_whiten(centred), abs=1e-12)
    given_by_verl = [0.850962922019, -1.418271536698, -0.28365430734, 0.850962922019, -0.709135768349]
    assert per_rollout("reinforce_plus_plus_baseline")[:5] == pytest.approx(given_by_verl, abs=1e-8)


def test_gae_is_verls() -> None:
    # gamma 0.9, lam 0.8; numbers are the `returns` verl gave, which are advantages + values before whitening.
    rewards = [[0.1, 0.0, 1.0], [0.3, -0.2], [0.5]]
    values = [[0.2, 0.4, 0.9], [0.1, 0.3], [0.6]]
    returns = [[0.80704, 0.882, 1.0], [0.21, -0.2], [0.5]]
    given_by_verl = [1.225201471835, 0.912889990499, -0.041228578518, -0.016251652628, -1.539844131949, -0.540767096329]
    found = [gae(np.array(r), np.array(v), 0.9, 0.8) for r, v in zip(rewards, values, strict=True)]
    for own, value, expected in zip(found, values, returns, strict=True):
        np.testing.assert_allclose(own + value, expected, atol=1e-12)
    np.testing.assert_allclose(masked_whiten(np.concatenate(found).tolist()), given_by_verl, atol=1e-8)

    # The estimator is given returns, from which it finds the rewards again.
    credited: list[CreditedRollout] = []
    for r, v in zip(rewards, values, strict=True):
        to_go = [sum(0.9**k * x for k, x in enumerate(r[n:])) for n in range(len(r))]
        credited.append(CreditedRollout(returns_N=np.array(to_go), values_N=np.array(v)))
    [result] = ADVANTAGE.make({"name": "gae", "gamma": 0.9, "lam": 0.8, "counting": "transition"}).estimate([credited])
    np.testing.assert_allclose(np.concatenate(result.advantages), given_by_verl, atol=1e-8)


@given(st.lists(st.lists(st.integers(-16, 16), min_size=1, max_size=5), min_size=2, max_size=5))
def test_turn_level_is_its_definition_call_by_call(eighths: list[list[int]]) -> None:
    returns = [[number / 8 for number in own] for own in eighths]
    expected: list[list[float]] = []
    for number, own in enumerate(returns):
        others = [other for at, other in enumerate(returns) if at != number]
        as_far = [[other[turn] for other in others if len(other) > turn] for turn in range(len(own))]
        ended = [[other[min(turn, len(other) - 1)] for other in others] for turn in range(len(own))]
        expected.append([g - statistics.fmean(as_far[turn] or ended[turn]) for turn, g in enumerate(own)])
    [result] = ADVANTAGE.make("turn_level").estimate([[CreditedRollout(returns_N=np.array(own)) for own in returns]])
    if result.dropped:
        assert all(number == pytest.approx(0.0, abs=1e-12) for own in expected for number in own)
    else:
        assert [own.tolist() for own in result.advantages] == [pytest.approx(own, abs=1e-12) for own in expected]


REFERENCES = {
    "dr_grpo": test_dr_grpo_is_verls_without_its_deviation_and_trls_without_scaling,
    "gae": test_gae_is_verls,
    "grpo": test_grpo_is_verls_and_trls_with_one_row_per_rollout,
    "grpo_transitions": test_grpo_over_transitions_is_verls_with_one_row_per_call,
    "reinforce_plus_plus": test_reinforce_plus_plus_is_verls_with_one_row_per_call_and_with_one_per_rollout,
    "reinforce_plus_plus_baseline": test_reinforce_plus_plus_with_a_baseline_is_verls_with_one_row_per_rollout,
    "rloo": test_rloo_is_verls_and_trls,
    "turn_level": test_turn_level_is_its_definition_call_by_call,
}
"""What each estimator is held against."""


def test_every_estimator_has_a_reference() -> None:
    assert REFERENCES.keys() == ADVANTAGE.built_in.keys()

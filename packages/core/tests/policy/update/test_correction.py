import math

import numpy as np
import pytest

from leyden.core.errors import UsageError
from leyden.core.policy.update.correction import CORRECTIONS, Correction, Masked, Recomputed, Truncated
from leyden.core.policy.update.entries import Floats

RESPONSES = (3, 5, 2, 4)
VERL: dict[tuple[str, str], list[list[float]]] = {
    ("truncated", "token"): [
        [0.5488116360940265, 1.2, 1.2],
        [0.8434983684348614, 0.6361369856412088, 1.2, 0.9973481037130529, 0.5801503012826856],
        [1.2, 0.6027140691431799],
        [1.2, 1.1795087082397948, 0.5525436904871036, 1.2],
    ],
    ("masked", "token"): [
        [0.0, 1.283624994085009, 0.0],
        [0.8434983684348614, 0.0, 0.0, 0.9973481037130529, 0.0],
        [0.0, 0.0],
        [0.0, 1.1795087082397948, 0.0, 0.0],
    ],
    ("truncated", "transition"): [
        [1.0427633685072577] * 3,
        [0.5363416070048359] * 5,
        [0.9971346551654627] * 2,
        [1.2] * 4,
    ],
    ("masked", "transition"): [[1.0427633685072577] * 3, [0.0] * 5, [0.9971346551654627] * 2, [0.0] * 4],
}
"""VERL 0.9.1, `rollout_corr_helper.compute_rollout_correction_weights`: levels token and sequence, thresholds 1.2 and
"0.7_1.3"."""


def log_ratios() -> list[Floats]:
    return [np.array([-0.6 * math.cos(5 * i + 2 * t) for t in range(length)]) for i, length in enumerate(RESPONSES)]


@pytest.mark.parametrize(("name", "level"), VERL)
def test_factors_equal_verls(name: str, level: str) -> None:
    bounds = {"truncated": {"high": 1.2}, "masked": {"low": 0.7, "high": 1.3}}[name]
    correction = CORRECTIONS.make({"name": name, "level": level, **bounds})
    for log_ratio_T, expected in zip(log_ratios(), VERL[name, level], strict=True):
        assert correction.factors(log_ratio_T).tolist() == pytest.approx(expected, rel=1e-12)


def test_unbounded_weights_are_unbiased_and_bounds_lean_towards_the_behaviour() -> None:
    behaviour, start = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.2, 0.7])
    value = np.array([1.0, 2.0, 3.0])
    log_ratio = np.log(start / behaviour)

    def expectation(correction: Correction) -> float:
        return float((behaviour * correction.factors(log_ratio) * value).sum())

    assert expectation(Truncated(high=100.0)) == pytest.approx(float((start * value).sum()))
    assert expectation(Truncated(high=2.0)) == pytest.approx(0.1 + 0.4 + 0.1 * 2 * 3)
    assert expectation(Masked(low=0.5, high=2.0)) == pytest.approx(0.4)
    assert expectation(Recomputed()) == pytest.approx(float((behaviour * value).sum()))


@pytest.mark.parametrize("level", ["token", "transition"])
def test_extreme_ratios_leave_factors_finite(level: str) -> None:
    correction = CORRECTIONS.make({"name": "truncated", "level": level, "high": 1e300})
    assert np.isfinite(correction.factors(np.array([800.0, -1e4, 1e4]))).all()


@pytest.mark.parametrize(
    "values",
    [{"name": "truncated", "high": 0.5}, {"name": "masked", "low": 1.5}, {"name": "masked", "high": 0.9}],
)
def test_bounds_that_cannot_work_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="high"):
        CORRECTIONS.make(values)

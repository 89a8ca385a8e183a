import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.policy.update.ratios import RatioSpread

logs = st.lists(st.floats(-25, 25), min_size=2, max_size=40)


def spread(log_ratios: list[float]) -> RatioSpread:
    return RatioSpread.of(np.array(log_ratios))


@given(logs, st.integers(1, 39))
def test_parts_combine_to_the_whole(log_ratios: list[float], cut: int) -> None:
    parts = [part for part in (log_ratios[:cut], log_ratios[cut:]) if part]
    whole, joined = spread(log_ratios), RatioSpread.combined([spread(part) for part in parts])

    assert (joined.count, joined.bins) == (whole.count, whole.bins)
    assert (joined.smallest, joined.largest, joined.deviation) == (whole.smallest, whole.largest, whole.deviation)
    assert all(joined.quantile(q / 10) == whole.quantile(q / 10) for q in range(11))
    for name in ("mean", "kl", "effective_share"):
        assert getattr(joined, name) == pytest.approx(getattr(whole, name), rel=1e-12)


@given(logs, st.floats(0, 1))
def test_quantiles_are_within_half_a_percent_of_the_exact_ones(log_ratios: list[float], share: float) -> None:
    held = np.clip(np.sort(log_ratios), -20, 20)
    exact = math.exp(held[max(1, math.ceil(share * len(held))) - 1])
    assert spread(log_ratios).quantile(share) == pytest.approx(exact, rel=0.0051)


def test_on_policy_everything_is_one() -> None:
    seen = spread([0.0] * 5)
    assert (seen.mean, seen.largest, seen.deviation, seen.kl, seen.effective_share) == (1.0, 1.0, 0.0, 0.0, 1.0)
    assert {seen.quantile(q) for q in (0.0, 0.5, 1.0)} == {1.0}


def test_a_hand_worked_case() -> None:
    ratios = [1.0, 1.5, 0.5, 1.5]
    seen = spread([math.log(ratio) for ratio in ratios])
    assert seen.mean == pytest.approx(1.125)
    assert (seen.smallest, seen.largest, seen.deviation) == pytest.approx((0.5, 1.5, 0.5))
    assert seen.kl == pytest.approx(sum(ratio - 1 - math.log(ratio) for ratio in ratios) / 4)
    assert seen.effective_share == pytest.approx(4.5**2 / (4 * (1 + 2 * 2.25 + 0.25)))
    assert set(seen.metrics("ratio")) == {
        f"ratio_{end}" for end in ("mean", "max", "p01", "p50", "p99", "effective_share")
    }


def test_what_is_no_number_counts_as_far_too_large() -> None:
    seen = spread([0.0, math.nan, math.inf, -math.inf])
    assert seen.largest == pytest.approx(math.exp(20))
    assert math.isfinite(seen.kl)
    with pytest.raises(ValueError, match="between 0 and 1"):
        seen.quantile(1.5)

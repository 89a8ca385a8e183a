import math

import pytest

from leyden.core.policy.update.schedule import Schedule, learning_rate_share


def shares(schedule: Schedule, warmup: int = 0, steps: int = 8, decay_to: float = 0.0) -> list[float]:
    return [learning_rate_share(step, schedule, warmup, steps, decay_to) for step in range(steps + 2)]


def test_constant_stays_at_the_peak_once_warm() -> None:
    assert shares("constant") == [1.0] * 10
    assert shares("constant", warmup=4)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_linear_falls_along_a_line_to_its_end_and_stays() -> None:
    assert shares("linear", steps=4) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert shares("linear", warmup=2, steps=4, decay_to=0.5) == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.5])


def test_cosine_falls_along_half_a_wave() -> None:
    assert shares("cosine", steps=4) == pytest.approx([(1 + math.cos(math.pi * s / 4)) / 2 for s in range(5)] + [0.0])
    assert shares("cosine", decay_to=0.1)[-1] == pytest.approx(0.1)


def test_every_step_of_a_run_learns() -> None:
    for schedule in ("constant", "linear", "cosine"):
        assert min(shares(schedule, warmup=3)[:8]) > 0


def test_a_warmup_as_long_as_the_run_is_all_there_is() -> None:
    assert shares("linear", warmup=8)[:8] == pytest.approx([(s + 1) / 8 for s in range(8)])


def test_a_falling_schedule_needs_an_end() -> None:
    with pytest.raises(ValueError, match="linear schedule needs"):
        learning_rate_share(0, "linear", 0, None, 0.0)

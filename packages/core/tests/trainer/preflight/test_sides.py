"""The check of a run with sides: all of them are rehearsed, and only those that act are to answer calls."""

from pathlib import Path
from typing import Any

import pytest

from leyden.core.algorithm.registry import make_algorithm
from leyden.core.policy.size import PolicySize
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.preflight.memory import memory_need

RATE = {"learning_rate": 1e-3}
GRPO: dict[str, Any] = {"name": "grpo", "algorithm": "lightning_rl"}
BEST: dict[str, Any] = {"name": "best", "algorithm": "sft", "config": {"keep": "best"}}


@pytest.mark.parametrize("acting", [("grpo",), ("grpo", "best")])
def test_every_side_is_proven_whoever_acts(check_run: Any, acting: tuple[str, ...]) -> None:
    config = {"sides": [GRPO, BEST], "acts": "turns" if len(acting) > 1 else "grpo", **RATE}
    report = check_run(algorithm="side_by_side", algorithm_config=config, sides=("grpo", "best"), acting=acting)
    assert report.proven, report.complaint()
    seen = report.result("gradient").seen
    changed, all_of_them = (int(number) for number in seen.split(" weight")[0].split(" of "))
    assert changed == all_of_them, seen


def test_a_side_that_the_first_batch_teaches_nothing_is_named(check_run: Any) -> None:
    out_of_reach = {**BEST, "config": {"above": 2.0}}
    config = {"sides": [GRPO, out_of_reach], **RATE}
    report = check_run(algorithm="side_by_side", algorithm_config=config, sides=("grpo", "best"), acting=("grpo",))
    found = report.result("gradient")
    assert found.status == "warning"
    assert "best did not change" in found.seen


def test_each_side_needs_the_memory_of_its_own_options(policy: Path) -> None:
    config, size = RunConfig(name="r", agent="a", policy="p"), PolicySize.of(policy)
    referred = {**GRPO, "config": {"kl_loss": 0.1}}
    algorithm = make_algorithm("side_by_side", {"sides": [referred, BEST]})
    options = [algorithm.options_of(name) for name in algorithm.sides]
    both, first, second = (
        memory_need(config, own, [size] * len(own), []) for own in (options, options[:1], options[1:])
    )
    assert both.least == first.least + second.least
    assert first.least - second.least == size.weights, "the reference policy of one alone"

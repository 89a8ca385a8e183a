from typing import Any

import pytest

from leyden.core.algorithm.account import Account
from leyden.core.testing.factories import trajectory, transition
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.rescore.advantages import AdvantageComparison, compare_advantages
from leyden.core.trainer.rescore.result import RescoredRollout
from leyden.core.trainer.rescore.stored_rollouts import StoredRollout
from leyden.core.trainer.run_folder.folder import LearnedLine


def compared(
    rewards: dict[str, list[tuple[float, float]]], learned: list[LearnedLine] | None = None, **config: Any
) -> tuple[AdvantageComparison, dict[str, StoredRollout]]:
    """Compare rollouts of one call each, with rewards before and after by group."""
    stored: dict[str, StoredRollout] = {}
    groups: dict[str, list[RescoredRollout]] = {}
    for group, pairs in rewards.items():
        for number, (before, after) in enumerate(pairs):
            name = f"{group}-{number}"
            calls = [transition(rollout_id=name, span_id=name)]
            stored[name] = StoredRollout(
                rollout_id=name,
                mode="train",
                group=group,
                task=None,
                result="null",
                trajectory=trajectory(before, calls, rollout_id=name),
            )
            groups.setdefault(group, []).append(
                RescoredRollout(rollout_id=name, mode="train", group=group, before=before, after=after)
            )
    found = RunConfig(name="r", policy="p", **config)
    return compare_advantages(found, learned or [], groups, stored), stored


def test_advantages_are_those_of_the_runs_own_estimator() -> None:
    config: dict[str, Any] = {"algorithm_config": {"advantage": "dr_grpo"}}
    found, stored = compared({"g": [(0, 1), (1, 0)], "h": [(0, 0), (0, 1)]}, **config)
    assert found.of_rollout(stored["g-0"]) == (-0.5, 0.5)
    assert found.of_rollout(stored["h-1"]) == (0.0, 0.5)
    changes = found.changes
    assert (changes.estimator, changes.credit, changes.unavailable) == ("dr_grpo", "uniform", "")
    assert (changes.calls, changes.change_sign, changes.become_nonzero, changes.become_zero) == (4, 2, 2, 0)
    assert (changes.mean_absolute_before, changes.mean_absolute_after) == (0.25, 0.5)
    assert found.dropped == {"h": ("no spread", "")}


def test_a_batch_is_that_of_the_step_that_learned_from_it() -> None:
    rewards = {"g": [(0.0, 0.0), (1.0, 1.0)], "h": [(0.0, 0.0), (3.0, 3.0)]}
    config: dict[str, Any] = {"algorithm_config": {"advantage": "reinforce_plus_plus"}}
    together = LearnedLine(step=1, account=Account(trained=["g-0", "g-1", "h-0", "h-1"]))
    one_batch, stored = compared(rewards, [together], **config)
    apart, _ = compared(rewards, **config)
    before, after = one_batch.of_rollout(stored["g-1"])
    assert before == after
    assert before != pytest.approx(apart.of_rollout(stored["g-1"])[0])


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"algorithm": "sft"}, "is not lightning_rl"),
        ({"algorithm_config": {"advantage": "gae", "critic": "own"}}, "needs the values of a critic"),
        ({"algorithm_config": {"credit": "dimensions"}}, ""),
        ({"predicate": "file.py:selects"}, "with a predicate"),
    ],
)
def test_why_there_are_no_advantages(config: dict[str, Any], why: str) -> None:
    found, stored = compared({"g": [(0, 1), (1, 0)]}, **config)
    assert found.changes.unavailable
    assert why in found.changes.unavailable
    assert found.of_rollout(stored["g-0"]) == (None, None)

"""Preflight checks of rewards: rollouts have rewards, and the rewards differ within a task."""

from leyden.core.trainer.preflight.evidence import EqualRewardChance, Evidence
from leyden.core.trainer.preflight.report import CheckResult, failure, ok, unchecked, warning

CERTAIN = 0.01
"""Probability of a false alarm above which equal rewards give only a warning."""


def check_rewards(evidence: Evidence) -> CheckResult:
    """Check that rollouts that succeeded have a reward."""
    ended = [t for t in evidence.trajectories if t.succeeded]
    missing = sum(t.reward is None for t in ended)
    if not ended:
        return unchecked("rewards", "no rollout succeeded, see rollouts")
    if missing == len(ended):
        given = evidence.config.reward
        how = (
            f"have {given} return a number"
            if given
            else "give --reward file.py:score, or have the agent return its reward or call emit_reward"
        )
        return failure("rewards", f"none of {len(ended)} rollouts has a reward", how)
    if missing:
        seen = f"{missing} of {len(ended)} rollouts have no reward, and are not trained on"
        return warning("rewards", seen, "return a number, which may be 0, for every rollout that should count")
    values = [t.reward for t in ended if t.reward is not None]
    seen = f"{len(ended)} rewards, from {min(values):g} to {max(values):g}, mean {sum(values) / len(values):.3f}"
    return ok("rewards", seen)


def check_spread(evidence: Evidence) -> CheckResult:
    """Check that rollouts of one task earn different rewards: equal rewards teach nothing.

    Equal rewards may be chance. If one rollout in twenty earns another reward than the rest, n rollouts all earn the
    same with probability 0.95^n: 37 % for 20, 0.7 % for 96. Below 1 % the result is a failure, else a warning. It is
    also a warning if the algorithm nevertheless learned, for example from rewards of other tasks, or if it trains
    prompts, too.
    """
    rewards = [[t.reward for t in group.trajectories if t.reward is not None] for group in evidence.groups]
    judged = [group for group in rewards if len(group) > 1]
    if not judged:
        because = "no task has two rewarded rollouts, see rollouts and rewards"
        return unchecked("spread", because)
    varying = sum(len(set(group)) > 1 for group in judged)
    if varying:
        return ok("spread", f"rewards differ within {varying} of {len(judged)} tasks")
    seen = _sameness(judged)
    if evidence.rehearsal.metrics is not None:
        return warning("spread", f"{seen}, though the algorithm takes a step from them", _WHERE)
    chance = EqualRewardChance(sum(map(len, judged)))
    seen += f" (probability by chance: {100 * chance.probability:.2g} %, if 1 rollout in 20 earned another reward)"
    if evidence.trains_prompts:
        return warning("spread", seen, f"updates learn nothing until new prompts change this; {_WHERE}")
    verdict = failure if chance.probability <= CERTAIN else warning
    return verdict("spread", seen, _WHERE)


def check_spread_of_tasks(evidence: Evidence) -> CheckResult:
    """Check that not all rollouts earn the same reward. Prompts are compared by their rewards on the same tasks."""
    rewards = [t.reward for t in evidence.trajectories if t.reward is not None]
    if not rewards:
        return unchecked("spread", "no rollout has a reward, see rewards")
    if len(rewards) == 1 or len(set(rewards)) > 1:
        return ok("spread", f"{len(set(rewards))} different rewards in {len(rewards)} rollouts")
    change = (
        "read some rollouts with `leyden dev`: the tasks may be far too hard or too easy for the agent, or the reward "
        "may ignore its result"
    )
    return warning("spread", f"all {len(rewards)} rollouts earned {rewards[0]:g}", change)


_WHERE = (
    "read some rollouts with `leyden dev`: the tasks may be far too hard or too easy for this policy, or the reward "
    "may ignore the agent's result"
)


def _sameness(groups: list[list[float]]) -> str:
    count = sum(map(len, groups))
    values = {reward for group in groups for reward in group}
    if len(values) == 1:
        return f"all {count} rollouts of {len(groups)} tasks earned {values.pop():g}"
    return f"rewards differ between tasks, but never within one of {len(groups)} ({count} rollouts)"

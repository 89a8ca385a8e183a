"""LightningRL (arXiv 2508.03680, section 3): credit over an attempt's calls first, then any single-turn update on each.

Each step learns from rollouts of the policy it starts with, unless collecting runs ahead: see `algorithm.loops`.
"""

import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.base import Algorithm, Context
from leyden.core.algorithm.loops import Loop, Pace, staleness
from leyden.core.algorithm.valuing import check_critic, unvalued, value_targets, valued
from leyden.core.algorithm.weighing import WeighedBatch, absent_roles, weigh
from leyden.core.credit.registry import CREDIT
from leyden.core.data.scheme import SchemeSettings
from leyden.core.data.transition import TrajectoryGroup, Transition
from leyden.core.errors import TrainingError, UsageError
from leyden.core.policy.config import UpdateOptions, update_config
from leyden.core.policy.critic_options import CRITICS

if TYPE_CHECKING:
    from leyden.core.policy.update import Updater, UpdateReport
    from leyden.core.policy.value_update import ActorCriticReport

log = logging.getLogger(__name__)


class LightningRLConfig(UpdateOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is learned from a batch, on top of how the weights change. Defaults are the tested setting."""

    credit: SchemeSettings = "uniform"
    """What each call answers for: a credit scheme's name, or `{name: ..., option: value}`."""
    advantage: SchemeSettings = "grpo"
    """What that is compared with: an advantage estimator, given the same way."""
    critic: SchemeSettings | None = None
    """For what needs one (gae, learned_value): own, on a copy of the policy, or shared, on the policy itself."""
    max_empty_batches: int = 8
    """Batches in a row without anything to learn from before the run stops with an error."""
    loop: Loop = "sync"
    """How collecting and learning take turns: sync, one_off (the next batch meanwhile) or async (all the time)."""
    max_staleness: int | None = None
    """Of loop async: the most updates between the weights that drew a token and those that learn from it. [2]"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.make_loss().reads_advantages:
            raise UsageError(f"loss {self.loss!r} ignores advantages, so lightning_rl cannot learn with it")
        self.pace()

    def pace(self) -> Pace:
        """How far collecting may run ahead; raises UsageError for what cannot work."""
        accounts_for_age = self.make_loss().reads_ratios or self.correction is not None
        return Pace.of(self.loop, self.max_staleness, accounts_for_age=accounts_for_age)


class LightningRL(Algorithm):
    """Uniform credit, group-relative advantages, clipped policy gradient; each part by name from its registry."""

    name = "lightning_rl"
    Config = LightningRLConfig

    config: LightningRLConfig

    def __init__(self, config: LightningRLConfig | None = None) -> None:
        super().__init__(config or LightningRLConfig())
        self.credit = CREDIT.make(self.config.credit)
        self.advantage = ADVANTAGE.make(self.config.advantage)
        self.critic = None if self.config.critic is None else CRITICS.make(self.config.critic)
        check_critic(self.critic, self.credit, self.advantage, self.config)
        self._roles_seen = False

    def settings(self) -> dict[str, Any]:
        """The configuration as plain values, every option of its schemes included."""
        schemes = {
            "credit": CREDIT.settings(self.credit),
            "advantage": ADVANTAGE.settings(self.advantage),
            "critic": None if self.critic is None else CRITICS.settings(self.critic),
        }
        return super().settings() | schemes | self.config.scheme_settings()

    async def run(self, context: Context) -> None:
        """Collect, weigh, update, publish; until the planned steps are taken."""
        updater = self.make_updater(context)
        await context.restore(updater)
        if context.step == 0:
            await context.evaluate("before")
        async with context.collecting(self.config.pace()):
            await self._take_steps(context, updater)
        await context.evaluate("after")

    async def _take_steps(self, context: Context, updater: "Updater") -> None:
        empty, most_empty = 0, self.config.max_empty_batches
        while context.step < context.steps:
            groups = await context.collect()
            batch = await self.weighed(context, updater, groups)
            context.count_dropped(batch.dropped)
            if not batch.transitions:
                empty += 1
                _complain(empty, most_empty, batch.dropped)
                continue
            empty = 0
            ages = staleness([item.transition for item in batch.transitions], context.step)
            report = await context.compute("update", self.update, updater, batch)
            gap = await context.publish(updater.model)
            context.log(metrics(groups, report, gap) | ages | batch.counts())
            await context.checkpoint(updater)

    def make_updater(self, context: Context) -> "Updater":
        """The policy with its optimizer, and the critic with its own where there is one."""
        from leyden.core.policy.update import Updater
        from leyden.core.policy.value_update import ActorCritic

        if self.critic is None:
            return Updater(context.load_policy(), update_config(self.config, steps=context.steps, seed=context.seed))
        steps = context.steps - self.critic.warmup_steps
        if steps < 1:
            warmup = self.critic.warmup_steps
            raise UsageError(f"critic warmup_steps {warmup} leaves the policy none of the run's {context.steps} steps")
        config = update_config(self.config, steps=steps, seed=context.seed)
        return ActorCritic(context.load_policy(), config, self.critic)

    async def weighed(self, context: Context, updater: "Updater", groups: list[TrajectoryGroup]) -> WeighedBatch:
        """What the calls of `groups` are worth, by the values of their states where there is a critic."""
        from leyden.core.policy.value_update import ActorCritic

        if not isinstance(updater, ActorCritic):
            return self.weigh(groups)
        groups = await context.compute("value", valued, groups, updater.values, updater.readable)
        if left_out := unvalued(groups):
            log.warning("left out %d calls that the critic cannot read: empty, or longer than the context", left_out)
        return replace(self.weigh(groups), value_targets=value_targets(groups, self.credit), unvalued=left_out)

    def update(self, updater: "Updater", batch: WeighedBatch) -> "UpdateReport | ActorCriticReport":
        """One step of the policy, of the critic, or of both."""
        from leyden.core.policy.value_update import ActorCritic

        if isinstance(updater, ActorCritic):
            return updater.learn(batch.transitions, batch.value_targets)
        return updater.step(batch.transitions)

    def weigh(self, groups: list[TrajectoryGroup]) -> WeighedBatch:
        """Rewards of attempts -> returns of transitions -> an advantage for each transition."""
        if not self._roles_seen and (absent := absent_roles(self.credit, groups)):
            log.warning("credit names roles that nobody spoke in so far: %s", ", ".join(absent))
        self._roles_seen = True
        return weigh(groups, self.credit, self.advantage)


def metrics(groups: list[TrajectoryGroup], report: "UpdateReport | ActorCriticReport", gap: float) -> dict[str, Any]:
    """The numbers of one step: rewards and sizes of what was collected, and how the update went."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    rewards = np.array([t.reward for t in trajectories if t.reward is not None], dtype=np.float64)
    transitions: list[Transition] = [call for t in trajectories for call in t.transitions]
    return {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "groups": len(groups),
        "groups_with_spread": sum(len({t.reward for t in group.trajectories} - {None}) > 1 for group in groups),
        "rollouts": len(trajectories),
        "transitions": len(transitions),
        "response_tokens_mean": float(np.mean([len(call.response_ids) for call in transitions])),
        "served_trained_gap": gap,
        **report.metrics(),
    }


def _complain(empty: int, most_empty: int, dropped: Counter[str]) -> None:
    reasons = ", ".join(f"{count} × {reason}" for reason, count in dropped.items()) or "no rollout was rewarded"
    if empty >= most_empty:
        raise TrainingError(f"nothing to learn from in {empty} batches in a row; the last one's groups: {reasons}")
    log.warning("a batch had nothing to learn from (%s); going on with the next tasks", reasons)

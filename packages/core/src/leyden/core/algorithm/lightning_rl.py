"""LightningRL (arXiv 2508.03680, section 3): credit over an attempt's calls first, then any single-turn update on each.

Each step learns from rollouts of the policy it starts with, unless collecting runs ahead: see `algorithm.loops`.
"""

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.base import Algorithm, Context
from leyden.core.algorithm.loops import Loop, Pace, staleness
from leyden.core.algorithm.weighing import WeighedBatch, absent_roles, weigh
from leyden.core.credit.registry import CREDIT
from leyden.core.data.scheme import SchemeSettings
from leyden.core.data.transition import TrajectoryGroup, Transition
from leyden.core.errors import TrainingError, UsageError
from leyden.core.policy.config import UpdateOptions, update_config

if TYPE_CHECKING:
    from leyden.core.policy.update import Updater, UpdateReport

log = logging.getLogger(__name__)


class LightningRLConfig(UpdateOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is learned from a batch, on top of how the weights change. Defaults are the tested setting."""

    credit: SchemeSettings = "uniform"
    """What each call answers for: a credit scheme's name, or `{name: ..., option: value}`."""
    advantage: SchemeSettings = "grpo"
    """What that is compared with: an advantage estimator, given the same way."""
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
        if self.advantage.needs_values:
            raise UsageError(f"advantage estimator {self.config.advantage!r} needs a critic, and lightning_rl has none")
        self._roles_seen = False

    def settings(self) -> dict[str, Any]:
        """The configuration as plain values, every option of its schemes included."""
        schemes = {"credit": CREDIT.settings(self.credit), "advantage": ADVANTAGE.settings(self.advantage)}
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
        empty = 0
        while context.step < context.steps:
            groups = await context.collect()
            batch = self.weigh(groups)
            context.count_dropped(batch.dropped)
            if not batch.transitions:
                empty += 1
                self._complain(empty, batch.dropped)
                continue
            empty = 0
            ages = staleness([item.transition for item in batch.transitions], context.step)
            report = await context.compute("update", updater.step, batch.transitions)
            gap = await context.publish(updater.model)
            context.log(metrics(groups, report, gap) | ages | {"transitions_uncredited": batch.uncredited})
            await context.checkpoint(updater)

    def make_updater(self, context: Context) -> "Updater":
        """The policy with its optimizer."""
        from leyden.core.policy.update import Updater

        return Updater(context.load_policy(), update_config(self.config, steps=context.steps, seed=context.seed))

    def weigh(self, groups: list[TrajectoryGroup]) -> WeighedBatch:
        """Rewards of attempts -> returns of transitions -> an advantage for each transition."""
        if not self._roles_seen and (absent := absent_roles(self.credit, groups)):
            log.warning("credit names roles that nobody spoke in so far: %s", ", ".join(absent))
        self._roles_seen = True
        return weigh(groups, self.credit, self.advantage)

    def _complain(self, empty: int, dropped: Counter[str]) -> None:
        reasons = ", ".join(f"{count} × {reason}" for reason, count in dropped.items()) or "no rollout was rewarded"
        if empty >= self.config.max_empty_batches:
            raise TrainingError(f"nothing to learn from in {empty} batches in a row; the last one's groups: {reasons}")
        log.warning("a batch had nothing to learn from (%s); going on with the next tasks", reasons)


def metrics(groups: list[TrajectoryGroup], report: "UpdateReport", gap: float) -> dict[str, Any]:
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

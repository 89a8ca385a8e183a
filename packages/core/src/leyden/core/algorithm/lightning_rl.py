"""LightningRL (arXiv 2508.03680, section 3): assigns credit to an attempt's calls, then trains on each call.

Any single-turn update can be used for the calls. Each step learns from rollouts of the current policy, unless
collecting runs ahead: see `algorithm.staleness`.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.advantage_pipeline import WeightedBatch, absent_roles, weigh
from leyden.core.algorithm.base import Context
from leyden.core.algorithm.critic_targets import check_critic, unvalued, value_targets, valued
from leyden.core.algorithm.learner import Batch, Learner, LearnerOptions, collected_numbers
from leyden.core.algorithm.policy_partition import critic_by_policy, owner, split_by_policy
from leyden.core.algorithm.staleness import Loop, LoopKind, staleness
from leyden.core.credit.base import CreditAssigner
from leyden.core.credit.dimensions import DimensionsCredit
from leyden.core.credit.registry import CREDIT
from leyden.core.credit.uniform import UniformCredit
from leyden.core.data.reasons import BEYOND_CONTEXT
from leyden.core.data.scheme import SchemeSettings
from leyden.core.data.transition import TrajectoryGroup, Transition
from leyden.core.errors import UsageError
from leyden.core.policy.critic.options import CRITICS
from leyden.core.policy.update.concatenation import concatenated
from leyden.core.policy.update.config import update_config

if TYPE_CHECKING:
    from leyden.core.policy.critic.value_loss import ValueTarget
    from leyden.core.policy.critic.value_update import ActorCriticReport
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.entries import WeightedTransition
    from leyden.core.policy.update.updater import Updater, UpdateReport

log = logging.getLogger(__name__)


class LightningRLConfig(LearnerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is learned from a batch, in addition to how the weights change. The defaults are the tested setting."""

    credit: SchemeSettings = "uniform"
    """Credit scheme, which assigns a return to each call: its name, or `{name: ..., option: value}`."""
    advantage: SchemeSettings = "grpo"
    """Advantage estimator, which compares returns with a baseline: its name, or `{name: ..., option: value}`."""
    critic: SchemeSettings | None = None
    """Critic for gae or learned_value: own (on a copy of the policy) or shared (on the policy itself); None: none."""
    trajectory: Literal["transitions", "concatenated"] = "transitions"
    """What a rollout is trained as: its transitions, or one sequence of all calls with a mask, for comparison.

    A concatenated rollout has one advantage, and a call in it may be trained after other tokens than it was sampled
    after.
    """
    loop: Loop = "sync"
    """How collecting and updating alternate: sync, one_off (one batch ahead) or async (collects all the time)."""
    max_staleness: int | None = None
    """For loop async: the most updates between the weights that generate a token and those that learn from it.

    Default: 2.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.make_loss().reads_advantages:
            raise UsageError(f"loss {self.loss!r} ignores advantages, so lightning_rl cannot learn with it")
        self.pace()

    def pace(self) -> LoopKind:
        """Return how far collecting may run ahead; raises UsageError for a combination that cannot work."""
        accounts_for_age = self.make_loss().reads_ratios or self.correction is not None
        return LoopKind.of(self.loop, self.max_staleness, accounts_for_age=accounts_for_age)


@dataclass(frozen=True, slots=True)
class PolicyShare:
    """The part of a batch that one policy learns from."""

    transitions: "list[WeightedTransition]"
    value_targets: "list[ValueTarget]"
    """What the policy's critic learns; empty without a critic."""


class LightningRL(Learner[LightningRLConfig, PolicyShare]):
    """Uniform credit, group-relative advantages and a clipped policy gradient; each part can be replaced by name."""

    name = "lightning_rl"
    Config = LightningRLConfig

    def __init__(self, config: LightningRLConfig | None = None) -> None:
        super().__init__(config or LightningRLConfig())
        self.credit = CREDIT.make(self.config.credit)
        self.advantage = ADVANTAGE.make(self.config.advantage)
        self.critic = None if self.config.critic is None else CRITICS.make(self.config.critic)
        check_critic(self.critic, self.credit, self.advantage, self.config)
        if self.config.trajectory == "concatenated":
            _check_concatenated(self.credit, has_critic=self.critic is not None)
        self._roles_seen = False

    def settings(self) -> dict[str, Any]:
        """Return the configuration as plain values, including every option of its schemes."""
        schemes = {
            "credit": CREDIT.settings(self.credit),
            "advantage": ADVANTAGE.settings(self.advantage),
            "critic": None if self.critic is None else CRITICS.settings(self.critic),
        }
        return super().settings() | schemes | self.config.scheme_settings()

    def check_steps(self, steps: int) -> None:
        """Raise UsageError if the critic's warm-up leaves the policy no step."""
        if self.critic is not None and steps <= self.critic.warmup_steps:
            warmup = self.critic.warmup_steps
            raise UsageError(f"critic warmup_steps {warmup} leaves no step for the policy: the run has {steps}")

    def pace(self) -> LoopKind:
        """Return how far collecting may run ahead of the updates."""
        return self.config.pace()

    def make_updater(self, model: "PolicyModel", steps: int, seed: int) -> "Updater":
        """Return the policy with its optimizer, and with a critic and the critic's optimizer if one is configured."""
        from leyden.core.policy.critic.value_update import ActorCritic
        from leyden.core.policy.update.updater import Updater

        if self.critic is None:
            return Updater(model, update_config(self.config, steps=steps, seed=seed))
        self.check_steps(steps)
        config = update_config(self.config, steps=steps - self.critic.warmup_steps, seed=seed)
        return ActorCritic(model, config, self.critic)

    async def batch(
        self, context: Context, updaters: "Mapping[str, Updater]", groups: list[TrajectoryGroup]
    ) -> Batch[PolicyShare]:
        """Return each policy's own calls, with credit and advantages that were computed over whole attempts."""
        groups = await self._with_values(context, updaters, groups)
        weighted = self.weigh(groups)
        targets = [] if self.critic is None else value_targets(groups, self.credit)
        own_targets = split_by_policy(targets, updaters, lambda target: target.call)
        own_calls = split_by_policy(weighted.transitions, updaters, lambda item: item.transition)
        own_calls, cut, masks = self._shaped(own_calls, updaters)
        numbers: dict[str, Any] = {}
        if own_calls:
            ages = staleness([item.transition for item in weighted.transitions], context.step)
            left_out = {"transitions_uncredited": weighted.uncredited, "transitions_unvalued": unvalued(groups)}
            numbers = {**collected_numbers(groups, tuple(updaters)), "groups": len(groups), **ages, **left_out}
            numbers |= masks
        return Batch(
            parts={name: PolicyShare(calls, own_targets.get(name, [])) for name, calls in own_calls.items()},
            numbers=numbers,
            dropped=weighted.dropped,
            left_out=Counter({BEYOND_CONTEXT: len(cut)} if cut else {}),
            accounts=(weighted.account.without_calls(cut, BEYOND_CONTEXT, _rollouts(own_calls)),),
        )

    def _shaped(
        self, calls: "dict[str, list[WeightedTransition]]", updaters: "Mapping[str, Updater]"
    ) -> "tuple[dict[str, list[WeightedTransition]], list[Transition], dict[str, float]]":
        """Return each policy's calls as `trajectory` trains them, the calls that it cuts off, and its metrics."""
        if self.config.trajectory == "transitions":
            return calls, [], {}
        found = {name: concatenated(own, updaters[name].model.context_length) for name, own in calls.items()}
        cut = [call for one in found.values() for call in one.cut]
        if cut:
            log.warning("%d calls are not trained: each of them is %s", len(cut), BEYOND_CONTEXT)
        numbers: dict[str, float] = {}
        for name, one in found.items():
            prefix = f"{name}/" if len(updaters) > 1 else ""
            numbers |= {f"{prefix}{key}": value for key, value in one.metrics().items()}
        return {name: one.transitions for name, one in found.items() if one.transitions}, cut, numbers

    async def _with_values(
        self, context: Context, updaters: "Mapping[str, Updater]", groups: list[TrajectoryGroup]
    ) -> list[TrajectoryGroup]:
        """Return `groups` with the critic's value on each call; without a critic, they are returned unchanged."""
        from leyden.core.policy.critic.value_update import ActorCritic

        critics = {name: updater for name, updater in updaters.items() if isinstance(updater, ActorCritic)}
        if not critics:
            return groups

        def readable(call: Transition) -> bool:
            return critics[owner(call, critics)].readable(call)

        critic = critic_by_policy({name: updater.values for name, updater in critics.items()})
        groups = await context.compute("value", valued, groups, critic, readable)
        if left_out := unvalued(groups):
            log.warning(
                "skipped %d calls that the critic cannot read: their prompts are empty, or longer than the context",
                left_out,
            )
        return groups

    def update(self, updater: "Updater", part: PolicyShare) -> "UpdateReport | ActorCriticReport":
        """Take one step of the policy, of the critic, or of both, and return its report."""
        from leyden.core.policy.critic.value_update import ActorCritic

        if isinstance(updater, ActorCritic):
            return updater.learn(part.transitions, part.value_targets)
        return updater.step(part.transitions)

    def weigh(self, groups: list[TrajectoryGroup]) -> WeightedBatch:
        """Turn rewards of attempts into returns of transitions, and those into an advantage for each transition."""
        if not self._roles_seen and (absent := absent_roles(self.credit, groups)):
            log.warning("credit names roles that no agent or node had so far: %s", ", ".join(absent))
        self._roles_seen = True
        one_per_rollout = self.config.trajectory == "concatenated"
        return weigh(groups, self.credit, self.advantage, one_per_rollout=one_per_rollout)


def _rollouts(calls: "Mapping[str, list[WeightedTransition]]") -> set[str]:
    return {item.transition.rollout_id for own in calls.values() for item in own}


def _check_concatenated(credit: CreditAssigner, *, has_critic: bool) -> None:
    """Raise UsageError for credit or a critic that would give the calls of one sequence different advantages."""
    if has_critic:
        raise UsageError("trajectory 'concatenated' has one advantage for a rollout, and a critic values each call")
    while isinstance(credit, DimensionsCredit):
        credit = credit.base
    if not isinstance(credit, UniformCredit):
        raise UsageError(
            "trajectory 'concatenated' has one advantage for a rollout, so credit must be uniform, or dimensions over "
            "uniform; for credit to single calls, use trajectory 'transitions'"
        )

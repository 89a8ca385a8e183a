"""`BatchLoop`: the training loop of every algorithm that updates policies batch by batch.

Subclasses decide what is learned from a batch. `Learner` is the subclass for one method with one configuration. If
several policies are trained, they are published, logged and checkpointed together, as one step.
"""

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from leyden.core.algorithm.account import FOUND_WHILE_LEARNING, Account, failed_line
from leyden.core.algorithm.base import Algorithm, Context
from leyden.core.algorithm.policy_partition import split_by_policy
from leyden.core.algorithm.recomputable import must_be_checked, recomputable
from leyden.core.algorithm.staleness import LoopKind
from leyden.core.data.reasons import FAILED
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import NothingToLearn, TrainingError
from leyden.core.policy.update.config import UpdateOptions

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.token_record import PolicyTokens
    from leyden.core.policy.update.updater import Updater

log = logging.getLogger(__name__)

Part = TypeVar("Part")
SUMMED = ("tokens_trained", "transitions_trained", "optimizer_steps")
"""Metrics of an update that are added up over policies."""


class LearnerOptions(UpdateOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How weights change, and how many batches without anything to learn are allowed."""

    max_empty_batches: int = 8
    """Consecutive batches without anything to learn after which the run stops with an error."""


Options = TypeVar("Options", bound=LearnerOptions)


class Report(Protocol):
    """The result of one update."""

    def metrics(self) -> Mapping[str, float]:
        """Return flat metrics for a log."""
        ...

    def token_record(self) -> "PolicyTokens | None":
        """Return the record of the trained tokens; None if no token was trained."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Generic[Part]):
    """What is learned from one batch of rollouts, and what was left out of it."""

    parts: Mapping[str, Part]
    """What each policy learns; a policy that learns nothing is not in it."""
    numbers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Metrics of the batch for the log; used only if there is something to learn."""
    dropped: Counter[str] = field(default_factory=Counter[str])
    """Number of groups that give no training signal, by the reason why."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Number of other things left out, by the reason why."""
    accounts: tuple[Account, ...] = ()
    """Account of every rollout and call of the batch; one for each side if algorithms train side by side."""


class BatchLoop(Algorithm, Generic[Part]):
    """Collects rollouts, chooses what is learned, updates and publishes, until the planned steps are taken."""

    begins: int = 0
    """Number of the run's steps that other learners take before this one."""
    ends: int | None = None
    """Step of the run after which other learners continue; None: this one trains to the end."""

    @abstractmethod
    def make_updaters(self, models: "Mapping[str, PolicyModel]", steps: int, seed: int) -> "dict[str, Updater]":
        """Return an updater for each of `models`, which the run begins with, for a training of `steps` steps."""

    @abstractmethod
    async def batch(
        self, context: Context, updaters: "Mapping[str, Updater]", groups: list[TrajectoryGroup]
    ) -> Batch[Part]:
        """Return what each policy learns from `groups`, which were just collected."""

    @abstractmethod
    def update(self, updater: "Updater", part: Part) -> Report:
        """Train one policy on its part of a batch, and return a report.

        This is the only method of this class that changes weights.
        """

    @property
    @abstractmethod
    def max_empty_batches(self) -> int:
        """Consecutive batches without anything to learn after which the run stops with an error."""

    def pace(self) -> LoopKind:
        """Return how far collecting may run ahead of the updates."""
        return LoopKind()

    async def prepare(self, context: Context, steps: int) -> int:
        """Prepare the training before any policy is loaded, and return how many of `steps` will be taken."""
        del context
        return steps

    async def after_update(self, context: Context, updaters: "Mapping[str, Updater]") -> dict[str, float]:
        """Return further metrics of the step that was just published."""
        del context, updaters
        return {}

    async def run(self, context: Context) -> None:
        """Take the planned steps, continuing from where the last session stopped."""
        context.steps = await self.prepare(context, context.steps)
        models = {name: context.load_policy(name) for name in context.policies}
        updaters = self.make_updaters(models, context.steps, context.seed)
        await context.restore(updaters)
        if context.step == 0:
            await context.evaluate("before")
        async with context.collecting(self.pace()):
            await self.take_steps(context, updaters)
        await context.evaluate("after")

    async def take_steps(self, context: Context, updaters: "Mapping[str, Updater]") -> None:
        """Learn from one batch after another, up to this learner's last step."""
        async for batch in self.batches(context, updaters):
            await self.take_step(context, updaters, batch)

    def goes_on(self, context: Context) -> bool:
        """Return whether a step is left to take."""
        return context.step < (context.steps if self.ends is None else min(self.ends, context.steps))

    async def batches(self, context: Context, updaters: "Mapping[str, Updater]") -> AsyncGenerator[Batch[Part]]:
        """Yield what is learned from each batch of rollouts; batches without anything to learn are skipped.

        A skipped batch does not count as a step. Raises NothingToLearn after `max_empty_batches` of them in a row.
        """
        empty, most_empty = 0, self.max_empty_batches
        while self.goes_on(context):
            groups, batch = await self.collect_batch(context, updaters)
            if batch.parts:
                empty = 0
                yield batch
                continue
            empty += 1
            context.account(context.step + 1, batch.accounts)
            reasons = why_empty(groups, batch)
            if empty >= most_empty:
                raise NothingToLearn(
                    f"{empty} batches in a row had nothing to learn from; reasons in the last one: {reasons}"
                )
            log.warning("a batch had nothing to learn from (%s); continuing with the next tasks", reasons)

    async def collect_batch(
        self, context: Context, updaters: "Mapping[str, Updater]"
    ) -> tuple[list[TrajectoryGroup], Batch[Part]]:
        """Collect the next rollouts, and return them with what is learned from them, which may be nothing."""
        groups = await context.collect()
        if must_be_checked(groups):
            groups = await context.compute("check sampling", recomputable, groups, updaters)
        batch = await self.batch(context, updaters, groups)
        context.count_dropped(batch.dropped)
        return groups, batch

    async def take_step(self, context: Context, updaters: "Mapping[str, Updater]", batch: Batch[Part]) -> None:
        """Update the policies from a batch that has something to learn, publish them and end the step."""
        reports: dict[str, Report] = {}
        for name, part in batch.parts.items():
            try:
                reports[name] = await context.compute("update", self.update, updaters[name], part)
            except TrainingError as error:
                raise TrainingError(f"policy {name}: {error}" if len(updaters) > 1 else str(error)) from error
        if idle := [name for name in updaters if name not in reports]:
            log.warning(
                "step %d did not train %s: the batch had no call that it can learn from",
                context.step + 1,
                ", ".join(idle),
            )
        gaps = await context.publish({name: updater.model for name, updater in updaters.items()})
        further = await self.after_update(context, updaters)
        context.account(context.step, batch.accounts)
        records = {name: report.token_record() for name, report in reports.items()}
        context.record_tokens({name: record for name, record in records.items() if record is not None})
        context.log({**batch.numbers, **_left_out(batch.accounts), **update_numbers(reports, gaps), **further})
        await context.checkpoint(updaters)


class Learner(BatchLoop[Part], Generic[Options, Part]):
    """A batch loop with one method and one configuration for all policies; each policy learns from its own calls."""

    config: Options

    @abstractmethod
    def make_updater(self, model: "PolicyModel", steps: int, seed: int) -> "Updater":
        """Return an updater for `model`, which the run begins with, for a training of `steps` steps."""

    def make_updaters(self, models: "Mapping[str, PolicyModel]", steps: int, seed: int) -> "dict[str, Updater]":
        """Return an updater for each of `models`, by name."""
        return {name: self.make_updater(model, steps, seed) for name, model in models.items()}

    @property
    def max_empty_batches(self) -> int:
        """The value from the configuration."""
        return self.config.max_empty_batches


def update_numbers(reports: Mapping[str, Report], gaps: Mapping[str, float]) -> dict[str, Any]:
    """Return the metrics of a step.

    With one policy, these are its own metrics. With several, each policy's metrics have its name as prefix, as in
    `planner/loss`, and the metrics in `SUMMED` are also added up. `gaps` holds every policy. A policy without a report
    has trained 0 transitions.
    """
    if len(gaps) == 1:
        return {"served_trained_gap": next(iter(gaps.values())), **next(iter(reports.values())).metrics()}
    found: dict[str, Mapping[str, float]] = {
        name: reports[name].metrics() if name in reports else dict.fromkeys(SUMMED, 0.0) for name in gaps
    }
    summed = {key: sum(numbers.get(key, 0) for numbers in found.values()) for key in SUMMED}
    named: dict[str, float] = {}
    for name, numbers in found.items():
        named[f"{name}/served_trained_gap"] = gaps[name]
        named |= {f"{name}/{key}": value for key, value in numbers.items()}
    return {**summed, "policies_trained": len(reports), **named}


def collected_numbers(groups: Sequence[TrajectoryGroup], policies: Sequence[str]) -> dict[str, Any]:
    """Return metrics about the rewards and sizes of `groups`, which hold at least one reward and one call.

    Lengths are in tokens. With several policies, some metrics are also given for each policy, prefixed with its name.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    rewards = np.array([t.reward for t in trajectories if t.reward is not None], dtype=np.float64)
    calls = [call for t in trajectories for call in t.transitions]
    numbers = {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "groups_with_spread": sum(len({t.reward for t in group.trajectories} - {None}) > 1 for group in groups),
        "rollouts": len(trajectories),
        "transitions": len(calls),
        "response_tokens_mean": float(np.mean([len(call.response_ids) for call in calls])),
    }
    if len(policies) > 1:
        for name, own in split_by_policy(calls, policies, lambda call: call).items():
            numbers[f"{name}/transitions"] = len(own)
            numbers[f"{name}/response_tokens_mean"] = float(np.mean([len(call.response_ids) for call in own]))
    return numbers


def _left_out(accounts: Sequence[Account]) -> dict[str, int]:
    """Return the numbers of rollouts and calls left out, by reason; for a side, with its name as prefix."""
    return {
        f"{account.side}/{name}" if account.side else name: count
        for account in accounts
        for name, count in account.counts().items()
    }


def why_empty(groups: Sequence[TrajectoryGroup], batch: Batch[Any]) -> str:
    """Return why a batch has nothing to learn from, as text for a message."""
    own = batch.left_out + batch.dropped
    known = {*own, *(reason.partition(": ")[2] for reason in own), *FAILED.values()}  # sides put their names before
    rollouts, calls = Counter[str](), Counter[str]()
    for account in batch.accounts:
        rollouts.update({reason: len(ids) for reason, ids in account.rollouts.items() if reason not in known})
        found = {reason: len(ids) for reason, ids in account.calls.items()}
        calls.update({reason: count for reason, count in found.items() if reason not in FOUND_WHILE_LEARNING | known})
    parts = [failed_line(groups), counts(own) or "no rollout was rewarded"]
    parts += [f"rollouts: {counts(rollouts)}"] if rollouts else []
    parts += [f"calls: {counts(calls)}"] if calls else []
    return "; ".join(filter(None, parts))


def counts(reasons: Mapping[str, int]) -> str:
    """Return reasons and how often each occurred, as text for a message."""
    return ", ".join(f"{count} × {reason}" for reason, count in reasons.items())

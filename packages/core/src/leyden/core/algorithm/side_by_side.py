"""Sides: several algorithms that learn from the same rollouts, each of which trains a policy of its own.

Examples are imitation of the best rollouts beside reinforcement learning, or two configurations of one algorithm in
comparison. All sides begin with the run's policy. One side's policy answers the agent, or all take turns. Invariant: if
only one side acts, it takes the same steps from the same rollouts as it would alone.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from leyden.core.algorithm.account import Account
from leyden.core.algorithm.base import Context
from leyden.core.algorithm.learner import Batch, BatchLoop, Learner, LearnerOptions, Report, collected_numbers
from leyden.core.algorithm.registry import make_learner
from leyden.core.algorithm.staleness import LoopKind
from leyden.core.data.route import POLICY, PROVIDER
from leyden.core.data.transition import TrajectoryGroup, Transition
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.updater import Updater

TURNS = "turns"
_MOST_EMPTY = LearnerOptions().max_empty_batches


class Side(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One algorithm and the policy that it trains."""

    name: str
    """Name of the policy in logs, checkpoints and exports."""
    algorithm: str
    """Name of a registered algorithm that learns from batches, or an import string."""
    config: dict[str, Any] = {}
    """Configuration of the algorithm, the same as if it ran alone."""


class SideBySideConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which sides learn, and which of them act, that is, answer the agent."""

    sides: list[Side]
    """Two or more sides with distinct names."""
    acts: str | None = None
    """The side whose policy answers the agent during training, or `turns` for all in turn. Default: the first side."""
    learning_rate: float | None = None
    """Learning rate of every side whose own configuration has none."""

    def __post_init__(self) -> None:
        self._check_names()
        if self.learning_rate is not None and all("learning_rate" in side.config for side in self.sides):
            raise UsageError("learning_rate has no effect: every side sets its own")
        learners = self.learners()
        if any(one.pace() != other.pace() for one, other in pairwise(learners.values())):
            raise UsageError("sides learn from the same rollouts: loop and max_staleness must be the same in all sides")
        for name, learner in learners.items():
            self._check_side(name, learner)

    def _check_names(self) -> None:
        names = [side.name for side in self.sides]
        if len(names) < 2:
            raise UsageError(
                f"sides needs at least two entries, not {len(names)}; to run one algorithm, leave sides out"
            )
        if repeated := [name for name, count in Counter(names).items() if count > 1]:
            raise UsageError(f"two sides are called {repeated[0]!r}; every side needs a different name")
        if reserved := [name for name in names if name in (TURNS, POLICY, PROVIDER)]:
            raise UsageError(f"a side cannot be called {reserved[0]!r}: this name is reserved")
        if self.acts not in (None, TURNS, *names):
            raise UsageError(f"acts must be {TURNS}, or the name of a side ({', '.join(names)}), not {self.acts!r}")

    def _check_side(self, name: str, learner: Learner[Any, Any]) -> None:
        options: LearnerOptions = learner.config
        if not learner.needs_rollouts:
            raise UsageError(
                f"side {name}: it learns from spans, and sides learn from the rollouts of the run; use stages, which "
                "run one after the other, or a separate run"
            )
        if self.acting == (name,):
            return
        if name not in self.acting and options.max_empty_batches != _MOST_EMPTY:
            raise UsageError(f"side {name}: max_empty_batches has no effect on a side that does not act")
        loss = options.make_loss()
        if loss.reads_advantages and not loss.reads_ratios and options.correction is None:
            raise UsageError(
                f"side {name} learns from tokens that another side's policy generated, and a loss without ratios "
                "treats them as its own: set correction=truncated, or a loss with ratios such as ppo_clip"
            )

    @property
    def acting(self) -> tuple[str, ...]:
        """The sides that answer the agent."""
        if self.acts == TURNS:
            return tuple(side.name for side in self.sides)
        return (self.acts or self.sides[0].name,)

    def learners(self) -> dict[str, Learner[Any, Any]]:
        """Return a new learner for every side, by name; raises UsageError for an algorithm that cannot be a side."""
        return {
            side.name: make_learner(
                side.algorithm, side.config, learning_rate=self.learning_rate, label=f"side {side.name}"
            )
            for side in self.sides
        }


UpdateSide: TypeAlias = "Callable[[Updater], Report]"
"""The update of one side from a batch, by the side's own learner."""


class SideBySide(BatchLoop[UpdateSide]):
    """Gives every batch to every side, and counts their updates as one step."""

    name = "side_by_side"
    Config = SideBySideConfig
    config: SideBySideConfig

    def __init__(self, config: SideBySideConfig) -> None:
        super().__init__(config)
        self._learners = config.learners()

    def settings(self) -> dict[str, Any]:
        """Return the configuration as plain values, including every option of every side."""
        sides = [
            {"name": side.name, "algorithm": side.algorithm, "config": self._learners[side.name].settings()}
            for side in self.config.sides
        ]
        return {"sides": sides, "acts": self.config.acts}

    @property
    def sides(self) -> tuple[str, ...]:
        """The names of the sides, which are also those of their policies."""
        return tuple(self._learners)

    @property
    def acting(self) -> tuple[str, ...]:
        """The side that answers the agent, or all sides in turn."""
        return self.config.acting

    def options_of(self, policy: str) -> msgspec.Struct:
        """Return the configuration of the side that `policy` belongs to."""
        return self._learners[policy].config

    @property
    def max_empty_batches(self) -> int:
        """The largest limit of the acting sides."""
        return max(self._learners[name].max_empty_batches for name in self.acting)

    def check_steps(self, steps: int) -> None:
        """Raise UsageError if a side cannot work with this number of steps."""
        for name, learner in self._learners.items():
            try:
                learner.check_steps(steps)
            except UsageError as error:
                raise UsageError(f"side {name}: {error}") from error

    def pace(self) -> LoopKind:
        """Return how far collecting may run ahead, which is the same for all sides."""
        return next(iter(self._learners.values())).pace()

    async def prepare(self, context: Context, steps: int) -> int:
        """Prepare every side, and return the smallest of their numbers of steps.

        Raises UsageError if the run's policies are not those of the sides.
        """
        if set(context.policies) != set(self.sides):
            raise UsageError(
                f"sides {', '.join(self.sides)} train a policy each, with the name of the side; the run has "
                f"{', '.join(context.policies)}"
            )
        return min([steps, *[await learner.prepare(context, steps) for learner in self._learners.values()]])

    def make_updaters(self, models: "Mapping[str, PolicyModel]", steps: int, seed: int) -> "dict[str, Updater]":
        """Return an updater for every side's policy, made with the side's own configuration."""
        updaters: dict[str, Updater] = {}
        for name, learner in self._learners.items():
            updaters |= learner.make_updaters({name: models[name]}, steps, seed)
        return updaters

    async def batch(
        self, context: Context, updaters: "Mapping[str, Updater]", groups: list[TrajectoryGroup]
    ) -> Batch[UpdateSide]:
        """Return what every side learns from `groups`; nothing if no acting side has anything to learn."""
        found: dict[str, Batch[Any]] = {}
        for name, learner in self._learners.items():
            found[name] = await learner.batch(context, {name: updaters[name]}, attributed_to(groups, name))
        parts = {
            name: partial(self._learners[name].update, part=batch.parts[name])
            for name, batch in found.items()
            if batch.parts
        }
        is_used = any(name in parts for name in self.acting)
        return Batch(
            parts=parts if is_used else {},
            numbers=self._numbers(groups, found) if is_used else {},
            dropped=_prefixed({name: batch.dropped for name, batch in found.items()}),
            left_out=_prefixed({name: batch.left_out for name, batch in found.items()}),
            accounts=tuple(_account(name, batch, is_used=is_used) for name, batch in found.items()),
        )

    def update(self, updater: "Updater", part: UpdateSide) -> Report:
        """Train one side's policy with the side's own learner, and return its report."""
        return part(updater)

    async def after_update(self, context: Context, updaters: "Mapping[str, Updater]") -> dict[str, float]:
        """Return further metrics of every side, prefixed with its name."""
        numbers: dict[str, float] = {}
        for name, learner in self._learners.items():
            own = await learner.after_update(context, {name: updaters[name]})
            numbers |= {f"{name}/{key}": value for key, value in own.items()}
        return numbers

    def _numbers(self, groups: Sequence[TrajectoryGroup], found: Mapping[str, Batch[Any]]) -> dict[str, Any]:
        """Return the metrics of the rollouts once, and other metrics of each side prefixed with its name."""
        numbers = {**collected_numbers(groups, self.sides), "groups": len(groups)}
        own = {
            f"{name}/{key}": value
            for name, batch in found.items()
            for key, value in batch.numbers.items()
            if key not in numbers
        }
        return numbers | own | (_rewards(groups) if len(self.acting) > 1 else {})


def attributed_to(groups: Sequence[TrajectoryGroup], policy: str) -> list[TrajectoryGroup]:
    """Return `groups` with every call attributed to `policy`, whichever policy made it, because it learns from all."""

    def own(calls: Sequence[Transition]) -> tuple[Transition, ...]:
        return tuple(replace(call, policy=policy) for call in calls)

    return [
        replace(group, trajectories=tuple(replace(t, transitions=own(t.transitions)) for t in group.trajectories))
        for group in groups
    ]


def _rewards(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Return the mean reward of the rollouts that each side's policy answered."""
    rewards_by_policy: dict[str, list[float]] = {}
    for trajectory in (t for group in groups for t in group.trajectories):
        if trajectory.reward is not None and trajectory.transitions:
            rewards_by_policy.setdefault(trajectory.transitions[0].policy, []).append(trajectory.reward)
    return {f"{name}/reward": float(np.mean(rewards)) for name, rewards in rewards_by_policy.items()}


def _account(side: str, batch: Batch[Any], *, is_used: bool) -> Account:
    """Return one side's account of the batch; unless it `is_used`, no step is taken from it."""
    (account,) = batch.accounts or (Account(),)
    return (account if is_used else account.without_step()).of_side(side)


def _prefixed(counts: Mapping[str, Counter[str]]) -> Counter[str]:
    """Return the counts with the side's name before each reason."""
    return Counter({f"{name}: {reason}": count for name, own in counts.items() for reason, count in own.items()})

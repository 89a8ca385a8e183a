"""The loop of algorithms that learn from units of transitions, wherever those come from. Knows nothing of their losses.

A unit is what is dealt whole: the calls of a rollout that is imitated, the two answers of a pair. Units come from the
rollouts that a run collects itself, or from spans of another store, which are dealt in an order drawn from the seed.
"""

import logging
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from leyden.core.algorithm.base import Algorithm, Context, StoredRollouts
from leyden.core.data.order import drawn
from leyden.core.data.transition import TrajectoryGroup, Transition
from leyden.core.errors import TrainingError, UsageError
from leyden.core.policy.config import UpdateOptions, update_config
from leyden.core.policy.entries import WeightedTransition

if TYPE_CHECKING:
    from leyden.core.policy.update import Updater

log = logging.getLogger(__name__)

PER_STEP = 32
Unit = tuple[Transition, ...]


class LessonOptions(UpdateOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where units come from, on top of how the weights change."""

    only_from_spans: ClassVar[tuple[str, ...]] = ("per_step", "passes")
    """Options that mean something only for stored spans; None is their default."""

    spans: str | None = None
    """What to learn from: the folder or name of another run, or a store's URI. None: the rollouts of this run."""
    per_step: int | None = None
    """Units of one step, where they come from spans. [32]"""
    passes: float | None = None
    """Times through what the spans gave, where the run's steps would go on for longer. [no limit]"""
    max_empty_batches: int = 8
    """Collected batches in a row without anything to learn from before the run stops with an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.only_from_spans:
            value = getattr(self, name)
            if value is not None and self.spans is None:
                raise UsageError(f"{name} has no effect without spans: a step learns from what it collected")
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be above 0, got {value}")


Options = TypeVar("Options", bound=LessonOptions)


@dataclass(frozen=True, slots=True)
class Lessons:
    """What groups of trajectories came to."""

    units: list[Unit]
    dropped: Counter[str] = field(default_factory=Counter[str])
    """Groups without a unit, by the reason why."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """What was left out on the way, by the reason why."""


class LessonLoop(Algorithm, Generic[Options]):
    """Collect or read, choose units, update, publish."""

    unit: ClassVar[str]
    """What messages and metrics call units."""

    config: Options

    @property
    def needs_rollouts(self) -> bool:
        """Whether training runs the agent."""
        return self.config.spans is None

    def settings(self) -> dict[str, Any]:
        """The configuration as plain values, every option of its schemes included."""
        return super().settings() | self.config.scheme_settings()

    @abstractmethod
    def lessons(self, groups: Sequence[TrajectoryGroup]) -> Lessons:
        """Choose what is learned from."""

    def read(self, groups: Sequence[TrajectoryGroup], seed: int) -> Lessons:
        """Choose what is learned from stored groups, before the first step of a sitting."""
        del seed  # for those that set groups apart
        return self.lessons(groups)

    async def after_update(self, context: Context, updater: "Updater") -> dict[str, float]:
        """Further numbers of the step whose update was just made."""
        del context, updater
        return {}

    async def run(self, context: Context) -> None:
        """Take the planned steps, or fewer where the spans are to be gone through only so often."""
        stored = None if self.config.spans is None else await self._read(context, self.config.spans)
        updater = self._make_updater(context)
        await context.restore(updater)
        if context.step == 0:
            context.count_dropped({} if stored is None else stored.dropped)
            await context.evaluate("before")
        batches = self._collected(context) if stored is None else self._dealt(context, stored)
        async for units, numbers in batches:
            trained = [WeightedTransition(transition=call, advantage=0.0) for unit in units for call in unit]
            report = await context.compute("update", updater.step, trained)
            gap = await context.publish(updater.model)
            numbers |= {self.unit: len(units), "served_trained_gap": gap, **report.metrics()}
            context.log(numbers | await self.after_update(context, updater))
            await context.checkpoint(updater)
        await context.evaluate("after")

    def _make_updater(self, context: Context) -> "Updater":
        from leyden.core.policy.update import Updater

        return Updater(context.load_policy(), update_config(self.config, steps=context.steps, seed=context.seed))

    async def _read(self, context: Context, spans: str) -> Lessons:
        """Read the spans and plan the steps. Raises UsageError, with all counts, when they hold nothing to learn."""
        found = await context.stored(spans)
        lessons = self.read(found.groups, context.seed)
        if not lessons.units:
            raise UsageError(f"nothing to learn from in {spans}: {_account(found, lessons)}")
        if self.config.passes is not None:
            context.steps = min(context.steps, math.ceil(self.config.passes * len(lessons.units) / self._size(lessons)))
        log.info("%d %s in %s: %s", len(lessons.units), self.unit, spans, _account(found, lessons))
        return lessons

    def _size(self, lessons: Lessons) -> int:
        """Units of a step: none is in it twice."""
        return min(self.config.per_step or PER_STEP, len(lessons.units))

    async def _dealt(self, context: Context, lessons: Lessons) -> AsyncGenerator[tuple[list[Unit], dict[str, Any]]]:
        """The units of each step, with its numbers; every unit once each time through."""
        size = self._size(lessons)
        while context.step < context.steps:
            rows = drawn(len(lessons.units), context.step, size, context.seed)
            units = [lessons.units[row] for row in dict.fromkeys(rows)]
            yield units, {"passes": (context.step + 1) * size / len(lessons.units)}

    async def _collected(self, context: Context) -> AsyncGenerator[tuple[list[Unit], dict[str, Any]]]:
        """What each batch of rollouts came to, with its numbers; a batch without a unit is no step."""
        empty, most_empty = 0, self.config.max_empty_batches
        while context.step < context.steps:
            groups = await context.collect()
            lessons = self.lessons(groups)
            context.count_dropped(lessons.dropped)
            if lessons.units:
                empty = 0
                yield lessons.units, _collected_numbers(groups)
                continue
            empty += 1
            reasons = _counts(lessons.left_out + lessons.dropped) or "no rollout was rewarded"
            if empty >= most_empty:
                raise TrainingError(f"nothing to learn from in {empty} batches in a row; the last one's: {reasons}")
            log.warning("a batch had nothing to learn from (%s); going on with the next tasks", reasons)


def _collected_numbers(groups: Sequence[TrajectoryGroup]) -> dict[str, Any]:
    """Rewards and sizes of what was collected."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    rewards = np.array([t.reward for t in trajectories if t.reward is not None], dtype=np.float64)
    lengths = [len(call.response_ids) for t in trajectories for call in t.transitions]
    return {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "groups_with_spread": sum(len({t.reward for t in group.trajectories} - {None}) > 1 for group in groups),
        "rollouts": len(trajectories),
        "transitions": len(lengths),
        "response_tokens_mean": float(np.mean(lengths)),
    }


def _account(found: StoredRollouts, lessons: Lessons) -> str:
    """What was found, and what of it was left out, in one line."""
    parts = {
        "left out": found.left_out + lessons.left_out,
        "groups without any": lessons.dropped,
        "calls left out": found.calls_left_out,
        "calls re-tokenised": found.retokenised,
    }
    told = [f"{what}: {_counts(counts)}" for what, counts in parts.items() if counts]
    return "; ".join([f"{len(found.ids)} rollouts", *told])


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} × {reason}" for reason, count in counts.items())

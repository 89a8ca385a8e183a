"""The loop of algorithms that learn from units of transitions, wherever those come from. Knows nothing of their losses.

A unit is what is dealt whole: the calls of a rollout that is imitated, the two answers of a pair. Units come from the
rollouts that a run collects itself, or from spans of another store, which are dealt in an order drawn from the seed.
"""

import logging
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from leyden.core.algorithm.account import Account
from leyden.core.algorithm.base import Context, StoredRollouts
from leyden.core.algorithm.learner import Batch, Learner, LearnerOptions, collected_numbers, counts
from leyden.core.algorithm.policy_partition import shared_out
from leyden.core.data.order import drawn
from leyden.core.data.reasons import SET_APART
from leyden.core.data.transition import TrajectoryGroup, Transition
from leyden.core.errors import UsageError
from leyden.core.policy.update.config import update_config
from leyden.core.policy.update.entries import WeightedTransition

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.updater import Updater, UpdateReport

log = logging.getLogger(__name__)

PER_STEP = 32
HELD_OUT_EVERY = 10
Unit = tuple[Transition, ...]


class LessonOptions(LearnerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where units come from, on top of how the weights change."""

    only_from_spans: ClassVar[tuple[str, ...]] = ("per_step", "passes", "held_out")
    """Options that mean something only for stored spans; None is their default."""

    spans: str | None = None
    """What to learn from: the folder or name of another run, or a store's URI. None: the rollouts of this run."""
    per_step: int | None = None
    """Units of one step, where they come from spans. [32]"""
    passes: float | None = None
    """Times through what the spans gave, where the run's steps would go on for longer. [no limit]"""
    held_out: float | None = None
    """Share of the tasks in the spans that is set apart, for a loss that says when learning turns into repetition."""
    held_out_every: int | None = None
    """Steps between measurements of that loss, which also follows the last step. [10]"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.only_from_spans:
            value = getattr(self, name)
            if value is not None and self.spans is None:
                raise UsageError(f"{name} has no effect without spans: a step learns from what it collected")
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be above 0, got {value}")
        if self.held_out is not None and not self.held_out < 1:
            raise UsageError(f"held_out is a share of the tasks, below 1, got {self.held_out}")
        if self.held_out_every is not None and (self.held_out is None or self.held_out_every < 1):
            raise UsageError(f"held_out_every counts steps and needs held_out, got {self.held_out_every}")


Options = TypeVar("Options", bound=LessonOptions)


@dataclass(frozen=True, slots=True)
class Lessons:
    """What groups of trajectories came to."""

    units: list[Unit]
    dropped: Counter[str] = field(default_factory=Counter[str])
    """Groups without a unit, by the reason why."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """What was left out on the way, by the reason why."""
    account: Account = field(default_factory=Account)
    """What became of every rollout and call."""


class LessonLoop(Learner[Options, list[WeightedTransition]], Generic[Options]):
    """Chooses units from what was collected or read."""

    unit: ClassVar[str]
    """What messages and metrics call units."""

    def __init__(self, config: Options) -> None:
        super().__init__(config)
        self._stored: Lessons | None = None
        """What the spans came to, where they are learned from."""
        self._apart: list[WeightedTransition] = []
        """Units of the tasks that are set apart."""

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
        """Choose what is learned from stored groups, before the first step of a sitting; set whole tasks apart."""
        if self.config.held_out is None:
            return self.lessons(groups)
        count = max(1, round(self.config.held_out * len(groups)))
        apart = set(drawn(len(groups), 0, min(count, len(groups)), seed) if groups else ())
        held_out = self.lessons([group for place, group in enumerate(groups) if place in apart])
        self._apart = _weighted(held_out.units)
        rest = self.lessons([group for place, group in enumerate(groups) if place not in apart])
        if rest.units and not self._apart:
            raise UsageError(f"held_out={self.config.held_out} leaves nothing to measure in {len(apart)} tasks")
        aside = {SET_APART: [one.rollout_id for place in sorted(apart) for one in groups[place].trajectories]}
        return replace(rest, account=msgspec.structs.replace(rest.account, rollouts={**rest.account.rollouts, **aside}))

    async def after_update(self, context: Context, updaters: "Mapping[str, Updater]") -> dict[str, float]:
        """What the policy makes of the tasks that are set apart, when it is due."""
        due = context.step % (self.config.held_out_every or HELD_OUT_EVERY) == 0 or not self.goes_on(context)
        if not self._apart or not due:
            return {}
        (updater,) = updaters.values()  # spans are learned from by one policy
        found = await context.compute("held-out loss", updater.held_out, self._apart)
        return {f"held_out_{name}": value for name, value in found.items()}

    async def prepare(self, context: Context, steps: int) -> int:
        """Read the spans, where it is they that are learned from, so many times at most."""
        if self.config.spans is None:
            return steps
        self._stored = lessons = await self._read(context, self.config.spans)
        if self.config.passes is None:
            return steps
        return min(steps, math.ceil(self.config.passes * len(lessons.units) / self._size(lessons)))

    def make_updater(self, model: "PolicyModel", steps: int, seed: int) -> "Updater":
        """The policy with its optimizer."""
        from leyden.core.policy.update.updater import Updater

        return Updater(model, update_config(self.config, steps=steps, seed=seed))

    async def batches(
        self, context: Context, updaters: "Mapping[str, Updater]"
    ) -> AsyncGenerator[Batch[list[WeightedTransition]]]:
        """What each step learns: what it collected, or what is dealt to it, every unit once each time through."""
        if self._stored is None:
            async for batch in super().batches(context, updaters):
                yield batch
            return
        if context.step == self.begins:
            context.count_dropped(self._stored.dropped)
        units, size = self._stored.units, self._size(self._stored)
        while self.goes_on(context):
            step = context.step - self.begins
            rows = drawn(len(units), step, size, context.seed)
            dealt = [units[row] for row in dict.fromkeys(rows)]
            numbers = {"passes": (step + 1) * size / len(units)}
            accounts = (self._dealt_account(dealt, first=context.step == self.begins),)
            yield Batch(
                parts=self._parts(dealt, updaters), numbers={**numbers, self.unit: len(dealt)}, accounts=accounts
            )

    async def batch(
        self, context: Context, updaters: "Mapping[str, Updater]", groups: list[TrajectoryGroup]
    ) -> Batch[list[WeightedTransition]]:
        """The units of `groups`, each policy's calls of them apart."""
        lessons = self.lessons(groups)
        numbers: dict[str, Any] = {}
        if lessons.units:
            numbers = {**collected_numbers(groups, tuple(updaters)), self.unit: len(lessons.units)}
        parts = self._parts(lessons.units, updaters)
        return Batch(
            parts=parts,
            numbers=numbers,
            dropped=lessons.dropped,
            left_out=lessons.left_out,
            accounts=(lessons.account,),
        )

    def update(self, updater: "Updater", part: list[WeightedTransition]) -> "UpdateReport":
        """One step."""
        return updater.step(part)

    def _dealt_account(self, dealt: Sequence[Unit], *, first: bool) -> Account:
        """The account of stored rollouts: what a step is dealt, and with the `first` step what is never dealt."""
        trained = list(dict.fromkeys(call.rollout_id for unit in dealt for call in unit))
        if not first or self._stored is None:
            return Account(trained=trained)
        return msgspec.structs.replace(self._stored.account, trained=trained)

    @staticmethod
    def _parts(units: Sequence[Unit], policies: Collection[str]) -> dict[str, list[WeightedTransition]]:
        return shared_out(_weighted(units), policies, lambda item: item.transition)

    async def _read(self, context: Context, spans: str) -> Lessons:
        """Read the spans and plan the steps. Raises UsageError, with all counts, when they hold nothing to learn."""
        found = await context.stored(spans)
        lessons = self.read(found.groups, context.seed)
        if not lessons.units:
            raise UsageError(f"nothing to learn from in {spans}: {_account(found, lessons)}")
        log.info("%d %s in %s: %s", len(lessons.units), self.unit, spans, _account(found, lessons))
        return lessons

    def _size(self, lessons: Lessons) -> int:
        """Units of a step: none is in it twice."""
        return min(self.config.per_step or PER_STEP, len(lessons.units))


def _weighted(units: Sequence[Unit]) -> list[WeightedTransition]:
    return [WeightedTransition(transition=call, advantage=0.0) for unit in units for call in unit]


def _account(found: StoredRollouts, lessons: Lessons) -> str:
    """What was found, and what of it was left out, in one line."""
    parts = {
        "left out": found.left_out + lessons.left_out,
        "groups without any": lessons.dropped,
        "calls left out": found.calls_left_out,
        "calls re-tokenised": found.retokenised,
    }
    told = [f"{what}: {counts(reasons)}" for what, reasons in parts.items() if reasons]
    return "; ".join([f"{len(found.ids)} rollouts", *told])

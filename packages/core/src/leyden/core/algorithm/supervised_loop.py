"""Supervised loop: the base of algorithms that learn from units of transitions, such as SFT and DPO.

A unit is used as a whole: the calls of a rollout that is imitated, or the two responses of a pair. Units come from
rollouts that the run collects, or from spans of another store. Stored units are shuffled with the run's seed.
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
from leyden.core.algorithm.policy_partition import split_by_policy
from leyden.core.data.order import rows_of_batch
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


class SupervisedOptions(LearnerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where units come from, in addition to how the weights change."""

    only_from_spans: ClassVar[tuple[str, ...]] = ("per_step", "passes", "held_out")
    """Options that have an effect only on stored spans; their default is None."""

    spans: str | None = None
    """Source to learn from: the folder or name of another run, or a store's URI. None: the rollouts of this run."""
    per_step: int | None = None
    """Units per step, if they come from spans. Default: 32."""
    passes: float | None = None
    """The most passes over the units of the spans, if the run has more steps than that. Default: no limit."""
    held_out: float | None = None
    """Share of the tasks in the spans that is held out, to measure a loss that shows overfitting."""
    held_out_every: int | None = None
    """Steps between measurements of the held-out loss, which is also measured after the last step. Default: 10."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.only_from_spans:
            value = getattr(self, name)
            if value is not None and self.spans is None:
                raise UsageError(
                    f"{name} has no effect without spans: a step then learns from all rollouts that it collected"
                )
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be above 0, got {value}")
        if self.held_out is not None and not self.held_out < 1:
            raise UsageError(f"held_out is a share of the tasks and must be below 1, got {self.held_out}")
        if self.held_out_every is not None and (self.held_out is None or self.held_out_every < 1):
            raise UsageError(f"held_out_every must be at least 1 step, and needs held_out, got {self.held_out_every}")


Options = TypeVar("Options", bound=SupervisedOptions)


@dataclass(frozen=True, slots=True)
class SupervisedUnits:
    """The units made from groups of trajectories, and what was left out."""

    units: list[Unit]
    dropped: Counter[str] = field(default_factory=Counter[str])
    """Number of groups without a unit, by the reason why."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Number of other things left out, by the reason why."""
    account: Account = field(default_factory=Account)
    """Account of every rollout and call."""


class SupervisedLoop(Learner[Options, list[WeightedTransition]], Generic[Options]):
    """Training loop over units that are chosen from collected or stored rollouts."""

    unit: ClassVar[str]
    """Word for units in messages and metrics."""

    def __init__(self, config: Options) -> None:
        super().__init__(config)
        self._stored: SupervisedUnits | None = None
        """Units of the stored rollouts, if spans are the source."""
        self._held_out_units: list[WeightedTransition] = []
        """Units of the held-out tasks."""

    @property
    def needs_rollouts(self) -> bool:
        """Whether training runs the agent."""
        return self.config.spans is None

    def settings(self) -> dict[str, Any]:
        """Return the configuration as plain values, including every option of its schemes."""
        return super().settings() | self.config.scheme_settings()

    @abstractmethod
    def select_units(self, groups: Sequence[TrajectoryGroup]) -> SupervisedUnits:
        """Return the units that are learned from, and what was left out."""

    def read(self, groups: Sequence[TrajectoryGroup], seed: int) -> SupervisedUnits:
        """Return the units of stored groups, before the first step of a session; hold out whole tasks.

        Raises UsageError if the held-out tasks give no unit to measure.
        """
        if self.config.held_out is None:
            return self.select_units(groups)
        count = max(1, round(self.config.held_out * len(groups)))
        held_out_indices = set(rows_of_batch(len(groups), 0, min(count, len(groups)), seed) if groups else ())
        held_out = self.select_units([group for index, group in enumerate(groups) if index in held_out_indices])
        self._held_out_units = _weighted(held_out.units)
        rest = self.select_units([group for index, group in enumerate(groups) if index not in held_out_indices])
        if rest.units and not self._held_out_units:
            raise UsageError(
                f"held_out={self.config.held_out} holds out {len(held_out_indices)} tasks, and none of them gives "
                "anything to measure"
            )
        set_apart = {
            SET_APART: [
                trajectory.rollout_id for index in sorted(held_out_indices) for trajectory in groups[index].trajectories
            ]
        }
        return replace(
            rest, account=msgspec.structs.replace(rest.account, rollouts={**rest.account.rollouts, **set_apart})
        )

    async def after_update(self, context: Context, updaters: "Mapping[str, Updater]") -> dict[str, float]:
        """Return the loss on the held-out tasks if a measurement is due, else nothing."""
        due = context.step % (self.config.held_out_every or HELD_OUT_EVERY) == 0 or not self.goes_on(context)
        if not self._held_out_units or not due:
            return {}
        (updater,) = updaters.values()  # spans train exactly one policy
        found = await context.compute("held-out loss", updater.held_out, self._held_out_units)
        return {f"held_out_{name}": value for name, value in found.items()}

    async def prepare(self, context: Context, steps: int) -> int:
        """Read the spans if they are the source; return the number of steps, limited by `passes`."""
        if self.config.spans is None:
            return steps
        self._stored = selected = await self._read(context, self.config.spans)
        if self.config.passes is None:
            return steps
        return min(steps, math.ceil(self.config.passes * len(selected.units) / self._size(selected)))

    def make_updater(self, model: "PolicyModel", steps: int, seed: int) -> "Updater":
        """Return the policy with its optimizer."""
        from leyden.core.policy.update.updater import Updater

        return Updater(model, update_config(self.config, steps=steps, seed=seed))

    async def batches(
        self, context: Context, updaters: "Mapping[str, Updater]"
    ) -> AsyncGenerator[Batch[list[WeightedTransition]]]:
        """Yield what each step learns: collected units, or the next stored units.

        Each stored unit is used once in every pass.
        """
        if self._stored is None:
            async for batch in super().batches(context, updaters):
                yield batch
            return
        if context.step == self.begins:
            context.count_dropped(self._stored.dropped)
        units, size = self._stored.units, self._size(self._stored)
        while self.goes_on(context):
            step = context.step - self.begins
            rows = rows_of_batch(len(units), step, size, context.seed)
            step_units = [units[row] for row in dict.fromkeys(rows)]
            numbers = {"passes": (step + 1) * size / len(units)}
            accounts = (self._step_account(step_units, first=context.step == self.begins),)
            yield Batch(
                parts=self._parts(step_units, updaters),
                numbers={**numbers, self.unit: len(step_units)},
                accounts=accounts,
            )

    async def batch(
        self, context: Context, updaters: "Mapping[str, Updater]", groups: list[TrajectoryGroup]
    ) -> Batch[list[WeightedTransition]]:
        """Return the units of `groups`, divided by the policy that made each call."""
        selected = self.select_units(groups)
        numbers: dict[str, Any] = {}
        if selected.units:
            numbers = {**collected_numbers(groups, tuple(updaters)), self.unit: len(selected.units)}
        parts = self._parts(selected.units, updaters)
        return Batch(
            parts=parts,
            numbers=numbers,
            dropped=selected.dropped,
            left_out=selected.left_out,
            accounts=(selected.account,),
        )

    def update(self, updater: "Updater", part: list[WeightedTransition]) -> "UpdateReport":
        """Take one optimization step, and return its report."""
        return updater.step(part)

    def _step_account(self, step_units: Sequence[Unit], *, first: bool) -> Account:
        """Return the account of a step's stored rollouts; that of the `first` step also lists those never used."""
        trained = list(dict.fromkeys(call.rollout_id for unit in step_units for call in unit))
        if not first or self._stored is None:
            return Account(trained=trained)
        return msgspec.structs.replace(self._stored.account, trained=trained)

    @staticmethod
    def _parts(units: Sequence[Unit], policies: Collection[str]) -> dict[str, list[WeightedTransition]]:
        return split_by_policy(_weighted(units), policies, lambda item: item.transition)

    async def _read(self, context: Context, spans: str) -> SupervisedUnits:
        """Read the spans and return their units. Raises UsageError, with all counts, if there is nothing to learn."""
        found = await context.stored(spans)
        selected = self.read(found.groups, context.seed)
        if not selected.units:
            raise UsageError(f"nothing to learn from in {spans}: {_account(found, selected)}")
        log.info("%d %s in %s: %s", len(selected.units), self.unit, spans, _account(found, selected))
        return selected

    def _size(self, selected: SupervisedUnits) -> int:
        """Return the number of units in a step, limited so that no unit is in a step twice."""
        return min(self.config.per_step or PER_STEP, len(selected.units))


def _weighted(units: Sequence[Unit]) -> list[WeightedTransition]:
    return [WeightedTransition(transition=call, advantage=0.0) for unit in units for call in unit]


def _account(found: StoredRollouts, selected: SupervisedUnits) -> str:
    """Return one line with the number of rollouts found and what was left out."""
    parts = {
        "left out": found.left_out + selected.left_out,
        "groups without any": selected.dropped,
        "calls left out": found.calls_left_out,
        "calls re-tokenised": found.retokenised,
    }
    descriptions = [f"{what}: {counts(reasons)}" for what, reasons in parts.items() if reasons]
    return "; ".join([f"{len(found.ids)} rollouts", *descriptions])

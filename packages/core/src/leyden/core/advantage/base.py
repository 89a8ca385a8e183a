"""`AdvantageEstimator`: the interface of estimators, which turn returns of transitions into advantages."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from leyden.core.errors import TrainingError

Floats: TypeAlias = NDArray[np.float64]
DropReason = Literal["fewer than two rewards", "no credited call", "no spread"]

SPREAD = 1e-9
"""Returns that differ by less than this, relative to the largest, differ only by rounding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CreditedRollout:
    """One rewarded rollout as input of estimators. Raises TrainingError for numbers that are not finite."""

    returns_N: Floats
    """The returns of its N credited transitions, in order; empty without any."""
    values_N: Floats | None = None
    """A critic's value of the state before each transition; None without a critic."""

    def __post_init__(self) -> None:
        for name, numbers in (("returns", self.returns_N), ("values", self.values_N)):
            if numbers is not None and not np.isfinite(numbers).all():
                raise TrainingError(f"{name} must be finite numbers, got {numbers.tolist()}")
        if self.values_N is not None and self.values_N.shape != self.returns_N.shape:
            raise TrainingError(f"{self.values_N.shape} values do not match {self.returns_N.shape} returns")


Group: TypeAlias = Sequence[CreditedRollout]
"""The rewarded rollouts of one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdvantages:
    """The advantages of one group, or why it has none."""

    advantages: tuple[Floats, ...] = ()
    """For each rollout, in the given order, `advantages_N`: one per transition. Empty if the group is dropped."""
    dropped: DropReason | None = None
    """Why the group gives no training signal; None if it does."""


class AdvantageEstimator(ABC):
    """Turns the returns of a step's rollouts into advantages. Its fields are its options."""

    needs_values: ClassVar[bool] = False
    """Whether it needs a critic."""

    @abstractmethod
    def estimate(self, groups: Sequence[Group]) -> list[GroupAdvantages]:
        """Return for each group advantages of the same shapes as its returns, or why it is dropped.

        A group is dropped only if its rollouts cannot be compared, or if all of its advantages would be 0. Leaving it
        out then changes no sum.
        """


class GroupEstimator(AdvantageEstimator):
    """An estimator that compares only the rollouts of one group with each other."""

    def estimate(self, groups: Sequence[Group]) -> list[GroupAdvantages]:
        """Return the estimates of all groups, each computed separately."""
        return [self._estimate(group) for group in groups]

    @abstractmethod
    def centred(self, returns: Sequence[Floats]) -> list[Floats]:
        """Return the returns minus the baseline, for at least two rollouts, none of them empty."""

    def scaled(self, centred: Sequence[Floats]) -> Sequence[Floats]:
        """Return the advantages: the centred returns, not all of them 0, divided by the estimator's own unit."""
        return centred

    def _estimate(self, group: Group) -> GroupAdvantages:
        reason = incomparable(group)
        if reason is not None:
            return GroupAdvantages(dropped=reason)
        returns = [rollout.returns_N for rollout in group if len(rollout.returns_N)]
        centred = self.centred(returns)
        if is_zero(centred, returns):
            return GroupAdvantages(dropped="no spread")
        return GroupAdvantages(advantages=in_order(group, self.scaled(centred)))


def incomparable(group: Group) -> DropReason | None:
    """Return why the rollouts of a group cannot be compared with each other, or None."""
    if len(group) < 2:
        return "fewer than two rewards"
    return "no credited call" if sum(len(rollout.returns_N) > 0 for rollout in group) < 2 else None


def is_zero(centred: Sequence[Floats], returns: Sequence[Floats]) -> bool:
    """Return whether centred returns differ from 0 only by rounding."""
    largest = max(np.abs(returns_N).max() for returns_N in returns)
    return max(np.abs(centred_N).max() for centred_N in centred) <= SPREAD * largest


def in_order(group: Group, advantages: Sequence[Floats]) -> tuple[Floats, ...]:
    """Return the advantages in the group's order, with empty arrays for rollouts without transitions."""
    rest = iter(advantages)
    return tuple(next(rest) if len(rollout.returns_N) else rollout.returns_N for rollout in group)

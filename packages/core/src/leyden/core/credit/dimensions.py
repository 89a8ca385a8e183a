"""Reward dimensions: weighs the named parts of a reward."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from leyden.core.credit.base import Credit, CreditAssigner
from leyden.core.credit.checks import check_finite
from leyden.core.credit.uniform import UniformCredit
from leyden.core.data.transition import Trajectory
from leyden.core.errors import TrainingError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionsCredit(CreditAssigner):
    """Dimensions credit: replaces the reward by R = Σ_d weight_d dimension_d, which the base scheme assigns.

    Dimensions without a weight do not count.
    """

    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """Name of a dimension to its weight; at least one."""
    base: CreditAssigner = field(default_factory=UniformCredit)

    def __post_init__(self) -> None:
        if not self.weights:
            raise UsageError("dimensions needs weights: a mapping of at least one dimension to its weight")
        for name, weight in self.weights.items():
            check_finite(f"weight of dimension {name!r}", weight)

    @property
    def roles(self) -> frozenset[str]:
        """The roles of the base."""
        return self.base.roles

    def assign(self, trajectory: Trajectory) -> Credit | None:
        """Return the base's credit for the weighted reward; raises TrainingError if a dimension is missing."""
        if trajectory.reward is None:
            return None
        missing = sorted(set(self.weights) - set(trajectory.dimensions))
        if missing:
            present = ", ".join(sorted(trajectory.dimensions)) or "none"
            raise TrainingError(
                f"the reward of rollout {trajectory.rollout_id} has no dimension {missing[0]!r}; it has {present}"
            )
        reward = sum(weight * trajectory.dimensions[name] for name, weight in self.weights.items())
        return self.base.assign(replace(trajectory, reward=reward))

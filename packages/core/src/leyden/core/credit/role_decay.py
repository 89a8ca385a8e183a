"""Role decay: a separate discount for each role of a multi-agent system."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from leyden.core.credit.base import Credit, CreditAssigner, distances_to_end, roles_of
from leyden.core.credit.checks import check_gamma
from leyden.core.data.transition import Trajectory, Transition
from leyden.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleDecayCredit(CreditAssigner):
    """Role decay: G_n = gamma_role(n)^(N - n) R, a discount by the number of later calls, at the role's own rate.

    A role with gamma 1 gets the whole reward, however early its calls are. Biased, like discounted credit, for every
    gamma below 1: with 0.5 for the planner of the game of `testing.stopping_game` it is 55.8 degrees off.
    """

    gamma: Mapping[str, float] = field(default_factory=dict[str, float])
    """Role to gamma; at least one. A role is the exact name of the node or, if that has no gamma, of the agent."""
    otherwise: float = 1.0
    """Gamma of all other roles."""

    def __post_init__(self) -> None:
        if not self.gamma:
            raise UsageError("role_decay needs gamma: a mapping of at least one role to its gamma")
        for role, gamma in self.gamma.items():
            check_gamma(f"gamma of role {role!r}", gamma)
        check_gamma("otherwise", self.otherwise)

    @property
    def roles(self) -> frozenset[str]:
        """The roles that have a gamma of their own."""
        return frozenset(self.gamma)

    def assign(self, trajectory: Trajectory) -> Credit | None:
        """Return the reward, discounted at each transition's own rate."""
        if trajectory.reward is None:
            return None
        gamma_N = np.array([self._gamma(transition) for transition in trajectory.transitions], dtype=np.float64)
        return Credit.of(trajectory.reward * gamma_N ** distances_to_end(trajectory.transitions))

    def _gamma(self, transition: Transition) -> float:
        named = (self.gamma[role] for role in roles_of(transition) if role in self.gamma)
        return next(named, self.otherwise)

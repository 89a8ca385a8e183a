"""Selective credit: different schemes for different agents, or none."""

import re
from dataclasses import dataclass, field, replace

import numpy as np

from leyden.core.credit.base import Credit, CreditAssigner, roles_of
from leyden.core.credit.uniform import UniformCredit
from leyden.core.data.transition import Trajectory
from leyden.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveCredit(CreditAssigner):
    """Selective credit: agents that match `agents` get the base's credit; others get `otherwise`'s, or none.

    Transitions without credit are not trained. Each scheme gets a trajectory with only its own transitions, so that
    "the last" and "how many follow" refer to these. Leaving agents out is unbiased for the gradient of the other
    agents' parameters, if they share none.
    """

    agents: str
    """Regular expression, searched for in the names of the agent and of the node that made the call."""
    base: CreditAssigner = field(default_factory=UniformCredit)
    otherwise: CreditAssigner | None = None

    def __post_init__(self) -> None:
        try:
            re.compile(self.agents)
        except re.error as error:
            raise UsageError(f"agents {self.agents!r} is not a regular expression: {error}") from None

    @property
    def roles(self) -> frozenset[str]:
        """The roles that either scheme names."""
        return self.base.roles | (self.otherwise.roles if self.otherwise else frozenset[str]())

    def assign(self, trajectory: Trajectory) -> Credit | None:
        """Return the credit of both schemes, each for its own transitions; None if a scheme in use gives none."""
        calls = trajectory.transitions
        found_N = np.array([any(re.search(self.agents, role) for role in roles_of(call)) for call in calls], dtype=bool)
        returns_N, weights_N = np.zeros(len(calls)), np.zeros(len(calls))
        for scheme, chosen_N in ((self.base, found_N), (self.otherwise, ~found_N)):
            if scheme is None:
                continue
            own = tuple(call for call, chosen in zip(calls, chosen_N, strict=True) if chosen)
            credit = scheme.assign(replace(trajectory, transitions=own))
            if credit is None:
                return None
            returns_N[chosen_N], weights_N[chosen_N] = credit.returns_N, credit.weights_N
        return Credit.of(returns_N, weights_N)

"""Uniform credit: the default of Agent Lightning (arXiv 2508.03680)."""

from dataclasses import dataclass

import numpy as np

from leyden.core.credit.base import Credit, CreditAssigner
from leyden.core.data.transition import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformCredit(CreditAssigner):
    """Uniform credit: every transition gets the whole reward, G_n = R for all n.

    Unbiased: the policy gradient of E[R] is the expectation of Σ_n ∇log π(a_n | s_n) R (Williams 1992).
    """

    def assign(self, trajectory: Trajectory) -> Credit | None:
        """Return the trajectory's reward for each transition."""
        if trajectory.reward is None:
            return None
        return Credit.of(np.full(len(trajectory.transitions), trajectory.reward))

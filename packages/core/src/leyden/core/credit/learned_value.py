"""Learned-value credit: a call gets the change in the critic's value that it caused."""

from dataclasses import dataclass

import numpy as np

from leyden.core.credit.base import Credit, CreditAssigner
from leyden.core.credit.checks import check_gamma
from leyden.core.credit.nesting import needs_values
from leyden.core.credit.over_another import OverAnother
from leyden.core.data.transition import Trajectory
from leyden.core.errors import TrainingError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedValueCredit(OverAnother):
    """Learned-value credit: G_n = r_n + gamma V(s_(n+1)) - V(s_n), with r_n = base_n - gamma base_(n+1).

    V is a critic's prediction of the base's returns. It is 0 after the last call, which gets the rest of the return.
    With gamma 1, the changes of a rollout add up to its return minus the value of its first state. If the critic is
    exact, this is unbiased for what the base is unbiased for: the mean of G_n over what follows is then the advantage
    of the call. It is biased by the critic's errors, as GAE with lam 0: with the wrong critic of `docs/credit.md` 9.8
    degrees on the game of `testing.stopping_game`. Only credited calls count as steps.
    """

    gamma: float = 1.0
    """The discount of the base, if it discounts."""

    def __post_init__(self) -> None:
        check_gamma("gamma", self.gamma)
        if needs_values(self.base):
            raise UsageError("the base of learned_value already reads the critic: choose a base that does not")

    def learned(self) -> CreditAssigner:
        """Return the base."""
        return self.base

    def change(self, credit: Credit, trajectory: Trajectory) -> Credit:
        """Return the change of value over each transition, with the base's weights.

        Raises TrainingError for a credited transition without a value.
        """
        kept_N = credit.weights_N > 0
        values = [call.value for call, kept in zip(trajectory.transitions, kept_N, strict=True) if kept]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            raise TrainingError(f"rollout {trajectory.rollout_id} has calls without a value from a critic")
        after_N = self.gamma * (credit.returns_N[kept_N] - np.array(known))
        change_N = credit.returns_N[kept_N] - np.array(known) - np.append(after_N[1:], 0.0)
        returns_N = np.zeros_like(credit.returns_N)
        returns_N[kept_N] = change_N
        return Credit.of(returns_N, credit.weights_N)

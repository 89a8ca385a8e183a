"""Potential-based shaping: intermediate rewards that cannot change the best policy (Ng, Harada and Russell 1999)."""

from dataclasses import dataclass

import numpy as np

from leyden.core.credit.base import Credit
from leyden.core.credit.over_another import OverAnother
from leyden.core.credit.rules import Rule, check_rules, intermediate_rewards
from leyden.core.data.transition import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class PotentialCredit(OverAnother):
    """Potential-based shaping: G_n = base_n - Φ(s_n), where Φ(s_n) is the sum of the rules' rewards before call n.

    Φ measures progress. Each step gets the reward gamma Φ(s_(n+1)) - Φ(s_n), and Φ is 0 where the attempt ends. Summed
    from n on, all terms except -Φ(s_n) cancel, for every gamma. A call thus gets the reward minus the progress it
    started from. Unbiased over an unbiased base, because Φ(s_n) is fixed before call n is made. This fails only for
    parallel calls whose outcomes affect each other. With whole returns it is a baseline, and lowers variance if
    progress predicts success.
    """

    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        check_rules(self.rules, "potential")

    def change(self, credit: Credit, trajectory: Trajectory) -> Credit:
        """Return the base's credit minus the potential that each transition started from."""
        rewards_N = intermediate_rewards(self.rules, trajectory.transitions)
        potential_N = np.cumsum(rewards_N) - rewards_N
        return Credit.of(credit.returns_N - potential_N, credit.weights_N)

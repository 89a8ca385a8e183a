"""Potential-based shaping: intermediate rewards that cannot change what is best (Ng, Harada and Russell 1999)."""

from dataclasses import dataclass

import numpy as np

from leyden.core.credit.base import Credit
from leyden.core.credit.over_another import OverAnother
from leyden.core.credit.rules import Rule, check_rules, intermediate_rewards
from leyden.core.data.transition import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class PotentialCredit(OverAnother):
    """G_n = base_n - Φ(s_n), Φ(s_n) the sum of what the rules give for the outcomes before call n: progress so far.

    Each step is paid gamma Φ(s_(n+1)) - Φ(s_n), and Φ is 0 where the attempt ends. Summed from n on, all but -Φ(s_n)
    cancels, whatever gamma: a call answers for the reward less the progress it started from. Unbiased over an unbiased
    base, since Φ(s_n) is settled before call n is made; that fails only for calls made in parallel whose outcomes act
    on each other. With whole returns it is a baseline, and lowers variance where progress tells of success.
    """

    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        check_rules(self.rules, "potential")

    def change(self, credit: Credit, trajectory: Trajectory) -> Credit:
        """Return the base's credit less the potential each transition started from."""
        rewards_N = intermediate_rewards(self.rules, trajectory.transitions)
        potential_N = np.cumsum(rewards_N) - rewards_N
        return Credit.of(credit.returns_N - potential_N, credit.weights_N)

"""Automatic intermediate rewards (AIR, arXiv 2508.03680): adds rewards for the outcomes of calls."""

from dataclasses import dataclass

from leyden.core.credit.base import Credit, returns_to_go
from leyden.core.credit.checks import check_gamma
from leyden.core.credit.over_another import OverAnother
from leyden.core.credit.rules import Rule, check_rules, intermediate_rewards
from leyden.core.data.transition import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class IntermediateCredit(OverAnother):
    """Intermediate rewards: G_n = base_n + r_n + gamma r_(n+1) + gamma² r_(n+2) + ..., where rules give r_n.

    r_n is the reward of transition n's outcomes. The sum is a return-to-go: a call gets rewards of what followed it,
    never of what came before. With gamma 1 over uniform credit it is unbiased, for the objective E[R + Σ r]. That
    differs from E[R], and an agent may learn to earn intermediate rewards instead of the task's. `potential` cannot
    change which policy is best. With gamma < 1 it is biased; with gamma 0 a call gets only the rewards of its own
    outcomes.
    """

    rules: tuple[Rule, ...] = ()
    gamma: float = 1.0
    """Discount of the intermediate rewards; the base has its own."""

    def __post_init__(self) -> None:
        check_rules(self.rules, "intermediate")
        check_gamma("gamma", self.gamma, lowest=0.0)

    def change(self, credit: Credit, trajectory: Trajectory) -> Credit:
        """Return the base's credit plus the return-to-go of the intermediate rewards."""
        to_go_N = returns_to_go(intermediate_rewards(self.rules, trajectory.transitions), self.gamma)
        return Credit.of(credit.returns_N + to_go_N, credit.weights_N)

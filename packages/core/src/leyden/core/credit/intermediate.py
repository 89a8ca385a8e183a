"""Automatic intermediate rewards (AIR, arXiv 2508.03680): what came of a call pays, beside the attempt's reward."""

from dataclasses import dataclass

from leyden.core.credit.base import Credit, returns_to_go
from leyden.core.credit.checks import check_gamma
from leyden.core.credit.over_another import OverAnother
from leyden.core.credit.rules import Rule, check_rules, intermediate_rewards
from leyden.core.data.transition import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class IntermediateCredit(OverAnother):
    """G_n = base_n + r_n + gamma r_(n+1) + gamma² r_(n+2) + ..., r_n what the rules give for transition n's outcomes.

    Return-to-go: a call answers for what followed it, never for what came before. With gamma 1 over uniform credit it
    is unbiased, for the objective E[R + Σ r]: that is another objective than E[R], and an agent may learn to earn
    intermediate rewards instead of the task's. `potential` cannot change what is best. With gamma < 1 it is biased;
    gamma 0 pays a call for its own outcomes alone.
    """

    rules: tuple[Rule, ...] = ()
    gamma: float = 1.0
    """Of the intermediate rewards; the base has its own."""

    def __post_init__(self) -> None:
        check_rules(self.rules, "intermediate")
        check_gamma("gamma", self.gamma, lowest=0.0)

    def change(self, credit: Credit, trajectory: Trajectory) -> Credit:
        """Return the base's credit with the intermediate rewards still to come added."""
        to_go_N = returns_to_go(intermediate_rewards(self.rules, trajectory.transitions), self.gamma)
        return Credit.of(credit.returns_N + to_go_N, credit.weights_N)

"""Discounted credit: calls nearer to the end get more of the reward."""

from dataclasses import dataclass

from leyden.core.credit.base import Credit, CreditAssigner, distances_to_end
from leyden.core.credit.checks import check_gamma
from leyden.core.data.transition import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscountedCredit(CreditAssigner):
    """Discounted credit: G_n = gamma^(N - n) R, the discounted return of a reward that comes at the end.

    Biased for gamma < 1: it shortens good attempts and lengthens bad ones, which may be wanted. It is the gradient of
    no objective, neither E[R] nor the discounted one (arXiv 1906.07073). On the game of `testing.stopping_game`, with
    gamma 0.9, it is 8.5 degrees off that of E[R].
    """

    gamma: float = 0.95

    def __post_init__(self) -> None:
        check_gamma("gamma", self.gamma)

    def assign(self, trajectory: Trajectory) -> Credit | None:
        """Return the discounted reward for each transition."""
        if trajectory.reward is None:
            return None
        return Credit.of(trajectory.reward * self.gamma ** distances_to_end(trajectory.transitions))

"""Contribution weights: a user's function estimates how much each call contributed to the result."""

from dataclasses import dataclass

import numpy as np

from leyden.core.credit.base import Credit, Floats
from leyden.core.credit.checks import as_numbers, judged, load_function
from leyden.core.credit.over_another import OverAnother
from leyden.core.data.transition import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionCredit(OverAnother):
    """Contribution weights: the base's returns, with each transition's weight w_n = base's w_n · N · share_n.

    Shares are scaled to sum to 1, so equal shares change nothing. A weight keeps the sign of an advantage. A smaller
    return, in contrast, would make a small contributor to a success look like a failure. Biased unless all shares are
    equal.
    """

    shares: str
    """Import string of a function from a Trajectory to N numbers, none negative, one for each transition."""

    def __post_init__(self) -> None:
        load_function("shares", self.shares)

    def change(self, credit: Credit, trajectory: Trajectory) -> Credit:
        """Return the base's credit, weighted; raises TrainingError if the function's result cannot be shares."""
        shares = judged("shares", self.shares, trajectory)
        return weighted(credit, as_numbers(self.shares, shares, len(credit.returns_N)))


def weighted(credit: Credit, shares_N: Floats) -> Credit:
    """Return `credit` with its weights multiplied by N · share; all weights are 0 if all shares are 0."""
    total = shares_N.sum()
    factor_N = shares_N * len(shares_N) / total if total > 0 else np.zeros_like(shares_N)
    return Credit.of(credit.returns_N, credit.weights_N * factor_N)

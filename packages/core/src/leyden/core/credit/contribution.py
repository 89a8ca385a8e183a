"""Contribution weights: a user's function says how much each call had to do with the result."""

from dataclasses import dataclass

import numpy as np

from leyden.core.credit.base import Credit, Floats
from leyden.core.credit.checks import as_numbers, judged, load_function
from leyden.core.credit.over_another import OverAnother
from leyden.core.data.transition import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionCredit(OverAnother):
    """The base's returns, each transition trained as strongly as its share: w_n = base's w_n · N · share_n.

    Shares are scaled to sum to 1, so equal shares change nothing. A weight keeps the sign of an advantage, where a
    smaller return would make a small contributor to a success look like a failure. Biased unless all shares are equal.
    """

    shares: str
    """Import string of a function from a Trajectory to N numbers, none negative, one for each transition."""

    def __post_init__(self) -> None:
        load_function("shares", self.shares)

    def change(self, credit: Credit, trajectory: Trajectory) -> Credit:
        """Return the base's credit, weighted; raises TrainingError when the function's answer cannot be shares."""
        shares = judged("shares", self.shares, trajectory)
        return weighted(credit, as_numbers(self.shares, shares, len(credit.returns_N)))


def weighted(credit: Credit, shares_N: Floats) -> Credit:
    """Return `credit` with its weights multiplied by N · share; all of them 0 when no transition has a share."""
    total = shares_N.sum()
    factor_N = shares_N * len(shares_N) / total if total > 0 else np.zeros_like(shares_N)
    return Credit.of(credit.returns_N, credit.weights_N * factor_N)

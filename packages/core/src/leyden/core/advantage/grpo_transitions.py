"""GRPO as Agent Lightning groups it: over transitions (arXiv 2508.03680, section 3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leyden.core.advantage.base import Floats, GroupEstimator
from leyden.core.advantage.checks import check_eps


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPOTransitions(GroupEstimator):
    """GRPO over transitions: A_m = (G_m - mean(G)) / (std(G) + eps) over all M transitions of a task's rollouts.

    It serves for comparison with the paper and with trainers that put one row per call in a group. Biased: a rollout
    counts once per call, so the baseline depends on the rollout's own length. The deviation is biased as in `grpo`. In
    the example in which `grpo` is 11.0 degrees off, this is 14.0 degrees off.
    """

    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def centred(self, returns: Sequence[Floats]) -> list[Floats]:
        """Return the returns minus their mean over transitions."""
        mean = np.concatenate(returns).mean()
        return [returns_N - mean for returns_N in returns]

    def scaled(self, centred: Sequence[Floats]) -> Sequence[Floats]:
        """Return the centred returns, divided by the deviation over transitions, with Bessel's correction."""
        unit = np.concatenate(centred).std(ddof=1) + self.eps
        return [centred_N / unit for centred_N in centred]

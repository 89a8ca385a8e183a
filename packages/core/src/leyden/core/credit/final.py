"""Final credit: only the call that ended the attempt gets the reward."""

from dataclasses import dataclass

import numpy as np

from leyden.core.credit.base import Credit, CreditAssigner, distances_to_end
from leyden.core.data.transition import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalCredit(CreditAssigner):
    """Final credit: the last transition gets the reward, G_N = R; the others are not trained.

    Biased wherever an earlier call matters: it is the gradient of the last call's choice alone, as if the state before
    it were given. It suits agents whose earlier calls need no training, or whose last call does all the work. On the
    game of `testing.stopping_game` it is 18.2 degrees off.
    """

    def assign(self, trajectory: Trajectory) -> Credit | None:
        """Return the trajectory's reward, with weight 0 except on the last transition."""
        if trajectory.reward is None:
            return None
        distance_N = distances_to_end(trajectory.transitions)
        return Credit.of(np.full(len(distance_N), trajectory.reward), (distance_N == 0).astype(np.float64))

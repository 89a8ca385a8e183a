"""Final only: the call that ended the attempt answers for it."""

from dataclasses import dataclass

import numpy as np

from leyden.core.credit.base import Credit, CreditAssigner, distances_to_end
from leyden.core.data.transition import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalCredit(CreditAssigner):
    """The last transition is answerable for the reward, G_N = R; the others are not trained.

    Biased wherever an earlier call matters: it is the gradient of the last call's choice alone, as if what led there
    were given. For agents whose earlier calls are not worth teaching, and where one call does all the work. On the
    game of `testing.stopping_game` 18.2 degrees off.
    """

    def assign(self, trajectory: Trajectory) -> Credit | None:
        """Return the trajectory's reward, with no weight but on the last transition."""
        if trajectory.reward is None:
            return None
        distance_N = distances_to_end(trajectory.transitions)
        return Credit.of(np.full(len(distance_N), trajectory.reward), (distance_N == 0).astype(np.float64))

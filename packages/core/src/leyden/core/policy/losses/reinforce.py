"""REINFORCE: the plain policy gradient."""

from dataclasses import dataclass
from typing import ClassVar

from leyden.core.policy.losses.base import EntryLosses, Loss, LossEntries


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforce(Loss):
    """REINFORCE: -A log π (Williams 1992). Unbiased for tokens of the current policy, and without any bound.

    Its first optimizer step is on policy; later epochs and minibatches are not, and no ratio corrects them.
    """

    reads_ratios: ClassVar[bool] = False

    def of(self, seen: LossEntries) -> EntryLosses:
        """Return the loss of each entry."""
        return EntryLosses(loss_N=-seen.advantages_N * seen.logprobs_N)

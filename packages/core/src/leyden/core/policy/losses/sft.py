"""Supervised fine-tuning on what was written, or only on what turned out well."""

from dataclasses import dataclass
from typing import ClassVar

from leyden.core.policy.losses.base import EntryLosses, Loss, LossEntries


@dataclass(frozen=True, slots=True, kw_only=True)
class SFT(Loss):
    """-log π of every token, whoever wrote it: maximum likelihood."""

    reads_advantages: ClassVar[bool] = False
    reads_ratios: ClassVar[bool] = False

    def of(self, seen: LossEntries) -> EntryLosses:
        """Return the loss of each entry."""
        return EntryLosses(loss_N=-seen.logprobs_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection(Loss):
    """-log π of the tokens whose advantage is positive, 0 for the others (RAFT, arXiv 2304.06767).

    REINFORCE with A replaced by 1 or 0: it climbs towards what is better than the baseline, and how much better does
    not matter. Rejected tokens keep their part in the normalisation. Reported as clipped: the share rejected.
    """

    reads_ratios: ClassVar[bool] = False

    def of(self, seen: LossEntries) -> EntryLosses:
        """Return the loss of each entry."""
        rejected_N = seen.advantages_N <= 0
        return EntryLosses(loss_N=-seen.logprobs_N.masked_fill(rejected_N, 0.0), clipped_N=rejected_N)

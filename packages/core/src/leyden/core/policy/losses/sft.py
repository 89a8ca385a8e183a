"""Supervised fine-tuning losses: on all tokens, or only on tokens with a positive advantage."""

from dataclasses import dataclass
from typing import ClassVar

from leyden.core.policy.losses.base import EntryLosses, Loss, LossEntries


@dataclass(frozen=True, slots=True, kw_only=True)
class SFT(Loss):
    """Supervised fine-tuning: -log π of every token, from any source: maximum likelihood."""

    reads_advantages: ClassVar[bool] = False
    reads_ratios: ClassVar[bool] = False

    def of(self, seen: LossEntries) -> EntryLosses:
        """Return the loss of each entry."""
        return EntryLosses(loss_N=-seen.logprobs_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection(Loss):
    """Rejection: -log π of the tokens whose advantage is positive, 0 for the others (RAFT, arXiv 2304.06767).

    This is REINFORCE with A replaced by 1 or 0. It favours what is better than the baseline, regardless of how much
    better. Rejected tokens still count in the normalisation. The share of rejected tokens is reported as clipped.
    """

    reads_ratios: ClassVar[bool] = False

    def of(self, seen: LossEntries) -> EntryLosses:
        """Return the loss of each entry."""
        rejected_N = seen.advantages_N <= 0
        return EntryLosses(loss_N=-seen.logprobs_N.masked_fill(rejected_N, 0.0), clipped_N=rejected_N)

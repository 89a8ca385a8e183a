"""CISPO: clips the importance weight, so that every token keeps a gradient."""

from dataclasses import dataclass

from leyden.core.policy.losses.base import EntryLosses, Loss, LossEntries
from leyden.core.policy.losses.checks import check_clip


@dataclass(frozen=True, slots=True, kw_only=True)
class CISPO(Loss):
    """CISPO: -clip(r, 1 - low, 1 + high) A log π, with a constant clipped ratio (arXiv 2506.13585, eq. 4 and 5).

    Every token keeps a gradient, and the clip only limits its size. A clipped token is trained with a smaller weight
    than the unbiased one. Defaults: no lower bound, as in the paper, and ratios of at most 5.
    """

    clip_low: float = 1.0
    clip_high: float = 4.0

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high)

    def of(self, seen: LossEntries) -> EntryLosses:
        """Return the loss of each entry."""
        ratio_N = seen.log_ratio_N.detach().exp()
        held_N = ratio_N.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        return EntryLosses(loss_N=-held_N * seen.advantages_N * seen.logprobs_N, clipped_N=held_N != ratio_N)

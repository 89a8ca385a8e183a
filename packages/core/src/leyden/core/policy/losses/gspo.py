"""GSPO: PPO's clip on the ratio of a whole response."""

from dataclasses import dataclass

from leyden.core.policy.losses.base import EntryLosses, Loss, LossEntries, clipped_surrogate
from leyden.core.policy.losses.checks import check_clip
from leyden.core.policy.losses.segments import transition_means
from leyden.core.policy.update.ratios import LOG_RATIO_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class GSPO(Loss):
    """GSPO: -min(s A, clip(s, 1 - low, 1 + high) A), with the ratio s of a response (arXiv 2507.18071).

    s = (π(response) / π_proximal(response))^(1/tokens). These are equations 5 to 7, over the tokens of one transition,
    that is one model call, even if it was merged with others. s is far closer to 1 than a token's ratio, hence the
    narrow default clip, which is the paper's. Every token of a transition has its whole loss, so with weights of 1 /
    (transitions × tokens) the sum is the paper's mean.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high)

    def of(self, seen: LossEntries) -> EntryLosses:
        """Return the loss of each entry."""
        log_ratio_N = transition_means(seen.transition_N, seen.logprobs_N - seen.proximal_N)
        ratio_N = log_ratio_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        loss_N, clipped_N = clipped_surrogate(ratio_N, seen.advantages_N, self.clip_low, self.clip_high)
        return EntryLosses(loss_N=loss_N, clipped_N=clipped_N)

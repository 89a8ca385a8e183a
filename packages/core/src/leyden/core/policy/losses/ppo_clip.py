"""PPO's clipped surrogate, with separate lower and upper clip bounds."""

from dataclasses import dataclass

from leyden.core.policy.losses.base import EntryLosses, Loss, LossEntries, clipped_surrogate
from leyden.core.policy.losses.checks import check_clip


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOClip(Loss):
    """PPO clip: -min(r A, clip(r, 1 - low, 1 + high) A) for each token, r = π / π_proximal (arXiv 1707.06347, eq. 7).

    `clip_high` above `clip_low` is DAPO's clip-higher (arXiv 2503.14476, section 3.1), which lets unlikely tokens
    become more likely. A clipped token biases the result towards the proximal policy.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high)

    def of(self, seen: LossEntries) -> EntryLosses:
        """Return the loss of each entry."""
        loss_N, clipped_N = clipped_surrogate(seen.log_ratio_N.exp(), seen.advantages_N, self.clip_low, self.clip_high)
        return EntryLosses(loss_N=loss_N, clipped_N=clipped_N)

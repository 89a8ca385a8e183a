"""Dual clip: PPO's clipped surrogate with a bound for tokens of negative advantage."""

from dataclasses import dataclass

from leyden.core.errors import UsageError
from leyden.core.policy.losses.base import EntryLosses, Loss, LossEntries, clipped_surrogate
from leyden.core.policy.losses.checks import check_clip


@dataclass(frozen=True, slots=True, kw_only=True)
class DualClip(Loss):
    """Dual clip: PPO's clip and, for A < 0, max(min(r A, clip(r) A), c A), negated (arXiv 1912.09729).

    A token with negative advantage whose probability has grown by more than the factor `clip_dual` = c since it was
    sampled gets no gradient. PPO's own bound does not limit this case.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_dual: float = 3.0

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high)
        if not self.clip_dual > 1 + self.clip_high:
            raise UsageError(f"clip_dual must be above 1 + clip_high, got {self.clip_dual}")

    def of(self, seen: LossEntries) -> EntryLosses:
        """Return the loss of each entry."""
        loss_N, clipped_N = clipped_surrogate(seen.log_ratio_N.exp(), seen.advantages_N, self.clip_low, self.clip_high)
        most_N = -self.clip_dual * seen.advantages_N
        beyond_N = ((seen.advantages_N < 0) & (loss_N > most_N)).detach()
        return EntryLosses(loss_N=most_N.where(beyond_N, loss_N), clipped_N=clipped_N | beyond_N)

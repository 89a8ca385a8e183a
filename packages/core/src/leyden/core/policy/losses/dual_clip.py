"""PPO's clipped surrogate with a floor under punished tokens."""

from dataclasses import dataclass

from leyden.core.errors import UsageError
from leyden.core.policy.losses.base import EntryLosses, Loss, LossEntries, clipped_surrogate
from leyden.core.policy.losses.checks import check_clip


@dataclass(frozen=True, slots=True, kw_only=True)
class DualClip(Loss):
    """PPO's clip and, where A < 0, max(min(r A, clip(r) A), c A), negated (arXiv 1912.09729).

    A punished token that has become far likelier than when it was drawn, by more than `clip_dual` = c, moves the
    policy no more: PPO's own bound leaves that side open.
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

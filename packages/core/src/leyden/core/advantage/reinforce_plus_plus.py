"""REINFORCE++: one baseline and one unit for the whole batch (arXiv 2501.03262)."""

from collections.abc import Sequence
from dataclasses import dataclass

from leyden.core.advantage.base import AdvantageEstimator, Group, GroupAdvantages
from leyden.core.advantage.checks import check_eps
from leyden.core.advantage.whitening import Counting, whitened_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlus(AdvantageEstimator):
    """REINFORCE++: A_m = (G_m - mean(G)) / sqrt(var(G) + eps) over the transitions of the batch.

    It needs no group: a single rollout of a task counts, and so does a task whose rollouts all have the same reward.
    The paper's KL penalty is a part of the rewards and not included here. Biased, but less in larger batches: mean and
    deviation include the rollout's own return and, over transitions, also its length. In a batch of three rollouts of
    the game of `testing.stopping_game` it is 11.0 degrees off, as `grpo` is in every batch.
    """

    counting: Counting = "rollout"
    """`transition` counts each call once, as implementations with one row per call do."""
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def estimate(self, groups: Sequence[Group]) -> list[GroupAdvantages]:
        """Return the returns, whitened over all groups."""
        returns = [[rollout.returns_N for rollout in group if len(rollout.returns_N)] for group in groups]
        return whitened_groups(groups, returns, self.counting, self.eps)

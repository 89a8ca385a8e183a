"""GAE: generalized advantage estimation with a critic (arXiv 1506.02438, eq. 16), for PPO."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from leyden.core.advantage.base import AdvantageEstimator, Floats, Group, GroupAdvantages, in_order, is_zero
from leyden.core.advantage.checks import check_eps, check_share
from leyden.core.advantage.whitening import Counting, whitened_groups
from leyden.core.errors import TrainingError


def gae(rewards_T: Floats, values_T: Floats, gamma: float, lam: float) -> Floats:
    """Return `advantages_T`: Σ_k (gamma lam)^k δ_(t+k), δ_t = r_t + gamma V_(t+1) - V_t, V = 0 after the last.

    T are the steps of one rollout, either transitions or tokens. A critic's targets are `advantages_T + values_T`.
    """
    advantages_T = np.zeros_like(rewards_T)
    following, value = 0.0, 0.0
    for t in range(len(rewards_T) - 1, -1, -1):
        delta = rewards_T[t] + gamma * value - values_T[t]
        following = delta + gamma * lam * following
        advantages_T[t], value = following, values_T[t]
    return advantages_T


@dataclass(frozen=True, slots=True, kw_only=True)
class GAE(AdvantageEstimator):
    """GAE: A_n = Σ_k (gamma lam)^k δ_(n+k) over the transitions of a rollout, then whitened over the batch.

    Rewards are the differences of returns, r_n = G_n - gamma G_(n+1), so gamma should be that of the credit: 1 unless
    the credit discounts. Without whitening it is unbiased for lam 1 with any critic, and for any lam with an exact
    critic. It is biased for lam < 1 with a wrong critic. Whitening adds a bias, which is smaller for larger batches.
    """

    needs_values: ClassVar[bool] = True

    gamma: float = 1.0
    lam: float = 0.95
    whiten: bool = True
    counting: Counting = "rollout"
    """Whether each rollout or each transition counts once in whitening."""
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_share("gamma", self.gamma)
        check_share("lam", self.lam)
        check_eps(self.eps)

    def estimate(self, groups: Sequence[Group]) -> list[GroupAdvantages]:
        """Return the estimates of all groups; raises TrainingError if a rollout has no values."""
        advantages = [self._of_group(group) for group in groups]
        if self.whiten:
            return whitened_groups(groups, advantages, self.counting, self.eps)
        return [_plain(group, own) for group, own in zip(groups, advantages, strict=True)]

    def _of_group(self, group: Group) -> list[Floats]:
        found: list[Floats] = []
        for rollout in group:
            if len(rollout.returns_N) == 0:
                continue
            if rollout.values_N is None:
                raise TrainingError("GAE needs the values of a critic, and the rollout has none")
            rewards_N = rollout.returns_N - self.gamma * np.append(rollout.returns_N[1:], 0.0)
            found.append(gae(rewards_N, rollout.values_N, self.gamma, self.lam))
        return found


def _plain(group: Group, advantages: Sequence[Floats]) -> GroupAdvantages:
    if not advantages:
        return GroupAdvantages(dropped="no credited call" if group else "fewer than two rewards")
    if is_zero(advantages, [rollout.returns_N for rollout in group if len(rollout.returns_N)]):
        return GroupAdvantages(dropped="no spread")
    return GroupAdvantages(advantages=in_order(group, advantages))

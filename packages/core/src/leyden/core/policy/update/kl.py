"""KL to a reference policy: Schulman's three estimators for the loss, and the penalty for the reward.

With x = log π - log π_ref of a token sampled from π, all three estimate KL(π ‖ π_ref) in that state:

    k1 = x                    unbiased, high variance, may be negative
    k2 = x² / 2               biased, low variance
    k3 = exp(-x) - 1 + x      unbiased, never negative, unbounded where the reference's probability is far higher

A loss term acts only by its gradient. For a token sampled from π, the expected gradient is

    ∇k1   0: in a loss it is noise without effect, so a loss refuses it
    ∇k2   ∇KL(π ‖ π_ref), exactly
    ∇k3   ∇KL(π_ref ‖ π), the other direction, which weighs tokens by the reference's probability

This holds in the token's own state. No term in the loss covers that the policy also changes which states it visits. The
penalty in the reward does: its policy gradient is that of E[reward] - coefficient × KL of whole rollouts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from leyden.core.policy.update.entries import Floats, WeightedTransition
from leyden.core.policy.update.ratios import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from torch import Tensor

KLEstimator = Literal["k2", "k3"]


def kl_terms(logprobs_N: "Tensor", reference_N: "Tensor", estimator: Literal["k1", "k2", "k3"]) -> "Tensor":
    """Return the estimate of each token; log-ratios of k3 are limited to ±20."""
    log_ratio_N = logprobs_N - reference_N
    if estimator == "k1":
        return log_ratio_N
    if estimator == "k2":
        return log_ratio_N.square() / 2
    held_N = log_ratio_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (-held_N).expm1() + held_N


def reward_penalties(
    trained: Sequence[WeightedTransition],
    policy: Sequence[Floats],
    reference: Sequence[Floats],
    coefficient: float,
) -> list[Floats]:
    """Return for each transition what is added to its tokens' advantages: -coefficient × Σ k1 of this and later tokens.

    Later tokens are the rest of the response and the rollout's later transitions, in the given order. The sum is the
    return-to-go of a reward of -coefficient × k1 per token. `policy` and `reference` are log-probabilities of each
    response. There is no baseline, so the expected gradient stays unbiased and the variance grows. The penalty is added
    after the advantage estimator, so it is not divided by a group's standard deviation. Transitions that are not
    trained get no penalty.
    """
    later: dict[tuple[str, str], float] = {}
    penalties: list[Floats] = []
    for item, policy_T, reference_T in reversed(list(zip(trained, policy, reference, strict=True))):
        to_go_T = np.cumsum((policy_T - reference_T)[::-1])[::-1] + later.get(item.rollout, 0.0)
        later[item.rollout] = float(to_go_T[0])
        penalties.append(-coefficient * to_go_T)
    return penalties[::-1]

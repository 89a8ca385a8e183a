"""KL to a reference policy: Schulman's three estimators in the loss, and the penalty in the reward. Knows no model.

With x = log π - log π_ref of a token drawn from π, all three are estimates of KL(π ‖ π_ref) in that state:

    k1 = x                    unbiased, high variance, may be negative
    k2 = x² / 2               biased, low variance
    k3 = exp(-x) - 1 + x      unbiased, never negative, unbounded where the reference is far likelier

Their *gradients*, which is all a loss term is for, are another matter. Of a token drawn from π the expectation of

    ∇k1 is 0: in a loss it is noise that restrains nothing, so it is refused there
    ∇k2 is ∇KL(π ‖ π_ref), exactly
    ∇k3 is ∇KL(π_ref ‖ π), the other direction: it minds most the tokens that the reference likes

for the token's own state: that the policy also changes which states it meets, no term in the loss can see. The penalty
in the reward does: with it, the policy gradient is that of E[reward] - coefficient × KL of whole rollouts.
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
    """Return the estimate of each token; log-ratios of k3 are held within ±20."""
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
    """Return for each transition what to add to its tokens' advantages: -coefficient × Σ k1 of this and later tokens.

    Later are the rest of the response and the rollout's later transitions, in the order given: the return-to-go of a
    reward of -coefficient × k1 per token, `policy` and `reference` being log-probabilities of each response. Without a
    baseline, so it leaves the expected gradient unbiased and adds variance. It is added after the estimator, and not
    divided by a group's deviation with the rewards. Transitions that are not trained pay nothing.
    """
    later: dict[tuple[str, str], float] = {}
    penalties: list[Floats] = []
    for item, policy_T, reference_T in reversed(list(zip(trained, policy, reference, strict=True))):
        to_go_T = np.cumsum((policy_T - reference_T)[::-1])[::-1] + later.get(item.rollout, 0.0)
        later[item.rollout] = float(to_go_T[0])
        penalties.append(-coefficient * to_go_T)
    return penalties[::-1]

"""Measurements before a step: mismatch of policies, and distance to the reference policy.

The results are weights, advantages and log-probabilities of single tokens, which are fixed before batching.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from leyden.core.policy.capability_checks import Capabilities
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.replay import replay
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import TokenMeasures, WeightedTransition, behaviour
from leyden.core.policy.update.kl import reward_penalties
from leyden.core.policy.update.ratios import RatioSpread


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The difference between the policy that a step starts from and the policy that sampled its tokens."""

    ratios: RatioSpread
    """π_start / π_behaviour of single tokens that have recorded log-probabilities."""
    corrected_fraction: float = 0.0
    """Share of tokens whose importance weight was truncated or masked."""

    def metrics(self) -> dict[str, float]:
        """Return the mismatch as flat metrics for a log."""
        return {
            **self.ratios.metrics("mismatch_ratio"),
            **({"mismatch_kl": self.ratios.kl} if self.ratios.count else {}),
            "corrected_fraction": self.corrected_fraction,
        }


def measure(
    model: PolicyModel,
    reference: PolicyModel | None,
    trained: Sequence[WeightedTransition],
    config: UpdateConfig,
    exactness: Capabilities,
) -> tuple[list[WeightedTransition], Mismatch | None]:
    """Return the transitions with the measurements that `config` needs, and the mismatch if it is corrected.

    A correction needs one forward pass over everything, and a reference policy another one.
    """
    behaviours = [behaviour(item.transition) for item in trained]
    proximal, factors, mismatch = behaviours, [np.ones_like(own_T) for own_T in behaviours], None
    correction = config.make_correction()
    if correction is not None:
        proximal = replay(model, trained, config.token_budget, exactness, merge=config.merge)
        log_ratios = [start_T - own_T for start_T, own_T in zip(proximal, behaviours, strict=True)]
        factors = [correction.factors(log_ratio_T) for log_ratio_T in log_ratios]
        unbounded = [correction.unbounded(log_ratio_T) for log_ratio_T in log_ratios]
        corrected = int(np.count_nonzero(np.concatenate(factors) != np.concatenate(unbounded)))
        ratios = RatioSpread.of(np.concatenate(log_ratios))
        mismatch = Mismatch(ratios=ratios, corrected_fraction=corrected / ratios.count)
    references = [own_T + np.nan for own_T in behaviours]
    if reference is not None:
        references = replay(reference, trained, config.token_budget, exactness, merge=config.merge)
    penalties = [np.zeros_like(own_T) for own_T in behaviours]
    if config.kl_reward:
        penalties = reward_penalties(trained, proximal, references, config.kl_reward)
    findings = map(TokenMeasures, proximal, references, penalties, factors)
    return [replace(item, measured=found) for item, found in zip(trained, findings, strict=True)], mismatch

"""Held-out metrics: computed from log-probabilities of transitions that a policy does not train on."""

from collections.abc import Sequence

import numpy as np
import torch

from leyden.core.policy.losses.base import Loss, LossEntries
from leyden.core.policy.losses.dpo import pair_weights
from leyden.core.policy.update.entries import Floats, WeightedTransition


def token_numbers(own: Sequence[Floats]) -> dict[str, float]:
    """Return `loss`, the mean -log π over the tokens of all transitions; `own` has the `logprobs_T` of each."""
    return {"loss": -float(np.concatenate(own).mean())}


@torch.no_grad()
def pair_numbers(
    loss: Loss, pairs: Sequence[WeightedTransition], own: Sequence[Floats], reference: Sequence[Floats]
) -> dict[str, float]:
    """Return `loss`, the mean of a loss of pairs, and means of what it records, such as `accuracy` and `margin`.

    `own` and `reference` hold the log-probabilities of each transition's tokens, under the policy and under the
    reference policy. Values are NaN without a reference policy.
    """
    counts = [len(logprobs_T) for logprobs_T in own]
    own_N, reference_N = (torch.as_tensor(np.concatenate(found)) for found in (own, reference))
    nothing_N = torch.zeros_like(own_N)
    weights_N = torch.as_tensor(np.repeat(pair_weights(pairs), counts))
    seen = LossEntries(
        transition_N=torch.as_tensor(np.repeat(np.arange(len(counts)), counts)),
        logprobs_N=own_N,
        entropy_N=nothing_N,
        proximal_N=own_N,
        reference_N=reference_N,
        advantages_N=nothing_N,
        weights_N=weights_N,
    )
    found = loss.of(seen)
    noted = {name.rpartition("_")[2]: float(value_U.double().mean()) for name, value_U in found.noted.items()}
    return {"loss": float((weights_N * found.loss_N).sum()), **{name: noted[name] for name in sorted(noted)}}

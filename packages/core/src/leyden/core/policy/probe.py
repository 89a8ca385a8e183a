"""Probes: small checks of whether an update changed a policy, and whether other programs compute the same numbers."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from leyden.core.data.transition import Transition
from leyden.core.policy.capability_checks import prove
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.replay import replay
from leyden.core.policy.update.entries import Floats, WeightedTransition, behaviour

SPREAD = 0.02
"""Minimum standard deviation assumed for weights, because those of a new adapter are 0."""


def fingerprint(model: PolicyModel) -> dict[str, tuple[float, float]]:
    """Return the sum and the sum of squares of each weight tensor, which an update changes."""
    return {name: _numbers(tensor) for name, tensor in model.weights().items()}


def changed(before: Mapping[str, tuple[float, float]], model: PolicyModel) -> tuple[int, int]:
    """Return how many weight tensors differ from `before`, a `fingerprint`, and how many there are."""
    current = fingerprint(model)
    return sum(before.get(name) != numbers for name, numbers in current.items()), len(current)


@torch.no_grad()
def shake(model: PolicyModel, share: float, seed: int = 0) -> None:
    """Add noise to everything that is trained, so that a process serving the policy must show a change.

    The noise is `share` of each tensor's standard deviation. The policy is useless afterwards.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        spread = float(parameter.std(correction=0))
        parameter.add_(noise, alpha=share * max(spread, SPREAD))


def recomputed(model: PolicyModel, calls: Sequence[Transition], token_budget: int | None = None) -> Floats:
    """Return recorded minus recomputed log-probabilities of all response tokens of `calls`, concatenated."""
    given = [WeightedTransition(transition=call, advantage=0.0) for call in calls]
    found = replay(model, given, token_budget, prove(model))
    pairs = zip(given, found, strict=True)
    return np.concatenate([behaviour(item.transition) - now_T for item, now_T in pairs])


def _numbers(tensor: Tensor) -> tuple[float, float]:
    wide = tensor.detach().double()
    return float(wide.sum()), float(wide.square().sum())

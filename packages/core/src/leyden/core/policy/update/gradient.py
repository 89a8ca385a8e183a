"""Gradient accumulation: adds up the gradient of a loss over token sequences, in micro-batches.

Invariant: the gradient is the same, up to rounding, for every token budget and with every faster computation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from leyden.core.policy.capability_checks import Capabilities
from leyden.core.policy.logprobs import read_entries
from leyden.core.policy.losses.base import LossEntries
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.replay import read_prefix
from leyden.core.policy.update.diagnostics import Diagnostics
from leyden.core.policy.update.entries import Ints
from leyden.core.policy.update.merge import TokenSequence
from leyden.core.policy.update.micro_batches import micro_batches
from leyden.core.policy.update.objective import Objective
from leyden.core.policy.update.token_record import TokenNumbers

StateLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Function from `transition_N` and `hidden_NH` of a batch's entries to an additional loss of their states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatedGradient:
    """Results of one accumulation, in addition to the gradients in the model."""

    loss: float
    diagnostics: Diagnostics
    tokens_read: int
    """Tokens that the model processed, padding included."""
    transition_N: Ints
    """Index of the transition of each entry that was read; a transition's entries are in the order of its tokens."""
    numbers: TokenNumbers
    """Numbers of these entries."""


def accumulate(
    model: PolicyModel,
    sequences: Sequence[TokenSequence],
    objective: Objective,
    token_budget: int | None,
    exactness: Capabilities,
    state_loss: StateLoss | None = None,
) -> AccumulatedGradient:
    """Add the gradient of `objective` over all entries of `sequences` to the model's gradients.

    `state_loss` is a second objective on the same forward pass. Both share one backward pass, and the returned loss is
    only the first. The entries of a transition are adjacent, and the output head's input at its first entry is the
    state before the response. If the loss takes several transitions together, each must be a sequence of its own, in
    order.
    """
    prefix, length = read_prefix(model, sequences, exactness)
    total, tokens_read = 0.0, length
    diagnostics: list[Diagnostics] = []
    transitions: list[Ints] = []
    numbers: list[TokenNumbers] = []
    width = model.width if exactness.branches else None
    for batch in micro_batches(sequences, token_budget, length, objective.loss.together, width):
        part = batch.to(model.device, model.dtype)
        hidden_NH, (logprobs_N, entropy_N) = read_entries(
            model, part, prefix, plain_head=exactness.plain_head, entropy_gradient=objective.entropy > 0
        )
        found = objective.of(
            LossEntries(
                transition_N=part.transition_N,
                logprobs_N=logprobs_N,
                entropy_N=entropy_N,
                proximal_N=part.proximal_N,
                reference_N=part.reference_N,
                advantages_N=part.advantage_N,
                weights_N=part.weight_N,
            )
        )
        extra_losses = () if state_loss is None else (state_loss(part.transition_N, hidden_NH),)
        torch.autograd.backward([found.value, *extra_losses])
        total += found.value.item()
        tokens_read += part.ids_BT.numel()
        diagnostics.append(found.diagnostics)
        transitions.append(batch.transition_N.numpy())
        numbers.append(found.numbers)
    if prefix is not None:
        prefix.backward()
    return AccumulatedGradient(
        loss=total,
        diagnostics=Diagnostics.combined(diagnostics),
        tokens_read=tokens_read,
        transition_N=np.concatenate(transitions),
        numbers=TokenNumbers.joined(numbers),
    )

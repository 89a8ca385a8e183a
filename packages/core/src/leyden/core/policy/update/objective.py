"""Objective: what one optimizer step minimises: a loss, a KL penalty and an entropy bonus.

It is a pure function of flat entries. Invariant: if the entries are divided by the loss's units, the objectives of the
parts add up to the objective of all entries.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leyden.core.policy.losses.base import EntryLosses, Loss, LossEntries
from leyden.core.policy.update.diagnostics import Diagnostics
from leyden.core.policy.update.kl import KLEstimator, kl_terms
from leyden.core.policy.update.token_record import TokenNumbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObjectiveValue:
    """The value to minimise, and its diagnostics."""

    value: Tensor
    diagnostics: Diagnostics
    numbers: TokenNumbers
    """Numbers of the N entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Σ w (loss + kl × estimate of KL(π ‖ π_ref) - entropy × H): every term has the weights of the entries."""

    loss: Loss
    kl: float = 0.0
    kl_estimator: KLEstimator = "k2"
    entropy: float = 0.0
    """Coefficient of the entropy in visited states; it cannot account for the policy's choice of these states."""

    def of(self, seen: LossEntries) -> ObjectiveValue:
        """Return the objective of N entries."""
        losses = self.loss.of(seen)
        total_N = losses.loss_N
        if self.kl:
            total_N = total_N + self.kl * kl_terms(seen.logprobs_N, seen.reference_N, self.kl_estimator)
        if self.entropy:
            total_N = total_N - self.entropy * seen.entropy_N
        weighted_N = seen.weights_N * total_N
        diagnostics, numbers = _measured(seen, losses, weighted_N.detach())
        return ObjectiveValue(value=weighted_N.sum(), diagnostics=diagnostics, numbers=numbers)


@torch.no_grad()
def _measured(seen: LossEntries, losses: EntryLosses, weighted_N: Tensor) -> tuple[Diagnostics, TokenNumbers]:
    """Return diagnostics and the entries' numbers; all leave the device in one transfer, to wait for it only once."""
    clipped_N = losses.clipped_N
    # If the model computes NaN, the ratio counts as infinite. NaN in the result means that there is no proximal policy.
    log_ratio_N = (seen.logprobs_N - seen.proximal_N).nan_to_num(nan=torch.inf)
    columns = [
        log_ratio_N.masked_fill(seen.proximal_N.isnan(), torch.nan),
        torch.zeros_like(seen.logprobs_N) if clipped_N is None else clipped_N.to(seen.logprobs_N.dtype),
        seen.entropy_N,
        kl_terms(seen.logprobs_N, seen.reference_N, "k3"),
        seen.logprobs_N,
        seen.advantages_N,
        seen.weights_N,
        weighted_N,
    ]
    log_ratio, clipped, entropy, kl, logprobs, advantages, weights, loss = torch.stack(columns).cpu().double().numpy()
    found = Diagnostics.of(log_ratio, clipped, entropy, kl)
    numbers = TokenNumbers(
        logprobs=logprobs,
        log_ratios=log_ratio,
        advantages=advantages,
        weights=weights,
        losses=loss,
        clipped=clipped,
        entropy=entropy,
    )
    if not losses.noted:
        return found, numbers
    totals = torch.stack([noted_U.double().sum() for noted_U in losses.noted.values()]).cpu().numpy().tolist()
    units = len(next(iter(losses.noted.values())))
    return replace(found, units=units, noted=dict(zip(losses.noted, totals, strict=True))), numbers

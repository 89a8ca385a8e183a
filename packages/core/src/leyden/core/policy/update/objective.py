"""What one optimizer step minimises: a loss, a penalty on distance to a reference, a bonus for entropy.

A pure function of flat entries: it knows nothing of models, sequences or batches. Invariant: the objectives of any
partition of the entries into the loss's units add up to the objective of all of them.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leyden.core.policy.losses.base import EntryLosses, Loss, LossEntries
from leyden.core.policy.update.diagnostics import Diagnostics
from leyden.core.policy.update.kl import KLEstimator, kl_terms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObjectiveValue:
    """A number to minimise, and what it looked like."""

    value: Tensor
    diagnostics: Diagnostics


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Σ w (loss + kl × estimate of KL(π ‖ π_ref) - entropy × H): every term has the weights of the entries."""

    loss: Loss
    kl: float = 0.0
    kl_estimator: KLEstimator = "k2"
    entropy: float = 0.0
    """The bonus raises the entropy in the states met; that the policy chooses which states it meets, it cannot see."""

    def of(self, seen: LossEntries) -> ObjectiveValue:
        """Return the objective of N entries."""
        losses = self.loss.of(seen)
        total_N = losses.loss_N
        if self.kl:
            total_N = total_N + self.kl * kl_terms(seen.logprobs_N, seen.reference_N, self.kl_estimator)
        if self.entropy:
            total_N = total_N - self.entropy * seen.entropy_N
        return ObjectiveValue(value=(seen.weights_N * total_N).sum(), diagnostics=_diagnostics(seen, losses))


@torch.no_grad()
def _diagnostics(seen: LossEntries, losses: EntryLosses) -> Diagnostics:
    """One transfer from the device: it would wait for it once per number otherwise."""
    clipped_N = losses.clipped_N
    # A model that computes no number is as far off as can be; NaN says that there is nothing to compare it with.
    log_ratio_N = (seen.logprobs_N - seen.proximal_N).nan_to_num(nan=torch.inf)
    columns = [
        log_ratio_N.masked_fill(seen.proximal_N.isnan(), torch.nan),
        torch.zeros_like(seen.logprobs_N) if clipped_N is None else clipped_N.to(seen.logprobs_N.dtype),
        seen.entropy_N,
        kl_terms(seen.logprobs_N, seen.reference_N, "k3"),
    ]
    found = Diagnostics.of(*torch.stack(columns).cpu().double().numpy())
    if not losses.noted:
        return found
    totals = torch.stack([noted_U.double().sum() for noted_U in losses.noted.values()]).cpu().numpy().tolist()
    units = len(next(iter(losses.noted.values())))
    return replace(found, units=units, noted=dict(zip(losses.noted, totals, strict=True)))

"""What an update looked like: how far the policy moved, what was clipped, how undecided it is. Knows no loss.

Diagnostics of parts combine to those of the whole: counts and quantiles bit for bit, sums up to rounding.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from leyden.core.policy.update.entries import Floats
from leyden.core.policy.update.ratios import RatioSpread


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """Of the tokens of one or more passes over entries; means are over tokens, unweighted."""

    tokens: int
    """Tokens, each counted as often as it was gone through."""
    ratios: RatioSpread
    """π / π_proximal of single tokens, whatever ratio the loss itself takes, where it is known who drew them."""
    clipped: int
    """Tokens that the loss held back from moving the policy as they would."""
    entropy_total: float
    """Σ entropy, in nats, of the distributions the tokens were drawn from."""
    reference_kl_total: float | None = None
    """Σ k3 of KL(π ‖ π_ref), where there is a reference."""
    units: int = 0
    """The loss's units, each counted as often as it was gone through; counted only where it notes something of them."""
    noted: Mapping[str, float] = field(default_factory=dict[str, float])
    """Σ of what the loss notes of its units, by name."""

    @classmethod
    def of(cls, log_ratio_N: Floats, clipped_N: Floats, entropy_N: Floats, reference_kl_N: Floats) -> "Diagnostics":
        """Return the diagnostics of N tokens.

        `log_ratio_N` is NaN where there is nothing to compare with, `reference_kl_N` where there is no reference.
        """
        kl = float(reference_kl_N.sum())
        return cls(
            tokens=len(log_ratio_N),
            ratios=RatioSpread.of(log_ratio_N[~np.isnan(log_ratio_N)]),
            clipped=int(np.count_nonzero(clipped_N)),
            entropy_total=float(entropy_N.sum()),
            reference_kl_total=None if math.isnan(kl) else kl,
        )

    @classmethod
    def combined(cls, parts: Sequence["Diagnostics"]) -> "Diagnostics":
        """Return the diagnostics of all tokens of `parts`, which must not be empty."""
        kls = [part.reference_kl_total for part in parts if part.reference_kl_total is not None]
        noted = {name for part in parts for name in part.noted}
        return cls(
            tokens=sum(part.tokens for part in parts),
            ratios=RatioSpread.combined([part.ratios for part in parts]),
            clipped=sum(part.clipped for part in parts),
            entropy_total=math.fsum(part.entropy_total for part in parts),
            reference_kl_total=math.fsum(kls) if len(kls) == len(parts) else None,
            units=sum(part.units for part in parts),
            noted={name: math.fsum(part.noted.get(name, 0.0) for part in parts) for name in sorted(noted)},
        )

    @property
    def clip_fraction(self) -> float:
        """Share of tokens that the loss held back."""
        return self.clipped / self.tokens

    @property
    def entropy(self) -> float:
        """Mean entropy in nats."""
        return self.entropy_total / self.tokens

    def metrics(self) -> dict[str, float]:
        """The diagnostics as flat numbers, for a log."""
        numbers = {
            **self.ratios.metrics("ratio"),
            "clip_fraction": self.clip_fraction,
            **({"approx_kl": self.ratios.kl} if self.ratios.count else {}),
            "entropy": self.entropy,
            **{name: total / self.units for name, total in self.noted.items()},
        }
        if self.reference_kl_total is not None:
            numbers["reference_kl"] = self.reference_kl_total / self.tokens
        return numbers

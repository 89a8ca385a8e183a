"""Update diagnostics: how far the policy moved, how many tokens were clipped, and the entropy.

Diagnostics of parts can be combined into those of the whole: counts and quantiles exactly, sums up to rounding.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from leyden.core.policy.update.entries import Floats
from leyden.core.policy.update.ratios import RatioSpread


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """Diagnostics of the tokens of one or more passes over entries; means are over tokens, without weights."""

    tokens: int
    """Number of tokens; each counts once per pass."""
    ratios: RatioSpread
    """π / π_proximal of single tokens, whichever ratio the loss uses; only tokens with a known π_proximal."""
    clipped: int
    """Number of tokens whose effect on the policy the loss limited."""
    entropy_total: float
    """Σ entropy, in nats, of the distributions at the tokens' positions."""
    reference_kl_total: float | None = None
    """Σ k3 of KL(π ‖ π_ref); None without a reference."""
    units: int = 0
    """Number of the loss's units, each counted once per pass; 0 if the loss records nothing about them."""
    noted: Mapping[str, float] = field(default_factory=dict[str, float])
    """Σ of each number that the loss records about its units, by name."""

    @classmethod
    def of(cls, log_ratio_N: Floats, clipped_N: Floats, entropy_N: Floats, reference_kl_N: Floats) -> "Diagnostics":
        """Return the diagnostics of N tokens.

        `log_ratio_N` is NaN without a policy to compare with, and `reference_kl_N` without a reference.
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
        """Share of tokens whose effect the loss limited."""
        return self.clipped / self.tokens

    @property
    def entropy(self) -> float:
        """Mean entropy in nats."""
        return self.entropy_total / self.tokens

    def metrics(self) -> dict[str, float]:
        """Return the diagnostics as flat metrics for a log."""
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

"""Ratio statistics: how far probability ratios are from 1, in a form that can be added up.

Quantiles come from counts in fixed bins of the log-ratio, as in DDSketch (arXiv 1908.10693). Counts of parts add up to
the counts of the whole. A quantile is therefore the same for every batching of the tokens, and within 0.5 % of the
exact one.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from leyden.core.policy.update.entries import Floats

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are limited to ±20 before the exponential: far beyond, ratios overflow into NaN gradients."""

BIN = 0.01
"""Width of a bin, in nats. A ratio of 1 is in the middle of a bin, so it is reported as exactly 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioSpread:
    """The spread of N ratios p/q of tokens sampled from q. Sums are exact up to rounding, counts are exact.

    If N is 0, there are no means, quantiles or metrics.
    """

    count: int
    total: float
    """Σ ratio."""
    squares: float
    """Σ ratio²."""
    smallest: float
    largest: float
    deviation: float
    """Largest |ratio - 1|."""
    kl_total: float
    """Σ ratio - 1 - log ratio: each term is Schulman's k3, never negative, an unbiased estimate of KL(q ‖ p)."""
    bins: Mapping[int, int]
    """Counts by bin; bin b holds the log-ratios that round to b × BIN."""

    @classmethod
    def of(cls, log_ratio_N: Floats) -> "RatioSpread":
        """Return the spread of exp(log_ratio_N); NaN counts as the largest allowed ratio."""
        if not len(log_ratio_N):
            return cls(
                count=0,
                total=0.0,
                squares=0.0,
                smallest=math.inf,
                largest=-math.inf,
                deviation=0.0,
                kl_total=0.0,
                bins={},
            )
        held_N = np.clip(np.nan_to_num(log_ratio_N, nan=LOG_RATIO_LIMIT), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        excess_N = np.expm1(held_N)
        ratio_N = np.exp(held_N)
        bins, counts = np.unique(np.rint(held_N / BIN).astype(np.int64), return_counts=True)
        return cls(
            count=len(held_N),
            total=float(ratio_N.sum()),
            squares=float(np.square(ratio_N).sum()),
            smallest=float(ratio_N.min()),
            largest=float(ratio_N.max()),
            deviation=float(np.abs(excess_N).max()),
            kl_total=float((excess_N - held_N).sum()),
            bins=dict(zip(bins.tolist(), counts.tolist(), strict=True)),
        )

    @classmethod
    def combined(cls, parts: Sequence["RatioSpread"]) -> "RatioSpread":
        """Return the spread of all ratios of `parts`, which must not be empty."""
        bins = Counter[int]()
        for part in parts:
            bins.update(part.bins)
        return cls(
            count=sum(part.count for part in parts),
            total=math.fsum(part.total for part in parts),
            squares=math.fsum(part.squares for part in parts),
            smallest=min(part.smallest for part in parts),
            largest=max(part.largest for part in parts),
            deviation=max(part.deviation for part in parts),
            kl_total=math.fsum(part.kl_total for part in parts),
            bins=dict(bins),
        )

    @property
    def mean(self) -> float:
        """Mean ratio; its expectation is 1."""
        return self.total / self.count

    @property
    def kl(self) -> float:
        """Mean k3: an estimate of KL(q ‖ p) per token, in nats."""
        return self.kl_total / self.count

    @property
    def effective_share(self) -> float:
        """Kish's effective sample size (Σ r)² / Σ r², as a share of the tokens: 1 if all ratios are equal."""
        return self.total**2 / (self.count * self.squares)

    def quantile(self, share: float) -> float:
        """Return the smallest ratio with `share` of the tokens at or below it (nearest rank), to within 0.5 %.

        Raises ValueError unless `share` is between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"a quantile must be between 0 and 1, not {share}")
        rank, passed = max(1, math.ceil(share * self.count)), 0
        for at in sorted(self.bins):
            passed += self.bins[at]
            if passed >= rank:
                return min(max(math.exp(at * BIN), self.smallest), self.largest)
        return self.largest

    def metrics(self, name: str) -> dict[str, float]:
        """Return flat metrics named `<name>_...` for a log; empty without ratios."""
        if not self.count:
            return {}
        return {
            f"{name}_mean": self.mean,
            f"{name}_max": self.largest,
            f"{name}_p01": self.quantile(0.01),
            f"{name}_p50": self.quantile(0.5),
            f"{name}_p99": self.quantile(0.99),
            f"{name}_effective_share": self.effective_share,
        }

"""Corrections: importance weights for tokens that were sampled by another policy than the update starts from.

An engine computes other log-probabilities than the trainer (kernels, precision), and asynchronous rollouts come from
older weights. The factor π_start / π_behaviour of a token corrects for that. Without a bound, an expectation over the
behaviour policy's tokens equals that over the start policy's, in the states that the behaviour policy visited.

A bound reduces variance and adds bias. No factor corrects for states that are visited more or less often: that would
need the product over all earlier tokens of the rollout. Level `transition` takes the product over the response, level
`token` the single token.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from leyden.core.data.scheme import Schemes
from leyden.core.errors import UsageError
from leyden.core.policy.update.entries import Floats
from leyden.core.policy.update.ratios import LOG_RATIO_LIMIT

Level = Literal["token", "transition"]


class Correction(ABC):
    """Turns log-ratios of start to behaviour policy into factors of the tokens' weights; its fields are its options."""

    @abstractmethod
    def unbounded(self, log_ratio_T: Floats) -> Floats:
        """Return the factor of each response token of one transition, before bounds are applied."""

    def bounded(self, factor_T: Floats) -> Floats:
        """Return the factors with the bounds of the correction applied."""
        return factor_T

    def factors(self, log_ratio_T: Floats) -> Floats:
        """Return a factor for each response token of one transition."""
        return self.bounded(self.unbounded(log_ratio_T))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed(Correction):
    """No correction: factor 1; ratios are taken against the trainer's own log-probabilities.

    The mismatch is ignored, so the result is biased by all of it. Useful for comparison, and if the mismatch is known
    to be rounding.
    """

    def unbounded(self, log_ratio_T: Floats) -> Floats:
        """Return ones."""
        return np.ones_like(log_ratio_T)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceWeights(Correction):
    """Base of corrections whose factor is computed from the ratio."""

    level: Level = "token"

    def unbounded(self, log_ratio_T: Floats) -> Floats:
        """Return the ratio of each token, or the product over the transition's tokens."""
        if self.level == "transition":
            log_ratio_T = np.full_like(log_ratio_T, log_ratio_T.sum())
        return np.exp(np.clip(log_ratio_T, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated(ImportanceWeights):
    """Truncated importance sampling (Ionides 2008): min(ratio, high).

    Ratios above the limit bias the result towards the behaviour policy.
    """

    high: float = 2.0

    def __post_init__(self) -> None:
        if not self.high >= 1:
            raise UsageError(f"high must be at least 1, got {self.high}")

    def bounded(self, factor_T: Floats) -> Floats:
        """Return the factors, limited to `high`."""
        return np.minimum(factor_T, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked(ImportanceWeights):
    """Masked importance weights (IcePop, arXiv 2510.18855): the ratio if it is within [low, high], else 0.

    Tokens outside are not trained. The result is biased by these tokens, whose weight stays in the normalisation.
    """

    low: float = 0.5
    high: float = 5.0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 <= self.high:
            raise UsageError(f"low must lie between 0 and 1 and high above, got {self.low} and {self.high}")

    def bounded(self, factor_T: Floats) -> Floats:
        """Return the factors, 0 for those outside the bounds."""
        return np.where((factor_T >= self.low) & (factor_T <= self.high), factor_T, 0.0)


CORRECTIONS = Schemes[Correction](
    "correction",
    Correction,
    "leyden.correction",
    {"recomputed": Recomputed, "truncated": Truncated, "masked": Masked},
)
"""The corrections by name; installed packages add theirs under the entry-point group `leyden.correction`."""

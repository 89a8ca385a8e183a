"""Importance weights for tokens that another policy drew than the one the update starts from. Knows no loss or model.

An engine computes other log-probabilities than the trainer (kernels, precision), and asynchronous rollouts come from
older weights. The factor of a token, π_start / π_behaviour, makes up for it: unbounded, the expectation over the
behaviour's tokens is that over the start policy's, in the states the behaviour met. Bounding it trades variance for
bias, and no factor here makes up for states visited more or less often: that would take the product over all earlier
tokens of the rollout. `transition` takes the product over the response, `token` the token alone.
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
        """Return the factor of each response token of one transition, before it is held within bounds."""

    def bounded(self, factor_T: Floats) -> Floats:
        """Return the factors, held within what the correction allows."""
        return factor_T

    def factors(self, log_ratio_T: Floats) -> Floats:
        """Return a factor for each response token of one transition."""
        return self.bounded(self.unbounded(log_ratio_T))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed(Correction):
    """Factor 1: ratios start from the trainer's own log-probabilities, and the mismatch is ignored.

    Biased by the whole mismatch; for comparison, and where it is known to be rounding.
    """

    def unbounded(self, log_ratio_T: Floats) -> Floats:
        """Return ones."""
        return np.ones_like(log_ratio_T)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportanceWeights(Correction):
    """A factor made from the ratio."""

    level: Level = "token"

    def unbounded(self, log_ratio_T: Floats) -> Floats:
        """Return the ratio of each token, or of all of them together."""
        if self.level == "transition":
            log_ratio_T = np.full_like(log_ratio_T, log_ratio_T.sum())
        return np.exp(np.clip(log_ratio_T, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated(ImportanceWeights):
    """min(ratio, high): truncated importance sampling (Ionides 2008). Biased by what lies above, towards behaviour."""

    high: float = 2.0

    def __post_init__(self) -> None:
        if not self.high >= 1:
            raise UsageError(f"high must be at least 1, got {self.high}")

    def bounded(self, factor_T: Floats) -> Floats:
        """Return the factors, none above the limit."""
        return np.minimum(factor_T, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked(ImportanceWeights):
    """The ratio within [low, high], 0 outside: tokens of another regime teach nothing (IcePop, arXiv 2510.18855).

    Biased by what it leaves out, whose weight stays in the normalisation.
    """

    low: float = 0.5
    high: float = 5.0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 <= self.high:
            raise UsageError(f"low must lie between 0 and 1 and high above, got {self.low} and {self.high}")

    def bounded(self, factor_T: Floats) -> Floats:
        """Return the factors, 0 for those outside."""
        return np.where((factor_T >= self.low) & (factor_T <= self.high), factor_T, 0.0)


CORRECTIONS = Schemes[Correction](
    "correction",
    Correction,
    "leyden.correction",
    {"recomputed": Recomputed, "truncated": Truncated, "masked": Masked},
)
"""The corrections by name; installed packages add theirs under the entry-point group `leyden.correction`."""

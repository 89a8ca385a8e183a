"""Combined credit: the weighted sum of several schemes."""

from dataclasses import dataclass

import msgspec
import numpy as np

from leyden.core.credit.base import Credit, CreditAssigner
from leyden.core.credit.checks import check_finite
from leyden.core.data.transition import Trajectory
from leyden.core.errors import UsageError


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scheme of a combination, and the weight of its returns."""

    credit: CreditAssigner
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Check that the weight is finite and not 0."""
        check_finite("weight", self.weight)
        if self.weight == 0:
            raise UsageError("a part with weight 0 has no effect: remove it")


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedCredit(CreditAssigner):
    """Combined credit: G_n = Σ_k weight_k G_(n,k) over the parts.

    A transition's weight is the product of the weights from the parts. Unbiased for the weighted sum of the parts'
    objectives if every part is unbiased.
    """

    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if not self.parts:
            raise UsageError("combined needs parts: at least one {credit: ..., weight: ...}")

    @property
    def roles(self) -> frozenset[str]:
        """The roles of all parts."""
        return frozenset[str]().union(*(part.credit.roles for part in self.parts))

    def assign(self, trajectory: Trajectory) -> Credit | None:
        """Return the parts' combined credit; None if one of them gives none."""
        credits = [part.credit.assign(trajectory) for part in self.parts]
        known = [credit for credit in credits if credit is not None]
        if len(known) < len(credits):
            return None
        returns = [part.weight * credit.returns_N for part, credit in zip(self.parts, known, strict=True)]
        return Credit.of(np.sum(returns, axis=0), np.prod([credit.weights_N for credit in known], axis=0))

"""Schemes that change what another scheme, their base, gives. Knows none of them."""

from abc import abstractmethod
from dataclasses import dataclass, field

from leyden.core.credit.base import Credit, CreditAssigner
from leyden.core.credit.uniform import UniformCredit
from leyden.core.data.transition import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class OverAnother(CreditAssigner):
    """Gives the base's credit, changed; none where the base gives none."""

    base: CreditAssigner = field(default_factory=UniformCredit)
    """Whose credit it is that is changed."""

    @property
    def roles(self) -> frozenset[str]:
        """The base's."""
        return self.base.roles

    def assign(self, trajectory: Trajectory) -> Credit | None:
        """Return what `change` makes of the base's credit."""
        credit = self.base.assign(trajectory)
        return None if credit is None else self.change(credit, trajectory)

    @abstractmethod
    def change(self, credit: Credit, trajectory: Trajectory) -> Credit:
        """Return what becomes of the base's `credit` for the N transitions of `trajectory`."""

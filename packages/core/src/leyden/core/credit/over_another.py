"""Base class of credit schemes that change the credit of another scheme."""

from abc import abstractmethod
from dataclasses import dataclass, field

from leyden.core.credit.base import Credit, CreditAssigner
from leyden.core.credit.uniform import UniformCredit
from leyden.core.data.transition import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class OverAnother(CreditAssigner):
    """Changes the credit of a base scheme; gives none if the base gives none."""

    base: CreditAssigner = field(default_factory=UniformCredit)
    """The scheme whose credit is changed."""

    @property
    def roles(self) -> frozenset[str]:
        """The roles of the base."""
        return self.base.roles

    def assign(self, trajectory: Trajectory) -> Credit | None:
        """Return the base's credit, changed by `change`."""
        credit = self.base.assign(trajectory)
        return None if credit is None else self.change(credit, trajectory)

    @abstractmethod
    def change(self, credit: Credit, trajectory: Trajectory) -> Credit:
        """Return the changed `credit` of the N transitions of `trajectory`."""

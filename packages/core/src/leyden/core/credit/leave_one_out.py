"""Leave-one-out credit: weighs each role by how much the result would lose without it."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from leyden.core.credit.base import Credit, roles_of
from leyden.core.credit.checks import as_number, judged, load_function
from leyden.core.credit.contribution import weighted
from leyden.core.credit.over_another import OverAnother
from leyden.core.data.transition import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOutCredit(OverAnother):
    """Leave-one-out credit: contribution weights with share(role) = max(0, value(all) - value(all but the role)).

    A role's share is divided among its calls. `value` rates a trajectory from which a role's calls were removed, so it
    must support that. Comparing rollouts with and without a role instead would blame a role that is called when things
    go wrong. Biased, as all contribution weights are.
    """

    value: str
    """Import string of a function from a Trajectory, possibly with calls missing, to a number."""

    def __post_init__(self) -> None:
        load_function("value", self.value)

    def change(self, credit: Credit, trajectory: Trajectory) -> Credit:
        """Return the base's credit, weighted by the contribution of each transition's role."""
        role_N = [next(iter(roles_of(transition)), None) for transition in trajectory.transitions]
        calls = Counter(role_N)
        whole = self._value(trajectory)
        share = {role: max(0.0, whole - self._value(_without(trajectory, role_N, role))) for role in calls}
        shares_N = np.array([share[role] / calls[role] for role in role_N], dtype=np.float64)
        return weighted(credit, shares_N)

    def _value(self, trajectory: Trajectory) -> float:
        return as_number(self.value, judged("value", self.value, trajectory))


def _without(trajectory: Trajectory, role_N: list[str | None], role: str | None) -> Trajectory:
    left = (call for call, call_role in zip(trajectory.transitions, role_N, strict=True) if call_role != role)
    return replace(trajectory, transitions=tuple(left))

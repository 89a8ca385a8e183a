"""Credit registry: the schemes by name; installed packages add theirs under the entry-point group `leyden.credit`."""

from leyden.core.credit.base import CreditAssigner
from leyden.core.credit.combined import CombinedCredit
from leyden.core.credit.contribution import ContributionCredit
from leyden.core.credit.dimensions import DimensionsCredit
from leyden.core.credit.discounted import DiscountedCredit
from leyden.core.credit.final import FinalCredit
from leyden.core.credit.intermediate import IntermediateCredit
from leyden.core.credit.learned_value import LearnedValueCredit
from leyden.core.credit.leave_one_out import LeaveOneOutCredit
from leyden.core.credit.potential import PotentialCredit
from leyden.core.credit.role_decay import RoleDecayCredit
from leyden.core.credit.selective import SelectiveCredit
from leyden.core.credit.uniform import UniformCredit
from leyden.core.data.scheme import Schemes

CREDIT = Schemes[CreditAssigner](
    "credit assignment",
    CreditAssigner,
    "leyden.credit",
    {
        "combined": CombinedCredit,
        "contribution": ContributionCredit,
        "dimensions": DimensionsCredit,
        "discounted": DiscountedCredit,
        "final": FinalCredit,
        "intermediate": IntermediateCredit,
        "learned_value": LearnedValueCredit,
        "leave_one_out": LeaveOneOutCredit,
        "potential": PotentialCredit,
        "role_decay": RoleDecayCredit,
        "selective": SelectiveCredit,
        "uniform": UniformCredit,
    },
)

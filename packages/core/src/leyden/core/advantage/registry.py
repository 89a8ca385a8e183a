"""Advantage registry: the estimators by name.

Installed packages add theirs under the entry-point group `leyden.advantage`.
"""

from leyden.core.advantage.base import AdvantageEstimator
from leyden.core.advantage.dr_grpo import DrGRPO
from leyden.core.advantage.gae import GAE
from leyden.core.advantage.grpo import GRPO
from leyden.core.advantage.grpo_transitions import GRPOTransitions
from leyden.core.advantage.reinforce_plus_plus import ReinforcePlusPlus
from leyden.core.advantage.reinforce_plus_plus_baseline import ReinforcePlusPlusBaseline
from leyden.core.advantage.rloo import RLOO
from leyden.core.advantage.turn_level import TurnLevel
from leyden.core.data.scheme import Schemes

ADVANTAGE = Schemes[AdvantageEstimator](
    "advantage estimator",
    AdvantageEstimator,
    "leyden.advantage",
    {
        "dr_grpo": DrGRPO,
        "gae": GAE,
        "grpo": GRPO,
        "grpo_transitions": GRPOTransitions,
        "reinforce_plus_plus": ReinforcePlusPlus,
        "reinforce_plus_plus_baseline": ReinforcePlusPlusBaseline,
        "rloo": RLOO,
        "turn_level": TurnLevel,
    },
)

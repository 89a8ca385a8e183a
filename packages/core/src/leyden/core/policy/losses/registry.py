"""Loss registry: the losses by name; installed packages add theirs under the entry-point group `leyden.loss`.

DPO takes pairs, so only an algorithm that makes pairs can use it.
"""

from leyden.core.data.scheme import Schemes
from leyden.core.policy.losses.base import Loss
from leyden.core.policy.losses.cispo import CISPO
from leyden.core.policy.losses.dpo import DPO
from leyden.core.policy.losses.dual_clip import DualClip
from leyden.core.policy.losses.gspo import GSPO
from leyden.core.policy.losses.ppo_clip import PPOClip
from leyden.core.policy.losses.reinforce import Reinforce
from leyden.core.policy.losses.sft import SFT, Rejection

LOSSES = Schemes[Loss](
    "loss",
    Loss,
    "leyden.loss",
    {
        "ppo_clip": PPOClip,
        "dpo": DPO,
        "dual_clip": DualClip,
        "cispo": CISPO,
        "gspo": GSPO,
        "reinforce": Reinforce,
        "rejection": Rejection,
        "sft": SFT,
    },
)

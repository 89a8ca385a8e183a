"""`ServedPolicy`: a policy with its engine and codec; also chooses the sampling parameters of a call."""

import logging
from dataclasses import dataclass, field

import msgspec

from leyden.core.data.production import is_capture
from leyden.core.data.rollout import Rollout
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import Engine
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.calls.seeds import CallSeeds
from leyden.core.gateway.codec import Codec

_log = logging.getLogger("leyden.gateway")
_warned: set[str] = set()
"""Names of agents for which `warn_of_untrainable` has logged its warning."""
_MOST_WARNED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPolicy:
    """A policy, the engine that serves it, and its sampling parameters during training."""

    name: str
    engine: Engine
    codec: Codec
    sampling: Sampling = field(default_factory=Sampling)
    trained: bool = True
    """False for a frozen version: its calls are recorded, but never trained on."""
    follows_agents: bool = False
    """Whether the agents' own sampling parameters apply in training, too, because nothing is trained on the calls."""
    call_seeds: CallSeeds | None = None
    """Source of the seeds and ids of calls in a deterministic run; None in any other run."""

    @property
    def takes_images(self) -> bool:
        """Whether requests may have images: the model reads them, and so does its engine."""
        return self.codec.takes_images and self.engine.takes_images


def sampling_for(rollout: Rollout, requested: Sampling, policy: Sampling) -> Sampling:
    """Return the sampling parameters for a call of `rollout`.

    The policy's parameters apply in training, and where the rollout's metadata has `{"sampling": "policy"}`. With an
    agent's temperature 0 or fixed seed, every rollout of a group would get the same response. The agent's stop strings
    and stop tokens, and the smaller of both token limits, apply nevertheless. In all other cases, the agent's
    parameters apply unchanged.
    """
    if rollout.mode != "train" and rollout.metadata.get("sampling") != "policy":
        return requested
    limits = [limit for limit in (requested.max_tokens, policy.max_tokens) if limit is not None]
    return msgspec.structs.replace(
        policy, max_tokens=min(limits, default=None), stop=requested.stop, stop_ids=requested.stop_ids
    )


def warn_of_untrainable(origin: Origin, sampling: Sampling, *, records_truncation: bool) -> None:
    """Log once for each agent that the calls of its captured runs are recorded but cannot be trained on."""
    name = origin.agent or str(origin.rollout.metadata.get("agent") or "without a name")
    trainable = sampling.temperature > 0 and (records_truncation or not sampling.truncates)
    if trainable or name in _warned or len(_warned) >= _MOST_WARNED or not is_capture(origin.rollout.metadata):
        return
    _warned.add(name)
    _log.warning(
        "Calls of the agent %s are recorded, but cannot be trained on: it requests temperature %g and top_p %g, and "
        "training needs a temperature above 0 and, with this engine, top_p 1. (See docs/production.md; this is logged "
        "once.)",
        name,
        sampling.temperature,
        sampling.top_p,
    )

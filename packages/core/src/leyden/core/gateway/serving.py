"""`ServedPolicy`: what answers a call, and with which sampling. Knows nothing of HTTP or dialects."""

from dataclasses import dataclass, field

import msgspec

from leyden.core.data.rollout import Rollout
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import Engine
from leyden.core.gateway.codec import Codec
from leyden.core.gateway.seeding import Draws


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPolicy:
    """A policy, the engine that serves it, and how its tokens are drawn while it is trained."""

    name: str
    engine: Engine
    codec: Codec
    sampling: Sampling = field(default_factory=Sampling)
    trained: bool = True
    """False for a frozen version: its calls are recorded, and never learned from."""
    draws: Draws | None = None
    """Seeds its calls and names them in a deterministic run; elsewhere calls are drawn as they arrive."""


def sampling_for(rollout: Rollout, asked: Sampling, policy: Sampling) -> Sampling:
    """Decide how a call of `rollout` is sampled.

    In training, and where the rollout's metadata says `{"sampling": "policy"}`, it is the policy's: an agent that asks
    for temperature 0, or always the same seed, gives every rollout of a group the same answer. How long an answer may
    be and where it stops stay the agent's. Elsewhere all of it is the agent's.
    """
    if rollout.mode != "train" and rollout.metadata.get("sampling") != "policy":
        return asked
    limits = [limit for limit in (asked.max_tokens, policy.max_tokens) if limit is not None]
    return msgspec.structs.replace(policy, max_tokens=min(limits, default=None), stop=asked.stop)

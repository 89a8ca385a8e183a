"""`ServedPolicy`: what answers a call, and with which sampling. Knows nothing of HTTP or dialects."""

import logging
from dataclasses import dataclass, field

import msgspec

from leyden.core.data.production import is_capture
from leyden.core.data.rollout import Rollout
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import Engine
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.calls.seeds import Draws
from leyden.core.gateway.codec import Codec

_log = logging.getLogger("leyden.gateway")
_warned: set[str] = set()
"""Agents of which it was said that their calls cannot be trained on."""
_MOST_WARNED = 1000


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


def warn_of_untrainable(origin: Origin, sampling: Sampling) -> None:
    """Log, once for each agent, that calls of its captured runs are recorded and cannot be trained on."""
    name = origin.agent or str(origin.rollout.metadata.get("agent") or "without a name")
    if sampling.trainable or name in _warned or len(_warned) >= _MOST_WARNED or not is_capture(origin.rollout.metadata):
        return
    _warned.add(name)
    _log.warning(
        "Calls of the agent %s are recorded, but cannot be trained on: it asks for temperature %g and top_p %g, and "
        "only what is drawn at a temperature above 0 with top_p 1 can be. (See docs/production.md; this is said once.)",
        name,
        sampling.temperature,
        sampling.top_p,
    )

"""Tracers of Agent Lightning 0.3. In Leyden, the gateway and the adapters record; a tracer only hands out callbacks."""

from leyden.core.agent_lightning.replaced import lookup
from leyden.core.runner.adapters.agent_tracer import AgentTracer


class OtelTracer(AgentTracer):
    """Accepted by `Trainer` and `LitAgentRunner`, where it changes nothing: every attempt is recorded without it."""


class AgentOpsTracer(OtelTracer):
    """The same. The AgentOps SDK is not used."""


__all__ = ["AgentOpsTracer", "OtelTracer"]

__getattr__ = lookup("tracer")

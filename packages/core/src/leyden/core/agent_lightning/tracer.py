"""Tracers of Agent Lightning 0.3. In Leyden, the gateway and the adapters record; a tracer only hands out callbacks."""

from typing import Any

from leyden.core.agent_lightning.replaced import WithReplaced, lookup, refuse
from leyden.core.runner.adapters.agent_tracer import AgentTracer


class OtelTracer(WithReplaced, AgentTracer):
    """Accepted by `Trainer` and `LitAgentRunner`, where it changes nothing: every attempt is recorded without it."""

    def __init__(self, **options: Any) -> None:
        """Raise ReplacedName for an option."""
        if options:
            refuse(f"{type(self).__name__}({next(iter(options))}=)", "leave it out: every attempt is recorded")


class AgentOpsTracer(OtelTracer):
    """The same. The AgentOps SDK is not used."""


__all__ = ["AgentOpsTracer", "OtelTracer"]

__getattr__ = lookup("tracer")

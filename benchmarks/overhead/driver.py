"""What a framework's driver module has, and how the worker finds it. Knows no framework."""

import importlib
from typing import Any, Protocol, cast


class Driver(Protocol):
    """A module `overhead.on_<framework>`; importing it imports the framework and nothing that records."""

    ADAPTER: str
    """`module:class` of Leyden's adapter."""
    INSTRUMENTOR: str
    """`module:class` of Leyden's instrumentor."""
    OPENINFERENCE: str
    """`module:class` of OpenInference's instrumentor."""
    AGENT: Any
    """What the adapter runs: `CALLS` model calls with a tool between them, on `model.PROMPT`."""

    async def call(self) -> Any:
        """Make one model call in the framework's own way."""
        ...

    async def run(self) -> Any:
        """Run `AGENT` as its author would, or one like it, where it cannot take many tasks at once."""
        ...

    def agentops(self, provider: Any) -> None:
        """Let AgentOps record to `provider`, as its documentation says for this framework.

        Raises LookupError where it has nothing for it.
        """
        ...


def driver_for(framework: str) -> Driver:
    """Return the driver of `framework`."""
    return cast("Driver", importlib.import_module(f"overhead.on_{framework}"))


def instrumented(instrumentor: Any, provider: Any) -> None:
    """Let `instrumentor` record to `provider`; raises LookupError where it will not take what is installed."""
    instrumentor.instrument(tracer_provider=provider)
    if not instrumentor.is_instrumented_by_opentelemetry:  # it only logs why
        wants = ", ".join(instrumentor.instrumentation_dependencies())
        raise LookupError(f"{type(instrumentor).__name__} wants {wants}")


def named(target: str) -> Any:
    """Return what `module:name` names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)

"""Listens to every toy agent of the process, as an OpenTelemetry instrumentor. Knows nothing of what is heard."""

from collections.abc import Collection
from functools import partial
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor


class ToyInstrumentor(BaseInstrumentor):
    """`instrument()` takes `tracer_provider`; without one, spans go where Leyden records or to the global provider."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """What must be installed, checked before anything is loaded, such as `("toy-agents >= 1.0",)`: nothing here."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        import toy_agents
        from leyden_toy._events import heard

        self._listener = partial(heard, provider=kwargs.get("tracer_provider"))
        toy_agents.listeners.append(self._listener)

    def _uninstrument(self, **kwargs: Any) -> None:
        import toy_agents

        toy_agents.listeners.remove(self._listener)

"""Hears every CrewAI run of the process, as an OpenTelemetry instrumentor. Knows nothing of what is heard."""

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from leyden.crewai._bus import listen, stop_listening


class CrewAIInstrumentor(BaseInstrumentor):
    """`instrument()` takes `tracer_provider`; without one, spans go where Leyden records or to the global provider.

    It does not load CrewAI, which takes seconds: an application that never does is not slowed down.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """What must be installed, checked before anything is loaded."""
        return ("crewai >= 1.15.25",)

    def _instrument(self, **kwargs: Any) -> None:
        self._listening = listen(kwargs.get("tracer_provider"))

    def _uninstrument(self, **kwargs: Any) -> None:
        stop_listening(self._listening)

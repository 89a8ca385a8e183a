"""OpenTelemetry instrumentor: records every CrewAI run of the process."""

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from leyden.crewai._bus import listen, stop_listening


class CrewAIInstrumentor(BaseInstrumentor):
    """`instrument()` takes `tracer_provider`; the default is Leyden's recorder, or the global provider.

    It does not load CrewAI, which takes seconds, so an application without it is not slowed down.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that must be installed; checked before any import."""
        return ("crewai >= 1.15.25",)

    def _instrument(self, **kwargs: Any) -> None:
        self._listener = listen(kwargs.get("tracer_provider"))

    def _uninstrument(self, **kwargs: Any) -> None:
        stop_listening(self._listener)

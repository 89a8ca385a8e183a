"""`InstrumentorSwitch`: turns a framework's OpenTelemetry instrumentor on and off for an adapter."""

from collections.abc import Callable

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor


class InstrumentorSwitch:
    """Switch that leaves an instrumentor alone if the user has already turned it on."""

    def __init__(self, instrumentor: Callable[[], BaseInstrumentor]) -> None:
        """`instrumentor` returns the framework's single instrumentor. It is usually the instrumentor's class."""
        self._instrumentor = instrumentor
        self._ours: BaseInstrumentor | None = None

    def on(self) -> None:
        """Turn the instrumentor on with its default options, unless it is on already."""
        found = self._instrumentor()
        if not found.is_instrumented_by_opentelemetry:
            found.instrument()
            self._ours = found

    def off(self) -> None:
        """Turn the instrumentor off if `on` turned it on."""
        if self._ours is not None:
            self._ours.uninstrument()
            self._ours = None

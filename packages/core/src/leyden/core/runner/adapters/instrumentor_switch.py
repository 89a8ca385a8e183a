"""`InstrumentorSwitch`: an adapter's turning on and off of its framework's instrumentor. Knows no framework."""

from collections.abc import Callable

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor


class InstrumentorSwitch:
    """Turns on what the user has not turned on already, and turns off only what it has turned on itself."""

    def __init__(self, instrumentor: Callable[[], BaseInstrumentor]) -> None:
        """`instrumentor` returns the framework's one instrumentor, usually its class."""
        self._instrumentor = instrumentor
        self._ours: BaseInstrumentor | None = None

    def on(self) -> None:
        """Instrument, with what the instrumentor takes by itself."""
        found = self._instrumentor()
        if not found.is_instrumented_by_opentelemetry:
            found.instrument()
            self._ours = found

    def off(self) -> None:
        """Undo `on`."""
        if self._ours is not None:
            self._ours.uninstrument()
            self._ours = None

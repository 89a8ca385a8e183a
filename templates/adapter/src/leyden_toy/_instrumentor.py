"""Listens to every toy agent of the process, as an OpenTelemetry instrumentor. Knows nothing of what is heard."""

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

if TYPE_CHECKING:
    from leyden.core.tracing.patching.on_import import OnImport


class ToyInstrumentor(BaseInstrumentor):
    """`instrument()` takes `tracer_provider`; without one, spans go where Leyden records or to the global provider.

    It loads nothing of the framework: it waits until the application does.
    """

    _later: "OnImport"

    def instrumentation_dependencies(self) -> Collection[str]:
        """What must be installed, checked before anything is loaded, such as `("toy-agents >= 1.0",)`: nothing here."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        from leyden.core.tracing.patching.on_import import OnImport

        self._listeners: list[Any] | None = None  # the framework's own list, once it is imported
        self._provider = kwargs.get("tracer_provider")
        self._later = OnImport({"toy_agents": self._listen})

    def _listen(self, toy_agents: Any) -> None:
        from leyden_toy._events import heard

        self._listener = partial(heard, provider=self._provider)
        toy_agents.listeners.append(self._listener)
        self._listeners = toy_agents.listeners

    def _uninstrument(self, **kwargs: Any) -> None:
        self._later.off()
        if self._listeners is not None:
            self._listeners.remove(self._listener)

"""Hooks Leyden into AutoGen, as an OpenTelemetry instrumentor."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

if TYPE_CHECKING:
    from leyden.autogen._hooks import Hooks
    from leyden.core.tracing.patching.on_import import OnImport
    from leyden.core.tracing.patching.patches import Patches


class AutoGenInstrumentor(BaseInstrumentor):
    """`instrument()` takes `tracer_provider`; without one, spans go where Leyden records or to the global provider.

    AutoGen's own spans give way where they would stand beside ours, and go on where they go elsewhere. It loads nothing
    of AutoGen: an application that never does is not slowed down.
    """

    _hooks: "Hooks"
    _later: "OnImport"
    _patches: "Patches"

    def instrumentation_dependencies(self) -> Collection[str]:
        """What must be installed, checked before anything is loaded: AutoGen's core, which AgentChat is built on."""
        return ("autogen-core >= 0.7",)

    def _instrument(self, **kwargs: Any) -> None:
        from leyden.autogen._hooks import Hooks
        from leyden.autogen._places import install
        from leyden.core.tracing.patching.patches import Patches

        self._hooks, self._patches = Hooks(kwargs.get("tracer_provider")), Patches()
        self._later = install(self._hooks, self._patches)

    def _uninstrument(self, **kwargs: Any) -> None:
        self._later.off()
        self._hooks.enabled = False  # what is under way keeps the hooks it started with
        self._patches.undo()

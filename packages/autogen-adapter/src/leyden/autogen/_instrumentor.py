"""OpenTelemetry instrumentor: hooks Leyden into AutoGen."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

if TYPE_CHECKING:
    from leyden.autogen._hooks import Hooks
    from leyden.core.tracing.patching.on_import import OnImport
    from leyden.core.tracing.patching.patches import Patches


class AutoGenInstrumentor(BaseInstrumentor):
    """`instrument()` takes `tracer_provider`; the default is Leyden's recorder, or the global provider.

    AutoGen's own spans are suppressed where they would duplicate Leyden's, and remain in other providers. The
    instrumentor does not load AutoGen, so an application without it is not slowed down.
    """

    _hooks: "Hooks"
    _import_hook: "OnImport"
    _patches: "Patches"

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that must be installed; checked before any import. AgentChat needs the core."""
        return ("autogen-core >= 0.7",)

    def _instrument(self, **kwargs: Any) -> None:
        from leyden.autogen._hooks import Hooks
        from leyden.autogen._places import install
        from leyden.core.tracing.patching.patches import Patches

        self._hooks, self._patches = Hooks(kwargs.get("tracer_provider")), Patches()
        self._import_hook = install(self._hooks, self._patches)

    def _uninstrument(self, **kwargs: Any) -> None:
        self._import_hook.off()
        self._hooks.enabled = False  # running steps keep the hooks they started with
        self._patches.undo()

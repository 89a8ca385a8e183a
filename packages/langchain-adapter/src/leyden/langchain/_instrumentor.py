"""Puts our callback handler into every LangChain run of the process, as an OpenTelemetry instrumentor."""

import sys
from collections.abc import Collection
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from leyden.core.tracing.patching.on_import import OnImport

if TYPE_CHECKING:
    from leyden.langchain._callbacks import LeydenCallbackHandler

HOOKS = "langchain_core.tracers.context"
"""Where LangChain keeps what its runs are configured by; every run imports it."""


def handler_class() -> "type[LeydenCallbackHandler]":
    """Return our callback handler's class, whose module loads LangChain.

    LangChain comes first: a runner that waits for its import instruments it there and then, and needs the class.
    """
    import_module("langchain_core.callbacks")
    from leyden.langchain._callbacks import LeydenCallbackHandler

    return LeydenCallbackHandler


class LangChainInstrumentor(BaseInstrumentor):
    """`instrument()` takes `tracer_provider`; without one, spans go where Leyden records or to the global provider.

    A handler given explicitly to a run takes the place of ours there. It loads nothing of LangChain: an application
    that never does is not slowed down.
    """

    _handler: Any = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """What must be installed, checked before anything is loaded."""
        return ("langchain-core >= 1.2.10",)

    def _instrument(self, **kwargs: Any) -> None:
        self._later = OnImport({HOOKS: lambda module: self._register(module, kwargs.get("tracer_provider"))})

    def _register(self, hooks: Any, provider: Any) -> None:
        kind = handler_class()
        self._handler = kind(provider)
        # The default value is what every thread and task sees; a value that is set would stay in one context.
        self._variable = ContextVar[Any]("leyden_langchain_handler", default=self._handler)
        hooks.register_configure_hook(self._variable, inheritable=True, handle_class=kind)

    def _uninstrument(self, **kwargs: Any) -> None:
        self._later.off()
        if self._handler is None:
            return
        self._handler.enabled = False  # runs under way keep the handler they started with
        hooks: list[Any] = getattr(sys.modules[HOOKS], "_configure_hooks", [])  # LangChain has no public way back
        hooks[:] = [hook for hook in hooks if hook[0] is not self._variable]
        self._handler = None

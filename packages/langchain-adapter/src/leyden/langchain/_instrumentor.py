"""OpenTelemetry instrumentor: adds Leyden's callback handler to every LangChain run of the process."""

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
"""Module with LangChain's run configuration hooks; every run imports it."""


def handler_class() -> "type[LeydenCallbackHandler]":
    """Return Leyden's callback handler class, whose module loads LangChain.

    LangChain is imported first: a runner that waits for this import instruments it during the import, and needs the
    class.
    """
    import_module("langchain_core.callbacks")
    from leyden.langchain._callbacks import LeydenCallbackHandler

    return LeydenCallbackHandler


class LangChainInstrumentor(BaseInstrumentor):
    """`instrument()` takes `tracer_provider`; the default is Leyden's recorder, or the global provider.

    A handler passed explicitly to a run replaces this one in that run. The instrumentor does not load LangChain, so an
    application without it is not slowed down.
    """

    _handler: Any = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that must be installed; checked before any import."""
        return ("langchain-core >= 1.2.10",)

    def _instrument(self, **kwargs: Any) -> None:
        self._import_hook = OnImport({HOOKS: lambda module: self._register(module, kwargs.get("tracer_provider"))})

    def _register(self, hooks: Any, provider: Any) -> None:
        handler_type = handler_class()
        self._handler = handler_type(provider)
        # Every thread and task reads the default value; a value that is set stays in one context.
        self._variable = ContextVar[Any]("leyden_langchain_handler", default=self._handler)
        hooks.register_configure_hook(self._variable, inheritable=True, handle_class=handler_type)

    def _uninstrument(self, **kwargs: Any) -> None:
        self._import_hook.off()
        if self._handler is None:
            return
        self._handler.enabled = False  # running runs keep the handler they started with
        hooks: list[Any] = getattr(sys.modules[HOOKS], "_configure_hooks", [])  # there is no public way to unregister
        hooks[:] = [hook for hook in hooks if hook[0] is not self._variable]
        self._handler = None

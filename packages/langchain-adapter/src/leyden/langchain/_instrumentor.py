"""Puts our callback handler into every LangChain run of the process, as an OpenTelemetry instrumentor."""

from collections.abc import Collection
from contextvars import ContextVar
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor


class LangChainInstrumentor(BaseInstrumentor):
    """`instrument()` takes `tracer_provider`; without one, spans go where Leyden records or to the global provider.

    A handler given explicitly to a run takes the place of ours there.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """What must be installed, checked before anything is loaded."""
        return ("langchain-core >= 1.2.10",)

    def _instrument(self, **kwargs: Any) -> None:
        from langchain_core.tracers.context import register_configure_hook

        from leyden.langchain._callbacks import LeydenCallbackHandler

        self._handler = LeydenCallbackHandler(kwargs.get("tracer_provider"))
        # The default value is what every thread and task sees; a value that is set would stay in one context.
        self._variable = ContextVar[Any]("leyden_langchain_handler", default=self._handler)
        register_configure_hook(self._variable, inheritable=True, handle_class=LeydenCallbackHandler)

    def _uninstrument(self, **kwargs: Any) -> None:
        from langchain_core.tracers import context

        self._handler.enabled = False  # runs under way keep the handler they started with
        hooks: list[Any] = getattr(context, "_configure_hooks", [])  # LangChain has no public way back
        hooks[:] = [hook for hook in hooks if hook[0] is not self._variable]

"""OpenTelemetry instrumentor: reports each trace and span of the SDK in this process, traced or not."""

from collections.abc import Callable, Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from leyden.core.tracing.patching.on_import import OnImport
from leyden.core.tracing.patching.patches import Patches, Wrapper

TRACING = "agents.tracing"
"""The SDK's tracing module."""


class OpenAIAgentsInstrumentor(BaseInstrumentor):
    """`instrument()` takes `tracer_provider`; the default is Leyden's recorder, or the global provider.

    It adds no trace processor, so no other processor can replace it. The instrumentor does not load the SDK, so an
    application without it is not slowed down.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that must be installed; checked before any import."""
        return ("openai-agents >= 0.8",)

    def _instrument(self, **kwargs: Any) -> None:
        self._patches = Patches()
        self._import_hook = OnImport({TRACING: lambda module: self._patch(module, kwargs.get("tracer_provider"))})

    def _patch(self, tracing: Any, provider: Any) -> None:
        if not hasattr(tracing, "TraceCtxManager"):
            return  # a module of the user's own with this name
        from leyden.openai_agents import _spans  # loads the SDK, which is loaded now

        spans, traces = tracing.spans, tracing.traces
        for kinds, started in (
            ((traces.TraceImpl, traces.NoOpTrace), _spans.trace_started),
            ((spans.SpanImpl, spans.NoOpSpan), _spans.span_started),
        ):
            for kind in kinds:
                self._patches.method(kind, "start", _report_before(started, provider))
                self._patches.method(kind, "finish", _report_before(_spans.ended, provider))
        for kind in (spans.SpanImpl, spans.NoOpSpan):
            self._patches.method(kind, "set_error", _report_before(_spans.error_set))
        self._patches.method(tracing.TraceCtxManager, "__enter__", _spans.masking)

    def _uninstrument(self, **kwargs: Any) -> None:
        self._import_hook.off()
        self._patches.undo()


def _report_before(report: Callable[..., None], *arguments: Any) -> Wrapper:
    """Return a wrapper that reports the object before its own method runs."""

    def reporting(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        report(instance, *arguments)
        return wrapped(*args, **kwargs)

    return reporting

"""Trace processor: records runs for users of the SDK that add processors themselves."""

from typing import Any

from agents.tracing import Span, Trace, TracingProcessor
from opentelemetry.trace import TracerProvider

from leyden.openai_agents import _spans


class LeydenTraceProcessor(TracingProcessor):
    """Records what is traced; pass it to `agents.add_trace_processor`, or use the instrumentor instead.

    Several processors, with or without the instrumentor, record a run once.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._provider = tracer_provider

    def on_trace_start(self, trace: Trace) -> None:
        _spans.trace_started(trace, self._provider)

    def on_span_start(self, span: Span[Any]) -> None:
        _spans.span_started(span, self._provider)

    def on_span_end(self, span: Span[Any]) -> None:
        _spans.ended(span, self._provider)

    def on_trace_end(self, trace: Trace) -> None:
        _spans.ended(trace, self._provider)

    def shutdown(self) -> None:
        """Do nothing: the owner of the tracer provider shuts it down."""

    def force_flush(self) -> None:
        """Do nothing: no span waits here."""

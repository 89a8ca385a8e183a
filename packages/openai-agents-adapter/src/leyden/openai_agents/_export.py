"""Keeps the SDK's own traces from leaving for OpenAI. Knows nothing of our spans."""

from collections.abc import Callable
from typing import Any

from leyden.openai_agents._patches import Method, Patches


def stop_export() -> Callable[[], None]:
    """Let nothing new into any queue whose exporter sends to OpenAI; returns what undoes it.

    What waited in a queue before was traced before, and leaves as it would have.
    """
    from agents.tracing.processors import BackendSpanExporter, BatchTraceProcessor

    def patch(original: Method) -> Method:
        def method(self: Any, told: Any) -> None:
            if not isinstance(getattr(self, "_exporter", None), BackendSpanExporter):
                original(self, told)

        return method

    patches = Patches()
    patches.put(BatchTraceProcessor, "on_trace_start", patch)
    patches.put(BatchTraceProcessor, "on_span_end", patch)
    return patches.undo

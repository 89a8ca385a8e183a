"""Keeps the SDK's own traces from leaving for OpenAI. Knows nothing of our spans."""

from collections.abc import Callable
from typing import Any

from leyden.core.tracing.patching.patches import Patches


def stop_export() -> Callable[[], None]:
    """Let nothing new into any queue whose exporter sends to OpenAI; returns what undoes it.

    What waited in a queue before was traced before, and leaves as it would have.
    """
    from agents.tracing.processors import BackendSpanExporter, BatchTraceProcessor

    def kept(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> None:
        if not isinstance(getattr(queue, "_exporter", None), BackendSpanExporter):
            wrapped(*args, **kwargs)

    patches = Patches()
    patches.method(BatchTraceProcessor, "on_trace_start", kept)
    patches.method(BatchTraceProcessor, "on_span_end", kept)
    return patches.undo

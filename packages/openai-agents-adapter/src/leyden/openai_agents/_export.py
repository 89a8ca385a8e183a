"""Trace export: stops the export of the SDK's own traces to OpenAI. It handles no spans."""

from collections.abc import Callable
from typing import Any

from leyden.core.tracing.patching.patches import Patches


def stop_export() -> Callable[[], None]:
    """Keep new items out of every queue whose exporter sends to OpenAI; return a function that undoes it.

    Items that are already in a queue were traced before, and are still exported.
    """
    from agents.tracing.processors import BackendSpanExporter, BatchTraceProcessor

    def skip_backend(wrapped: Any, queue: Any, args: Any, kwargs: Any) -> None:
        if not isinstance(getattr(queue, "_exporter", None), BackendSpanExporter):
            wrapped(*args, **kwargs)

    patches = Patches()
    patches.method(BatchTraceProcessor, "on_trace_start", skip_backend)
    patches.method(BatchTraceProcessor, "on_span_end", skip_backend)
    return patches.undo

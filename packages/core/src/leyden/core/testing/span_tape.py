"""`SpanTape`: an in-memory tracer provider of another application, which shows its spans as a tree.

For tests of adapters.
"""

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class SpanTape:
    """Pass `provider` to an instrumentor, run an agent, then read the ended spans."""

    def __init__(self) -> None:
        self.provider, self._exporter = TracerProvider(), InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self, name: str | None = None) -> Sequence[ReadableSpan]:
        """Return every ended span, or those with this name, in the order in which they ended."""
        return [span for span in self._exporter.get_finished_spans() if name in (None, span.name)]

    def tree(self) -> list[str]:
        """Return each span's name in the order of its start, indented by depth."""
        depth: dict[int, int] = {}
        lines: list[str] = []
        for span in sorted(self.spans(), key=lambda span: span.start_time or 0):
            assert span.context is not None
            depth[span.context.span_id] = depth[span.parent.span_id] + 1 if span.parent else 0
            lines.append("  " * depth[span.context.span_id] + span.name)
        return lines

    def attribute(self, span_name: str, attribute: str) -> Any:
        """Return an attribute of the only span with that name; raises ValueError when there is not exactly one."""
        [found] = [(span.attributes or {}).get(attribute) for span in self.spans(span_name)]
        return found

"""`otlp_sink`: a small OTLP/HTTP endpoint that records the spans it receives, in place of another tracing backend.

Needs `opentelemetry-proto`, a dependency of every OTLP exporter.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from leyden.core.testing.servers.http_handler import served


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSpan:
    """A received span."""

    name: str
    span_id: str
    parent_id: str | None
    trace_id: str
    start: int
    """Unix nanoseconds."""
    attributes: dict[str, Any]
    scope: str
    """Name of the tracer."""


@dataclass(kw_only=True)
class OtlpSink:
    """Received spans in the order of arrival."""

    url: str = ""
    """Root URL, for `OTEL_EXPORTER_OTLP_ENDPOINT`."""
    spans: list[SeenSpan] = field(default_factory=list[SeenSpan])
    raw: bytearray = field(default_factory=bytearray)
    """All request bodies in order; data that are not in it were not sent in any form."""

    def tree(self) -> list[str]:
        """Return each span in the order of its start, indented by depth; raises KeyError when a parent is missing."""
        names = {span.span_id: span for span in self.spans}

        def depth(span: SeenSpan) -> int:
            return 0 if span.parent_id is None else 1 + depth(names[span.parent_id])

        return ["  " * depth(span) + span.name for span in sorted(self.spans, key=lambda span: span.start)]


@contextmanager
def otlp_sink() -> Generator[OtlpSink]:
    """Serve on a free loopback port inside the block."""
    sink = OtlpSink()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

        def do_POST(self) -> None:
            """Record the spans of a request."""
            body = self.rfile.read(int(self.headers["content-length"]))
            sink.raw += body
            sink.spans += _spans(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

    with served(Handler) as sink.url:
        yield sink


def _spans(request: ExportTraceServiceRequest) -> list[SeenSpan]:
    return [
        SeenSpan(
            name=span.name,
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex() or None,
            trace_id=span.trace_id.hex(),
            start=span.start_time_unix_nano,
            attributes={pair.key: _value(pair.value) for pair in span.attributes},
            scope=scoped.scope.name,
        )
        for resource in request.resource_spans
        for scoped in resource.scope_spans
        for span in scoped.spans
    ]


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)

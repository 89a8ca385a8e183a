"""Zero code: sets up an OpenTelemetry SDK for programs of `opentelemetry-instrument`, where no other code does.

It runs after all configurators and before any instrumentor. It reads OpenTelemetry's own environment variables and sets
up traces only. An installed OpenTelemetry distribution takes precedence. An application that sets a tracer provider
itself gets its own.
"""

import logging
import os
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import wrapt
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

log = logging.getLogger("leyden.zero_code")

EXPORTERS = "OTEL_TRACES_EXPORTER"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
"""Entry points by protocol. Without a configured protocol the first installed one is used."""


def set_up() -> None:
    """Set up the SDK if the environment names an exporter and no provider is set. Errors are logged and not raised."""
    try:
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider) and (names := _configured_exporters()):
            _set_global([_exporter(name) for name in names])
    except Exception as error:  # broad: the instrumentors must still be loaded
        log.error("No spans are exported: %s", error)


def _configured_exporters() -> list[str]:
    """Return the exporters that the environment names. An endpoint alone selects OTLP."""
    named = [name for part in os.environ.get(EXPORTERS, "").split(",") if (name := part.strip())]
    if named:
        return [name for name in named if name.lower() != "none"]
    return ["otlp"] if any(map(os.environ.get, ENDPOINTS)) else []


def _exporter(name: str) -> SpanExporter:
    found = {entry.name: entry for entry in entry_points(group="opentelemetry_traces_exporter")}
    wanted = next((name for name in _otlp() if name in found), name) if name == "otlp" else name
    if wanted not in found:
        raise ValueError(f"unknown exporter {name!r}; installed exporters: {', '.join(sorted(found))}")
    return found[wanted].load()()


def _otlp() -> list[str]:
    """Return the names of entry points that support the configured OTLP protocol."""
    protocol = next((value.strip() for name in PROTOCOLS if (value := os.environ.get(name))), None)
    if protocol is None:
        return list(OTLP.values())
    if protocol not in OTLP:
        raise ValueError(f"unknown OTLP protocol {protocol!r}; use one of {', '.join(OTLP)}")
    return [OTLP[protocol]]


def _set_global(exporters: list[SpanExporter]) -> None:
    """Make a provider global, until the application sets its own."""
    provider = TracerProvider()
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    proxy: Any = wrapt.ObjectProxy(provider)
    trace.set_tracer_provider(proxy)

    def replace_provider(wrapped: Callable[..., None], _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if proxy.__wrapped__ is not provider:  # the original call then warns about a second provider
            return wrapped(*args, **kwargs)
        proxy.__wrapped__ = args[0] if args else kwargs["tracer_provider"]
        return None

    wrapt.wrap_function_wrapper("opentelemetry.trace", "set_tracer_provider", replace_provider)

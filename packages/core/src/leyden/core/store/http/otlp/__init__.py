"""Spans that come by OTLP, OpenTelemetry's protocol."""

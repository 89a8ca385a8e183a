"""OpenTelemetry spans that become Leyden's, and how they are exported."""

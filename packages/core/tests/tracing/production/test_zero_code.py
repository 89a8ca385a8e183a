"""What `set_up` reads and refuses; `tests/test_zero_code.py` runs it in processes of their own."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from leyden.core.tracing.production import zero_code


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (zero_code.EXPORTERS, *zero_code.ENDPOINTS, *zero_code.PROTOCOLS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    monkeypatch.setattr(trace, "set_tracer_provider", refuse)


def refuse(*_: object) -> None:
    raise AssertionError("a provider was set")


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"OTEL_TRACES_EXPORTER": "smoke"}, "unknown exporter 'smoke'; installed exporters: console"),
        ({"OTEL_TRACES_EXPORTER": "console, smoke"}, "unknown exporter 'smoke'"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "pigeon"},
            "unknown OTLP protocol 'pigeon'; use one of grpc, http/protobuf",
        ),
    ],
)
def test_what_cannot_work_is_one_line_and_sets_nothing(
    variables: dict[str, str], line: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    zero_code.set_up()
    [record] = caplog.records
    assert record.getMessage().startswith(f"No spans are exported: {line}")


@pytest.mark.parametrize("variables", [{}, {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}])
def test_nothing_is_set_where_nothing_is_asked_for(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    zero_code.set_up()
    assert not caplog.records


def test_a_provider_that_is_there_stays(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setattr(trace, "get_tracer_provider", TracerProvider)
    zero_code.set_up()
    assert not caplog.records

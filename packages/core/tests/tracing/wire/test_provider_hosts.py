import types

import httpx
import openai
import pytest

from leyden.core.testing import factories
from leyden.core.tracing.context import open_attempt
from leyden.core.tracing.wire import provider_hosts, routing
from leyden.core.tracing.wire.provider_hosts import HostPort, host_port, is_of_sdk, is_provider


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://API.OpenAI.com./v1", HostPort("api.openai.com", 443)),
        ("http://user:pw@api.openai.com:80/v1", HostPort("api.openai.com", 80)),
        ("wss://api.openai.com/v1", HostPort("api.openai.com", 443)),
        ("https://\uff41pi.openai\u3002com/v1", HostPort("api.openai.com", 443)),
        ("http://127.0.0.1:8000", HostPort("localhost", 8000)),
        ("http://127.1:8000", HostPort("localhost", 8000)),
        ("http://2130706433:8000", HostPort("localhost", 8000)),
        ("http://[::ffff:127.0.0.1]:8000", HostPort("localhost", 8000)),
        ("http://0.0.0.0:8000", HostPort("localhost", 8000)),
        ("http://a.localhost:8000", HostPort("localhost", 8000)),
        ("10.0.0.7:8000", HostPort("10.0.0.7", 8000)),
        ("http://[::1", HostPort("http://[::1", 0)),
        ("http://h:99999999", HostPort("http://h:99999999", 0)),
    ],
)
def test_a_place_has_one_name(url: str, expected: HostPort) -> None:
    assert host_port(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com.evil.invalid",
        "https://notapi.openai.community",
        "https://huggingface.co/api/models",
        "https://s3.amazonaws.com/bedrock",
        "https://api.cloudflare.com/client/v4/zones",
        "http://localhost:8000",
    ],
)
def test_what_is_no_provider(url: str) -> None:
    assert not is_provider(url)


def test_clients_of_an_sdk_name_its_host_however_they_get_their_url() -> None:
    routing.install()
    try:
        openai.AsyncOpenAI(base_url="https://one.invalid/v1", api_key="sk")
        openai.AzureOpenAI(azure_endpoint="https://two.invalid", api_key="sk", api_version="1")
        openai.OpenAI(base_url="https://other.invalid/v1", api_key="sk").with_options(base_url="https://three.invalid")
        httpx.Client(base_url="https://tools.invalid").close()
        found = [is_provider(f"https://{name}.invalid/x") for name in ("one", "two", "three", "tools")]
    finally:
        routing.uninstall()
    assert found == [True, True, True, False]
    assert not is_provider("https://one.invalid/x")  # routing is off, and all is forgotten


def test_a_base_url_of_the_environment_counts_while_an_attempt_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://proxy.invalid/anthropic")
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:7000")
    assert not is_provider("https://proxy.invalid/x")
    with open_attempt(factories.attempt()):
        assert is_provider("https://proxy.invalid/x")
        assert is_provider("http://localhost:7000/x")
    provider_hosts.forget()


def test_kinds_of_http_clients_that_an_sdk_defined_are_known() -> None:
    class Own(openai.DefaultHttpxClient):
        pass

    with Own() as own, httpx.Client() as plain:
        assert is_of_sdk(own)
        assert not is_of_sdk(plain)


def test_what_stands_in_an_sdks_place_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = types.ModuleType("not_openai")
    fake.__dict__["OpenAI"] = lambda: None
    monkeypatch.setitem(__import__("sys").modules, "openai", fake)
    routing.install()
    routing.uninstall()
    assert caplog.records == []

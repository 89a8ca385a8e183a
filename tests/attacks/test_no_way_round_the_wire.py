"""Model calls that are written so that routing takes them for something else: none of them reaches the provider.

A server on this machine stands in the provider's place. That it is one is known as it would be of any other: a client
of the provider's SDK was made for it.
"""

import asyncio
import gzip
import http.client
import json
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests
import urllib3
from provider_endpoints import PROVIDERS
from yarl import URL

from leyden.core.testing import factories
from leyden.core.testing.servers.echo_endpoint import Endpoint, echo_endpoint
from leyden.core.tracing.context import open_attempt
from leyden.core.tracing.wire import routing
from leyden.core.tracing.wire.routing_decision import OutgoingRequest, RequestStopped, decide

Send = Callable[[str, bytes, dict[str, str]], object]
KEY = {"authorization": "Bearer sk-secret", "content-type": "application/json"}
BODY = json.dumps({"model": "big", "input": "hi", "messages": []}).encode()
NO_MODEL = json.dumps({"input": "hi", "agent_id": "a"}).encode()
PROMPT = json.dumps({"prompt": {"id": "pmpt_1"}, "input": "hi"}).encode()
ODD = b'{"mod\\u0065l": "big", "messages": []}'


def by_httpx(url: str, body: bytes, headers: dict[str, str]) -> object:
    return httpx.post(url, content=body, headers=headers)


def by_requests(url: str, body: bytes, headers: dict[str, str]) -> object:
    return requests.post(url, data=body, headers=headers)


def by_aiohttp(url: str, body: bytes, headers: dict[str, str]) -> object:
    async def send() -> None:
        where = URL(url, encoded=True)
        async with aiohttp.ClientSession() as session, session.post(where, data=body, headers=headers) as answer:
            await answer.read()

    return asyncio.run(send())


def by_urllib(url: str, body: bytes, headers: dict[str, str]) -> object:
    with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="POST")) as answer:
        return answer.read()


LIBRARIES = [
    pytest.param(by_httpx, id="httpx"),
    pytest.param(by_requests, id="requests"),
    pytest.param(by_aiohttp, id="aiohttp"),
    pytest.param(by_urllib, id="urllib"),
]
ERRORS = (httpx.ConnectError, requests.ConnectionError, aiohttp.ClientConnectionError, OSError)

BODIES: list[tuple[str, bytes, dict[str, str]]] = [
    ("/v1/responses", gzip.compress(BODY, mtime=0), {"content-encoding": "gzip"}),
    ("/v1/messages", gzip.compress(BODY, mtime=0), {"content-encoding": "gzip"}),
    ("/v1/messages", zlib.compress(BODY), {"content-encoding": "deflate"}),
    ("/v1/messages", gzip.compress(BODY, mtime=0), {}),
    ("/v1/messages", b"(\xb5/\xfd\x00X\x11\x00\x00{}", {"content-encoding": "zstd"}),
    ("/v1/messages", ODD, {}),
    ("/v1/messages", BODY.decode().encode("utf-16"), {}),
    ("/v1/messages", b"", {}),
    ("/v1/responses", PROMPT, {}),
    ("/v1/responses", NO_MODEL, {}),
]
PATHS = [
    "/v1/agents/completions",
    "/v1/chat",
    "/v1/complete",
    "/v1/threads/thread_1/runs",
    "/v1/conversations",
    "/v1/batches",
    "/invocations",
    "/models/m:predict",
    "/V1/Messages",
    "/v1/CHAT/completions",
    "/v1/%63hat/completions",
    "/v1/%2563hat/completions",
    "/v1/chat%2Fcompletions",
    "/v1//chat//completions",
    "/v1/chat/./completions",
    "/v1/embeddings/%2e%2e/chat/completions",
    "/v1/embeddings/..%2fchat/completions",
    "/v1/chat/completions;v=1",
    "/v1/messages;/embeddings/..",
    "/v1/chat/completions/",
    "/v1/chat/completions%00",
    "/v1/chat/completions%3Fx=/v1/embeddings",
    "/v1/messages/embeddings",
    "/v1/something/new",
]
METHODS = [("/v1/models/m", BODY, {"x-http-method-override": "PATCH"})]
ATTACKS: list[tuple[str, bytes, dict[str, str]]] = [*BODIES, *((path, NO_MODEL, {}) for path in PATHS), *METHODS]


@pytest.fixture(autouse=True)
def runner() -> Iterator[None]:
    routing.install(fail_closed=True)
    yield
    routing.uninstall()


@pytest.fixture
def provider() -> Iterator[Endpoint]:
    with echo_endpoint() as endpoint:
        yield endpoint


@pytest.fixture
def gateway() -> Iterator[Endpoint]:
    with echo_endpoint() as endpoint:
        yield endpoint


@pytest.mark.parametrize("send", LIBRARIES)
def test_nothing_reaches_the_provider_however_it_is_written(send: Send, provider: Endpoint, gateway: Endpoint) -> None:
    """The agent compresses or rewrites bodies, leaves the model out, or uses paths that routing has no name for."""
    leaked: list[Any] = []
    with (
        open_attempt(factories.attempt(gateway.url)),
        openai.OpenAI(base_url=f"{provider.url}/v1", api_key="sk-secret"),
    ):
        for path, body, headers in ATTACKS:
            with suppress(*ERRORS):
                send(f"{provider.url}{path}", body, {**KEY, **headers})
            leaked += [(path, body, headers) for _ in provider.seen]
            provider.seen.clear()
        send(f"{provider.url}/v1/embeddings", NO_MODEL, KEY)
    assert leaked == []
    assert [call["path"] for call in provider.seen] == ["/v1/embeddings"]
    assert "sk-secret" not in str(gateway.seen)


@pytest.mark.parametrize("send", LIBRARIES)
def test_a_host_that_a_model_call_was_sent_to_is_a_providers(send: Send, provider: Endpoint, gateway: Endpoint) -> None:
    """The agent uses no SDK: after one ordinary call it sends another by a path that routing has no name for."""
    with open_attempt(factories.attempt(gateway.url)), echo_endpoint() as tools:
        send(f"{provider.url}/v1/chat/completions", BODY, KEY)
        with pytest.raises(ERRORS, match=r"does not support POST /v1/chat calls; .*,path=/v1/chat,to=provider"):
            send(f"{provider.url}/v1/chat", BODY, KEY)
        with pytest.raises(ERRORS):
            send(f"{provider.url.replace('127.0.0.1', 'localhost')}/v1/chat", BODY, KEY)
        send(f"{tools.url}/v1/chat", BODY, KEY)
    assert provider.seen == []
    assert [call["path"] for call in tools.seen] == ["/v1/chat"]


@pytest.mark.parametrize("send", LIBRARIES)
def test_nor_from_what_has_lost_its_attempt(send: Send, provider: Endpoint, gateway: Endpoint) -> None:
    """The agent sends from a context that works for no attempt, to the host of a client that was made before."""
    client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="sk-secret")
    with open_attempt(factories.attempt(gateway.url)), suppress(*ERRORS):
        send(f"{gateway.url}/v1/chat/completions", BODY, KEY)
    with client, pytest.raises(ERRORS, match="no attempt is open"):
        send(f"{provider.url}/v1/conversations", BODY, KEY)
    assert provider.seen == []


IGNORED = ["\u00ad", "\u200b", "\u2060", "\ufe0f", "\ufeff", "\U000e0100"]


@pytest.mark.parametrize("ignored", IGNORED, ids=ascii)
def test_a_host_is_known_by_the_name_that_is_looked_up(ignored: str, provider: Endpoint, gateway: Endpoint) -> None:
    """The agent puts a character into the host's name that is left out before the name is looked up."""
    url = provider.url.replace("127.0.0.1", f"local{ignored}host")
    with (
        open_attempt(factories.attempt(gateway.url)),
        openai.OpenAI(base_url=f"{provider.url}/v1", api_key="sk-secret"),
    ):
        for send in (by_httpx, by_requests, by_aiohttp, by_urllib):
            with suppress(*ERRORS, httpx.InvalidURL, requests.exceptions.InvalidURL, ValueError):
                send(f"{url}/v1/something/new", NO_MODEL, KEY)
        assert outcome("POST", f"https://api.op{ignored}enai.com{ignored}/v1/conversations") == "stopped"
    assert provider.seen == []


def by_httpx_target(url: str, body: bytes) -> object:
    where = httpx.URL(url)
    with httpx.Client() as client:
        asked = client.build_request("POST", where.copy_with(path="/v1/embeddings"), content=body)
        asked.extensions["target"] = where.raw_path
        return client.send(asked)


def by_httpx_transport(url: str, body: bytes) -> object:
    with httpx.HTTPTransport() as transport:
        return transport.handle_request(httpx.Request("POST", url, content=body))


def by_async_httpx_transport(url: str, body: bytes) -> object:
    async def send() -> None:
        async with httpx.AsyncHTTPTransport() as transport:
            await transport.handle_async_request(httpx.Request("POST", url, content=body))

    return asyncio.run(send())


class Redirecting(httpx.HTTPTransport):
    """Sends to another place than its client has asked for."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = httpx.URL(url)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request` there."""
        request.url = self._url
        return super().handle_request(request)


def by_httpx_that_sends_elsewhere(url: str, body: bytes) -> object:
    with httpx.Client(transport=Redirecting(url)) as client:
        return client.post("http://tools.example/x", content=body)


def by_http_client(server: str, target: str, body: bytes) -> object:
    connection = http.client.HTTPConnection(server.removeprefix("http://"))
    connection.request("POST", target, body)
    return connection.getresponse()


def by_urllib3(server: str, target: str, body: bytes) -> object:
    with urllib3.connection_from_url(server) as pool:
        return pool.urlopen("POST", target, body=body, assert_same_host=False, retries=False)


@pytest.mark.parametrize(
    "send", [by_httpx_target, by_httpx_transport, by_async_httpx_transport, by_httpx_that_sends_elsewhere]
)
@pytest.mark.parametrize("path", ["/v1/agents/completions", "/v1/threads/t/runs?embeddings"])
def test_what_is_sent_counts_and_not_what_was_asked(
    send: Callable[[str, bytes], object], path: str, provider: Endpoint, gateway: Endpoint
) -> None:
    """The agent has httpx send another target than its URL's, or uses a transport by itself."""
    with (
        open_attempt(factories.attempt(gateway.url)),
        openai.OpenAI(base_url=f"{provider.url}/v1", api_key="sk-secret"),
        pytest.raises(httpx.ConnectError, match="stopped by Leyden"),
    ):
        send(f"{provider.url}{path}", NO_MODEL)
    assert provider.seen == []


@pytest.mark.parametrize("send", [by_http_client, by_urllib3])
@pytest.mark.parametrize("before", ["", "@x/", "http://tools.example/", "HTTPS://tools.example/"])
def test_a_target_that_is_no_path_is_one_of_its_server(
    send: Callable[[str, str, bytes], object], before: str, provider: Endpoint, gateway: Endpoint
) -> None:
    """The agent leaves out the slash, or names another server than that which it has connected to."""
    with (
        open_attempt(factories.attempt(gateway.url)),
        openai.OpenAI(base_url=f"{provider.url}/v1", api_key="sk-secret"),
        pytest.raises((OSError, urllib3.exceptions.HTTPError)),
    ):
        send(provider.url, f"{before}v1/agents/completions", NO_MODEL)
    assert provider.seen == []


def test_a_transport_by_itself_is_routed(provider: Endpoint, gateway: Endpoint) -> None:
    """The agent's call needs no client to reach the gateway."""
    with open_attempt(factories.attempt(gateway.url)):
        by_httpx_transport(f"{provider.url}/v1/chat/completions", BODY)
        by_async_httpx_transport(f"{provider.url}/v1/chat/completions", BODY)
    assert provider.seen == []
    assert [call["path"] for call in gateway.seen] == ["/v1/chat/completions"] * 2


def test_clients_that_were_made_before_routing_are_seen_when_they_send(provider: Endpoint, gateway: Endpoint) -> None:
    """The agent's module made its client first, and its first request is none that routing has a name for."""
    routing.uninstall()
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="sk-secret", max_retries=0) as client:
        routing.install(fail_closed=True)
        with open_attempt(factories.attempt(gateway.url)), pytest.raises(openai.APIConnectionError):
            client.post("/something/new", body={"input": "hi"}, cast_to=object)
    assert provider.seen == []


def test_a_base_url_of_the_environment_is_a_providers(
    provider: Endpoint, gateway: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent reads its SDK's variable and sends with a library of its own."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
    with open_attempt(factories.attempt(gateway.url)), pytest.raises(httpx.ConnectError):
        by_httpx(f"{provider.url}/v1/something", NO_MODEL, KEY)
    assert provider.seen == []


def outcome(method: str, url: str) -> str:
    """What becomes of a request whose body cannot be read."""
    try:
        found = decide(OutgoingRequest(method, url, {}, b"\x00\x01"))
    except RequestStopped:
        return "stopped"
    return "routed" if found is not None else "sent"


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_model_endpoint_of_a_provider_is_routed_or_stopped(name: str) -> None:
    """The agent uses the provider's whole API: only what its reference says is no model call is sent."""
    base, model_calls, other = PROVIDERS[name]
    with open_attempt(factories.attempt()):
        sent = [line for line in model_calls if outcome(line.split()[0], base + line.split()[1]) == "sent"]
        kept = [line for line in other if outcome(line.split()[0], base + line.split()[1]) != "sent"]
    assert (sent, kept) == ([], [])

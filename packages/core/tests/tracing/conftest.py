"""Every HTTP library that is routed, as one fixture; an echoing gateway and provider; a gateway that refuses."""

import asyncio
import http.client
import json
import urllib.request
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import httpx
import httpx2
import pytest
import requests
import urllib3

from leyden.core.testing.servers.echo_endpoint import Endpoint, echo_endpoint
from leyden.core.testing.servers.http_handler import served

Send = Callable[..., tuple[int, str]]
"""Method, URL, then `body` (any JSON) and `headers`; returns the status and the answer's URL."""


def by_httpx(http: Any) -> Send:
    def send(method: str, url: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
        with http.Client(follow_redirects=True, headers=headers) as client:
            response = client.request(method, url, json=body)
        return response.status_code, str(response.url)

    return send


def by_async_httpx(http: Any) -> Send:
    def send(method: str, url: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
        async def send() -> tuple[int, str]:
            async with http.AsyncClient(follow_redirects=True, headers=headers) as client:
                response = await client.request(method, url, json=body)
            return response.status_code, str(response.url)

        return asyncio.run(send())

    return send


def by_requests(method: str, url: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
    response = requests.request(method, url, json=body, headers=headers)
    return response.status_code, response.url


def by_aiohttp(method: str, url: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
    async def send() -> tuple[int, str]:
        async with aiohttp.ClientSession(headers=headers) as session, session.request(method, url, json=body) as sent:
            await sent.read()
            return sent.status, str(sent.url)

    return asyncio.run(send())


def by_urllib(method: str, url: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})}, method=method)
    with urllib.request.urlopen(request) as response:
        response.read()
    return response.status, response.url


def by_http_client(method: str, url: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
    where = urlsplit(url)
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    with closing(kind(where.hostname or "", where.port)) as connection:
        path = where._replace(scheme="", netloc="").geturl()
        connection.request(method, path, None if body is None else json.dumps(body), headers or {})
        response = connection.getresponse()
        response.read()
    return response.status, url  # it follows no redirect, and its answers know no URL


def by_urllib3(method: str, url: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body)
    with urllib3.PoolManager(retries=False) as pool:
        response = pool.request(method, url, body=data, headers=headers)
    where = response.geturl() or ""
    return response.status, where if where.startswith("http") else urljoin(url, where)


WAYS = [
    pytest.param(by_httpx(httpx), id="httpx"),
    pytest.param(by_async_httpx(httpx), id="httpx-async"),
    pytest.param(by_httpx(httpx2), id="httpx2"),
    pytest.param(by_async_httpx(httpx2), id="httpx2-async"),
    pytest.param(by_requests, id="requests"),
    pytest.param(by_aiohttp, id="aiohttp"),
    pytest.param(by_urllib, id="urllib"),
    pytest.param(by_http_client, id="http.client"),
    pytest.param(by_urllib3, id="urllib3"),
]
REFUSALS = (
    httpx.ConnectError,
    httpx2.ConnectError,
    requests.ConnectionError,
    aiohttp.ClientConnectionError,
    OSError,  # http.client's, and urllib's URLError
    urllib3.exceptions.NewConnectionError,
)


@pytest.fixture(params=WAYS)
def send(request: pytest.FixtureRequest) -> Send:
    """Send a request with one of the libraries, which follows redirects."""
    return request.param


@pytest.fixture
def refusals() -> tuple[type[Exception], ...]:
    """The libraries' own connection errors."""
    return REFUSALS


@pytest.fixture
def gateway() -> Generator[Endpoint]:
    """A gateway that answers everything."""
    with echo_endpoint() as endpoint:
        yield endpoint


@pytest.fixture
def provider() -> Generator[Endpoint]:
    """The agent's provider, on this machine."""
    with echo_endpoint() as endpoint:
        yield endpoint


class Answers(BaseHTTPRequestHandler):
    """A gateway that answers everything with one status."""

    status = 500
    location = ""
    content = b""
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.status)
        if self.location:
            self.send_header("location", self.location)
        self.send_header("content-length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)


@pytest.fixture
def answering() -> Generator[Callable[..., str]]:
    """Start a server that answers with a status, perhaps a location, and a body; returns its URL."""
    with ExitStack() as servers:

        def start(status: int, location: str = "", content: bytes = b"") -> str:
            handler = type("Bound", (Answers,), {"status": status, "location": location, "content": content})
            return servers.enter_context(served(handler))

        yield start

"""Servers that answer as five model providers do, in the formats of `provider_formats`."""

import json
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from provider_formats import PROVIDERS, Json, Provider, Request, Script

from leyden.core.testing.servers.http_handler import served

HELD_AFTER = 4
"""Number of events after which a stream is held or broken."""


@dataclass
class ProviderServer:
    """URL of a running server, its script and the requests that it received."""

    url: str
    script: Script = field(default_factory=Script)
    requests: list[Request] = field(default_factory=list[Request])
    go: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    """Set when a client closed its connection before its answer was complete."""


class _Handler(BaseHTTPRequestHandler):
    """Handler of one provider's server; `provider_server` makes a subclass for each server."""

    protocol_version = "HTTP/1.1"
    formats: Provider
    provider: ProviderServer

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        """Record the request, and answer it."""
        body: Json = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.provider.requests.append(Request(self.path, headers, body))
        script, model = self.provider.script, self.formats.model.partition("/")[2]
        if script.status != 200:
            extra = {"retry-after": script.retry_after} if script.retry_after else {}
            return self._send_json(
                script.status, self.formats.error(script), self.formats.error_headers(script) | extra
            )
        if body.get("stream") or "stream" in self.path.lower():
            return self._send_stream(self.formats.stream(script, model))
        if script.hold:
            self._wait()
        self._send_json(200, self.formats.plain(script, model), self.formats.headers)

    def _send_json(self, status: int, body: Json, headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_stream(self, events: Iterator[bytes]) -> None:
        self.send_response(200)
        for name, value in {"content-type": self.formats.content_type, **self.formats.headers}.items():
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(events):
            if number == HELD_AFTER and self.provider.script.broken:
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
            if number == HELD_AFTER and self.provider.script.hold:
                self._wait()
            self._send_chunk(event)
        self._send_chunk(b"")

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _wait(self) -> None:
        """Wait until the test lets the answer go on, or the client closes its connection."""
        self.connection.settimeout(0.02)
        while not self.provider.go.is_set():
            try:
                gone = not self.connection.recv(1)
            except TimeoutError:
                continue
            except ConnectionError:
                gone = True
            if gone:
                self.provider.left.set()
                break
        self.connection.settimeout(None)


@contextmanager
def provider_server(name: str) -> Generator[ProviderServer]:
    """Run the server of one provider inside the block."""
    server = ProviderServer("")
    handler = type("Handler", (_Handler,), {"formats": PROVIDERS[name], "provider": server})
    with served(handler) as url:
        server.url = url
        yield server

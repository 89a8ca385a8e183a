"""`echo_endpoint`: a small HTTP server that records every request and returns its path.

It stands in for a gateway in tests of the HTTP client.
"""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from leyden.core.testing.servers.http_handler import served


@dataclass
class Endpoint:
    """URL and recorded requests of the endpoint, and an event that releases waiting answers."""

    url: str = ""
    """Root URL, without a trailing slash."""
    seen: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """`path`, `headers` and `body` of every request."""
    connections: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """Client addresses of all connections."""
    go: threading.Event = field(default_factory=threading.Event)
    """Set by a test to release a slow answer, or the next part of a stream."""


class _Handler(BaseHTTPRequestHandler):
    endpoint: Endpoint
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        """Return the path; with `"stream"` or `"slow"` in the body, as a stream or slowly."""
        self.endpoint.connections.add(self.client_address)
        body = self._body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.endpoint.seen.append({"path": self.path, "headers": headers, "body": body})
        if b'"stream"' in body:
            self._stream()
        elif b'"slow"' in body:
            self.endpoint.go.wait(5)
            self._answer(b"{}")
        else:
            self._answer(json.dumps({"path": self.path}).encode())

    do_GET = do_POST

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        parts: list[bytes] = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in (b"data: 1\n\n", b"data: 2\n\n"):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
            self.endpoint.go.wait(5)
        self.wfile.write(b"0\r\n\r\n")


@contextmanager
def echo_endpoint() -> Generator[Endpoint]:
    """Serve on a free loopback port inside the block."""
    endpoint = Endpoint()
    with served(type("Bound", (_Handler,), {"endpoint": endpoint})) as endpoint.url:
        try:
            yield endpoint
        finally:
            endpoint.go.set()

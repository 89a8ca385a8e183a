"""`Provider`: an endpoint that speaks the API of OpenAI and answers from a script: what Leyden is held against.

It shares no code with Leyden's gateway.
"""

import json
import ssl
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

from zoo_harness.script import Answer, Script
from zoo_harness.wire import (
    chat_answer,
    chat_events,
    embeddings,
    error_body,
    response_answer,
    response_events,
    turns_of,
)

CHATS = ("/chat/completions", "/responses", "/completions", "/messages")
STATUS_HEADERS = {"retry-after-ms": "5", "x-should-retry": "true"}


@dataclass
class Provider:
    """A running endpoint."""

    script: Script
    url: str = ""
    ports: dict[str, int] = field(default_factory=dict[str, int])
    """Where it can be reached in place of another host, by `host:port`."""
    chats: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The bodies of all model calls, in the order in which they came."""
    others: list[str] = field(default_factory=list[str])
    """The paths of all other requests."""
    stopped: threading.Event = field(default_factory=threading.Event)
    numbers: "count[int]" = field(default_factory=count)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def chat(self, path: str, body: dict[str, Any]) -> Answer:
        """Take a model call down, and answer it."""
        with self.lock:
            self.chats.append(body)
            return self.script.answer(turns_of(body))


@contextmanager
def provider(script: Script, hosts: Sequence[str], certificate: tuple[str, str] | None) -> Generator[Provider]:
    """Serve inside the block, over TLS in place of those `hosts` whose port is 443."""
    running = Provider(script)

    class Handler(_Handler):
        provider = running

    with ExitStack() as stack:
        running.url = f"http://127.0.0.1:{stack.enter_context(_listening(Handler, None))}/v1"
        for host in hosts:
            tls = certificate if host.endswith(":443") else None
            running.ports[host] = stack.enter_context(_listening(Handler, tls))
        try:
            yield running
        finally:
            running.stopped.set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Agents hang up when they like."""


@contextmanager
def _listening(handler: type[BaseHTTPRequestHandler], tls: tuple[str, str] | None) -> Generator[int]:
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    provider: Provider

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        self.provider.others.append(self.path)
        self._send(404, {"error": {"message": "not found", "type": "invalid_request_error"}})

    def do_POST(self) -> None:
        data = self._body()
        path = self.path.partition("?")[0]
        if path.endswith("/embeddings"):
            self.provider.others.append(path)
            return self._send(200, embeddings(data))
        if not path.endswith(CHATS[:2]):
            self.provider.others.append(path)
            return self._send(404, {"error": {"message": f"unknown path {path}", "type": "invalid_request_error"}})
        answer = self.provider.chat(path, data)
        if answer.hang:
            self.provider.stopped.wait()
            return None
        if answer.status is not None:
            return self._send(answer.status, error_body(answer.status), STATUS_HEADERS)
        number = next(self.provider.numbers)
        if path.endswith("/responses"):
            return self._responses(data, answer, number)
        return self._chat(data, answer, number)

    def _body(self) -> Any:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            raw = bytearray()
            while size := int(self.rfile.readline().split(b";")[0], 16):
                raw += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        return json.loads(bytes(raw) or b"{}")

    def _send(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Sequence[bytes], *, held: bool = False) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events:
            self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            self.wfile.flush()
        if held:
            self.provider.stopped.wait()
            return
        self.wfile.write(b"0\r\n\r\n")

    def _chat(self, body: dict[str, Any], answer: Answer, number: int) -> None:
        if body.get("stream"):
            return self._stream(chat_events(body, answer, number), held=answer.held)
        return self._send(200, chat_answer(body, answer, number))

    def _responses(self, body: dict[str, Any], answer: Answer, number: int) -> None:
        if body.get("stream"):
            return self._stream(response_events(body, answer, number))
        return self._send(200, response_answer(body, answer, number))

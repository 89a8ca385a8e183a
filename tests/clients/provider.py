"""`provider`: an HTTP server that answers as OpenAI's and Anthropic's APIs do, from the recorded exchanges.

What a client sees of it is what the agent would see without Leyden. Knows nothing of Leyden.
"""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from exchanges import Exchange, name_in

WRONG_KEY = "sk-wrong"
HELD_SECONDS = 3.0
"""Time after which an answer comes that no client waits for."""
HEADERS = {
    "openai-organization": "example-organization",
    "openai-processing-ms": "12",
    "openai-version": "2020-10-01",
    "x-ratelimit-limit-requests": "10000",
    "x-ratelimit-remaining-requests": "9999",
    "x-request-id": "req_4c1d7f0a92be46d3b0b6a5f2c8e91d37",
}


ANTHROPIC_HEADERS = {
    "anthropic-organization-id": "example-organization",
    "request-id": "req_4c1d7f0a92be46d3b0b6a5f2c8e91d37",
}


class _Handler(BaseHTTPRequestHandler):
    exchanges: Mapping[str, Exchange]
    tries: Counter[str]
    """How often each exchange was requested."""
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Answer the exchange that the body names, as far as the client wants to hear it."""
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        exchange = self.exchanges[self._name(body)]
        self.tries[exchange.name] += 1
        if exchange.before is not None and self.tries[exchange.name] % 2:
            exchange = msgspec.structs.replace(
                exchange, status=exchange.before.status, answer=exchange.before.answer, events=None
            )
        with suppress(ConnectionError):
            if exchange.events is None:
                self._answer(exchange)
            else:
                self._stream(exchange, _counted(exchange.events, body))

    def _name(self, body: str) -> str:
        """The exchange that the body names; any other than the one about a key needs the right key."""
        key = self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")
        name = name_in(body)
        assert key != WRONG_KEY or name.endswith("error_key")
        return name

    def _start(self, exchange: Exchange, content_type: str, **framing: str) -> None:
        own = ANTHROPIC_HEADERS if exchange.dialect == "messages" else HEADERS
        if exchange.answer and "request_id" in exchange.answer:
            own = {**own, "request-id": exchange.answer["request_id"]}
        self.send_response(exchange.status)
        for name, value in {"content-type": content_type, **own, **exchange.headers, **framing}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _answer(self, exchange: Exchange) -> None:
        for draw in exchange.draws:
            time.sleep(draw.pause * len(draw.text) / (draw.piece or 1) + (HELD_SECONDS if draw.held else 0))
        content = json.dumps(exchange.answer).encode()
        self._start(exchange, "application/json", content_length=str(len(content)))
        self.wfile.write(content)

    def _stream(self, exchange: Exchange, events: list[dict[str, Any]]) -> None:
        self._start(exchange, "text/event-stream; charset=utf-8", transfer_encoding="chunked")
        for event in events:
            named = f"event: {event['type']}\n" if "type" in event else ""
            self._write(f"{named}data: {json.dumps(event)}\n\n")
            time.sleep(exchange.draws[0].pause)
        if exchange.endpoint == "/chat/completions":
            self._write("data: [DONE]\n\n")
        self._write("")

    def _write(self, text: str) -> None:
        self.wfile.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())
        self.wfile.flush()


def _counted(events: list[dict[str, Any]], body: str) -> list[dict[str, Any]]:
    """The events with token counts, if the client requests them and the recording has none."""
    options: dict[str, Any] = json.loads(body).get("stream_options") or {}
    if not options.get("include_usage") or "usage" in events[0]:
        return events
    counts = {"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29, **_DETAILS}
    return [*({**event, "usage": None} for event in events), {**events[0], "choices": [], "usage": counts}]


_DETAILS = {
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {
        "reasoning_tokens": 0,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def provider(exchanges: Mapping[str, Exchange]) -> Generator[str]:
    """Serve `exchanges` on a free loopback port inside the block; gives the base URL."""
    handler = type("Bound", (_Handler,), {"exchanges": exchanges, "tries": Counter[str]()})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

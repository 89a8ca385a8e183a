"""`chat_endpoint`: a small OpenAI-compatible server that always returns the same text, and records its requests.

It stands in for a model of the user's own at another provider.
"""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from leyden.core.testing.servers.http_handler import served


@dataclass
class ChatEndpoint:
    """URL and recorded requests of the endpoint."""

    url: str = ""
    """Its base URL for an OpenAI client."""
    seen: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Every request's decoded `body`, and its `key`, the value of the authorization header."""


@contextmanager
def chat_endpoint(text: str | Callable[[dict[str, Any]], str]) -> Generator[ChatEndpoint]:
    """Answer every chat completion with `text` inside the block, under the requested model's name.

    `text` may be a function of the request's body, which is called on a thread of the server. Other paths get status
    404.
    """
    endpoint = ChatEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

        def do_POST(self) -> None:
            """Record the request, and answer it."""
            content = self.rfile.read(int(self.headers["content-length"]))
            if not self.path.endswith("/chat/completions"):
                return self._send(404, {"error": {"message": f"There is no {self.path}.", "code": 404}})
            body = json.loads(content)
            endpoint.seen.append({"body": body, "key": self.headers["authorization"]})
            self._send(200, _completion(body["model"], text if isinstance(text, str) else text(body)))

        def _send(self, status: int, answer: dict[str, Any]) -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with served(Handler) as url:
        endpoint.url = f"{url}/v1"
        yield endpoint


def _completion(model: str, text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    }

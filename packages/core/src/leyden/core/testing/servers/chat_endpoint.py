"""`chat_endpoint`: a little OpenAI-compatible server that always says the same, and remembers what it was asked.

Stands in for a model of the user's own, elsewhere. Knows nothing of tokens.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from leyden.core.testing.servers.http_handler import served


@dataclass
class ChatEndpoint:
    """What the endpoint was asked."""

    url: str = ""
    """Its base URL, as an OpenAI client takes it."""
    seen: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Every request's `body`, as it decodes, and the `key` it came with, as the header says it."""


@contextmanager
def chat_endpoint(text: str) -> Generator[ChatEndpoint]:
    """Answer every chat completion with `text` inside the block, by the model that was asked for."""
    endpoint = ChatEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            """Answer."""
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            endpoint.seen.append({"body": body, "key": self.headers["authorization"]})
            data = json.dumps(_completion(body["model"], text)).encode()
            self.send_response(200)
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

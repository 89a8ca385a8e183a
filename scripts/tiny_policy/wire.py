"""Answers an agent's model calls in this process: what stands where its provider would be.

Knows Chat Completions without streaming, which is what the example agent speaks; nothing of tokens or of policies.
"""

import json
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import httpx

Message = dict[str, Any]
CALL = re.compile(r'<tool_call>\n\{"name": "(\w+)", "arguments": (\{.*\})\}\n</tool_call>', re.DOTALL)
Answer = Callable[[dict[str, Any]], Awaitable[Message]]
"""From a request's body to the assistant message that answers it."""


def assistant_call(name: str, arguments: str) -> Message:
    """An assistant message that calls one tool; `arguments` is JSON text."""
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }


def assistant_text(content: str) -> Message:
    """An assistant message that says something."""
    return {"role": "assistant", "content": content}


def call_text(name: str, arguments: str) -> str:
    """What a policy writes to call one tool; `arguments` is JSON text."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def message_from(text: str) -> Message:
    """The assistant message that a policy's text means."""
    match = CALL.fullmatch(text)
    if match is None:
        return assistant_text(text)
    try:
        json.loads(match[2])
    except ValueError:
        return assistant_text(text)
    return assistant_call(match[1], match[2])


@contextmanager
def answered_by(answer: Answer) -> Generator[None]:
    """Let `answer` reply to every asynchronous httpx request until the block ends; nothing reaches a network."""
    original = httpx.AsyncHTTPTransport.handle_async_request

    async def reply(self: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        return httpx.Response(200, json=_completion(body["model"], await answer(body)))

    httpx.AsyncHTTPTransport.handle_async_request = reply
    try:
        yield
    finally:
        httpx.AsyncHTTPTransport.handle_async_request = original


def _completion(model: str, message: Message) -> dict[str, Any]:
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }

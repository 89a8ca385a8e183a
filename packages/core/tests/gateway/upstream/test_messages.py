"""An endpoint that answers calls of the Messages API in the policy's place, seen from both sides."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam
from starlette.types import Receive, Scope, Send

from leyden.core.data import semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.data.span import Span
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.http.asgi import send_json
from leyden.core.gateway.http.body import BodyLimits, read_body
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.upstream import relay
from leyden.core.gateway.upstream.answer_view import AnswerView, ended, read_answer
from leyden.core.gateway.upstream.relay import Upstream
from leyden.core.store.memory import MemoryStore

pytestmark = pytest.mark.integration

QUESTION: list[MessageParam] = [{"role": "user", "content": "What is 1 + 2?"}]
ANSWER: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "real-model",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 7},
    "a field": "of its own",
}
EVENTS: list[dict[str, Any]] = [
    {
        "type": "message_start",
        "message": ANSWER
        | {"content": [], "stop_reason": None, "usage": ANSWER["usage"] | {"input_tokens": 5, "output_tokens": 1}},
    },
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}},
    },
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a": '}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
    {"type": "content_block_stop", "index": 1},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 7},
    },
    {"type": "message_stop"},
]
MESSAGE = {
    "role": "assistant",
    "content": "Hello",
    "tool_calls": [{"id": "toolu_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
    "refusal": None,
    "annotations": [],
}


def stream_of(events: list[dict[str, Any]]) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


class Provider:
    """A stand-in for another endpoint: it sends prepared answers, and keeps the requests."""

    def __init__(self, status: int, body: bytes, content_type: bytes) -> None:
        self.seen: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self._status, self._body, self._content_type = status, body, content_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.seen.append((scope["path"], headers, json.loads(await read_body(scope, receive, BodyLimits()))))
        if self._content_type == b"application/json":
            return await send_json(send, self._status, self._body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", self._content_type)]})
        for n in range(0, len(self._body), 50):
            await send({"type": "http.response.body", "body": self._body[n : n + 50], "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Dev:
    """A gateway in front of `provider`, with one open attempt and a client."""

    def __init__(
        self, url: str, provider: Provider, endpoint: GatewayServer, store: MemoryStore, rollout_id: str
    ) -> None:
        self.url, self.provider, self._endpoint = url, provider, endpoint
        self._store, self._rollout_id = store, rollout_id

    def client(self, **how: Any) -> Any:
        return anthropic.AsyncAnthropic(base_url=self.url, api_key="sk-the-agents", max_retries=0, **how)

    async def spans(self) -> list[Span]:
        return (await self._store.query_spans(self._rollout_id)).items

    async def only_span(self) -> Span:
        [span] = await self.spans()
        return span

    async def stop_endpoint(self) -> None:
        await self._endpoint.stop()


@asynccontextmanager
async def dev(
    body: bytes, status: int = 200, content_type: bytes = b"application/json", model: str = "real-model"
) -> AsyncGenerator[Dev]:
    provider, store, key = Provider(status, body, content_type), MemoryStore(), new_key()
    endpoint = GatewayServer(provider)
    server = GatewayServer(Gateway(store, Upstream(f"{await endpoint.start()}/v1", "sk-configured", model), key).app)
    url = await server.start()
    rollout = await store.start_rollout("task")
    token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
    try:
        yield Dev(f"{url}/a/{token}", provider, endpoint, store, rollout.rollout_id)
    finally:
        await server.stop()
        await endpoint.stop()


async def test_a_call_is_forwarded_with_our_key_and_answered_unchanged() -> None:
    tool = {"name": "add", "input_schema": {"type": "object"}}
    how: dict[str, Any] = {"max_tokens": 9, "messages": QUESTION, "system": "Add.", "tools": [tool]}
    async with dev(json.dumps(ANSWER).encode()) as run, run.client() as agent:
        answer = await agent.messages.create(model="claude", tool_choice={"type": "auto"}, **how)
        [(path, headers, body)] = run.provider.seen
        span = await run.only_span()
    assert answer.content[1].text == "Hello"
    assert (answer.id, answer.usage.output_tokens) == ("msg_1", 7)
    assert path == "/v1/messages"
    assert body == {"model": "real-model", "tool_choice": {"type": "auto"}, **how}
    assert (headers["x-api-key"], headers["authorization"]) == ("sk-configured", "Bearer sk-configured")
    assert "sk-the-agents" not in json.dumps(headers)
    messages = json.loads(str(span.attributes[semconv.INPUT_MESSAGES]))
    assert messages == [{"role": "system", "content": "Add."}, {"role": "user", "content": "What is 1 + 2?"}]
    [function] = json.loads(str(span.attributes[semconv.TOOL_DEFINITIONS]))
    assert function == {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    assert json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES])) == [MESSAGE]
    assert (span.attributes[semconv.INPUT_TOKENS], span.attributes[semconv.OUTPUT_TOKENS]) == (7, 7)
    assert span.attributes[semconv.DIALECT] == "messages"
    assert span.attributes[semconv.RESPONSE_ID] == "msg_1"


async def test_a_stream_is_passed_on_and_recorded() -> None:
    body = stream_of(EVENTS)
    async with dev(body, content_type=b"text/event-stream; charset=utf-8") as run, run.client() as agent:
        how: dict[str, Any] = {"model": "claude", "max_tokens": 9, "messages": QUESTION}
        async with agent.messages.stream(**how) as events:
            answer = await events.get_final_message()
        span = await run.only_span()
    assert (answer.content[0].text, answer.content[1].input) == ("Hello", {"a": 1})
    assert json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES])) == [MESSAGE]
    assert (span.attributes[semconv.INPUT_TOKENS], span.attributes[semconv.OUTPUT_TOKENS]) == (7, 7)
    assert span.attributes[semconv.FINISH_REASONS] == ["tool_calls"]


async def test_the_versions_that_the_agent_asks_for_are_passed_on() -> None:
    headers = {"anthropic-beta": "one, two", "anthropic-version": "2026-01-01"}
    async with dev(json.dumps(ANSWER).encode()) as run, run.client(default_headers=headers) as agent:
        await agent.messages.create(model="claude", max_tokens=9, messages=QUESTION)
        [(_, sent, _)] = run.provider.seen
    assert {name: sent[name] for name in headers} == headers


async def test_anthropics_own_endpoint_gets_the_key_in_its_own_header_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "ANTHROPIC_HOST", "127.0.0.1")
    async with dev(json.dumps(ANSWER).encode()) as run, run.client() as agent:
        await agent.messages.create(model="claude", max_tokens=9, messages=QUESTION)
        [(_, headers, _)] = run.provider.seen
    assert headers["x-api-key"] == "sk-configured"
    assert "authorization" not in headers
    assert headers["anthropic-version"] >= relay.MESSAGES_VERSION


@pytest.mark.parametrize("status", [404, 405])
async def test_an_endpoint_without_the_api_is_reported_in_one_line(status: int) -> None:
    async with dev(b'{"detail":"Not Found"}', status) as run, run.client() as agent:
        with pytest.raises(anthropic.NotFoundError) as raised:
            await agent.messages.create(model="claude", max_tokens=9, messages=QUESTION)
        span = await run.only_span()
    assert raised.value.type == "not_found_error"
    message = str(raised.value.api_message)
    assert message.startswith("The endpoint has no Messages API: it answered POST http://127.0.0.1:")
    assert message.endswith(
        f"/v1/messages with status {status}. Give an endpoint that has it, or let the agent use a client of Chat "
        "Completions."
    )
    assert span.status.code == "error"


async def test_an_error_of_the_endpoint_is_passed_on() -> None:
    error = {"type": "error", "error": {"type": "not_found_error", "message": "model: claude"}, "request_id": "req_1"}
    async with dev(json.dumps(error).encode(), 404) as run, run.client() as agent:
        with pytest.raises(anthropic.NotFoundError) as raised:
            await agent.messages.create(model="claude", max_tokens=9, messages=QUESTION)
    assert raised.value.body == error


async def test_tokens_are_counted_by_the_endpoint_and_not_recorded() -> None:
    async with dev(b'{"input_tokens":14}') as run, run.client(default_headers={"anthropic-beta": "one"}) as agent:
        counted = await agent.messages.count_tokens(model="claude", messages=QUESTION, system="Add.")
        [(path, headers, body)] = run.provider.seen
        assert await run.spans() == []
    assert counted.input_tokens == 14
    assert path == "/v1/messages/count_tokens"
    assert body == {"model": "real-model", "messages": QUESTION, "system": "Add."}
    assert (headers["x-api-key"], headers["anthropic-beta"]) == ("sk-configured", "one")
    assert "sk-the-agents" not in json.dumps(headers)


async def test_an_endpoint_that_counts_no_tokens_is_reported_in_one_line() -> None:
    async with dev(b'{"detail":"Not Found"}', 404) as run, run.client() as agent:
        with pytest.raises(anthropic.NotFoundError) as raised:
            await agent.messages.count_tokens(model="claude", messages=QUESTION)
    assert raised.value.type == "not_found_error"
    message = str(raised.value.api_message)
    assert message.startswith("The endpoint counts no tokens: it answered POST http://127.0.0.1:")
    assert message.endswith(
        "/v1/messages/count_tokens with status 404. Count them in the agent, or give an endpoint that does."
    )


async def test_an_error_of_a_count_is_passed_on() -> None:
    error = {"type": "error", "error": {"type": "not_found_error", "message": "model: claude"}, "request_id": "req_1"}
    async with dev(json.dumps(error).encode(), 404) as run, run.client() as agent:
        with pytest.raises(anthropic.NotFoundError) as raised:
            await agent.messages.count_tokens(model="claude", messages=QUESTION)
    assert raised.value.body == error


async def test_a_count_of_an_endpoint_that_is_down_is_an_error_of_the_dialect() -> None:
    async with dev(b"{}") as run, run.client() as agent:
        await run.stop_endpoint()
        with pytest.raises(anthropic.InternalServerError) as raised:
            await agent.messages.count_tokens(model="claude", messages=QUESTION)
    assert (raised.value.status_code, raised.value.type) == (502, "api_error")


async def test_a_picture_is_recorded_in_the_format_of_chat_completions() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    async with dev(json.dumps(ANSWER).encode()) as run, run.client() as agent:
        await agent.messages.create(model="claude", max_tokens=9, messages=messages)
        span = await run.only_span()
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert json.loads(str(span.attributes[semconv.INPUT_MESSAGES])) == [{"role": "user", "content": [part]}]


def test_a_stream_is_read_as_far_as_it_came() -> None:
    view = read_answer(stream_of(EVENTS[:4]), streamed=True)
    assert json.loads(view.output or "")[0]["content"] == "Hel"
    assert (view.finish_reason, view.usage, view.model, view.id) == (None, (7, 1), "real-model", "msg_1")
    assert not ended(stream_of(EVENTS[:-1]))
    assert ended(stream_of(EVENTS))


def test_a_text_that_looks_like_the_end_does_not_end_a_stream() -> None:
    delta = {"type": "text_delta", "text": "\nevent: message_stop"}
    assert not ended(stream_of([EVENTS[0], {"type": "content_block_delta", "index": 0, "delta": delta}]))


@pytest.mark.parametrize(
    "body",
    [
        b'{"type": "message", "role": "assistant", "content": 3}',
        b'{"type": "message", "role": "user"}',
        b'event: message_start\ndata: {"type": "message_start"}\n\n',
        b"event: message_stop\ndata: {}\n\n",
    ],
)
def test_what_is_no_answer_says_nothing(body: bytes) -> None:
    assert read_answer(body, streamed=False) == read_answer(body, streamed=True) == AnswerView()

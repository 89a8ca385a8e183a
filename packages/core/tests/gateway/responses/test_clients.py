"""The Responses API as frameworks use it: LangChain, and requests as agents send them; and behind it, an upstream."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai.types.responses import Response
from starlette.types import Receive, Scope, Send

from leyden.core.data import semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.data.span import Span
from leyden.core.engine.base import GenerateRequest
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.http.asgi import send_json
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.upstream.answer_view import AnswerView, ended, read_answer
from leyden.core.gateway.upstream.relay import Upstream
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, scripted_gateway

pytestmark = pytest.mark.usefixtures("closed_http_clients")

CODEC = ByteCodec()
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ADD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}


def adding(request: GenerateRequest) -> ScriptedAnswer:
    """Call a tool, and say what it returned."""
    read = bytes(token for token in request.prompt_ids if token < 256).decode()
    _, answered, rest = read.rpartition("tool\n")
    text = f"It is {rest[0]}." if answered else f"Hm. {CALL}"
    return ScriptedAnswer(ids=CODEC.answer(text), chunk_size=3)


def model(attempt: AttemptHandle, **how: Any) -> Any:
    return ChatOpenAI(model="gpt-4o", base_url=attempt.base_url, api_key="x", use_responses_api=True, **how)  # pyright: ignore[reportArgumentType]  # a plain key


async def _answer_of(bound: Any, messages: list[BaseMessage], stream: bool) -> AIMessage:
    if not stream:
        return await bound.ainvoke(messages)
    received: Any = None
    async for chunk in bound.astream(messages):
        received = chunk if received is None else received + chunk
    return received


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", [{}, {"use_previous_response_id": True}, {"output_version": "v1"}, {"store": False}])
async def test_langchain_goes_round_a_tool(how: dict[str, Any], stream: bool) -> None:
    async with scripted_gateway(adding) as gateway:
        attempt = await gateway.open_attempt()
        bound = model(attempt, **how).bind_tools([ADD])
        messages: list[BaseMessage] = [SystemMessage("Add."), HumanMessage("1 + 2?")]
        first_answer = await _answer_of(bound, messages, stream)
        [call] = first_answer.tool_calls
        messages += [first_answer, ToolMessage("3", tool_call_id=str(call["id"]))]
        answer = await _answer_of(bound, messages, stream)
        spans = await gateway.calls(attempt)
    assert (call["name"], call["args"]) == ("add", {"a": 1})
    assert (first_answer.text, answer.text) == ("Hm. ".strip(), "It is 3.")
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] == spans[1].attributes[semconv.INPUT_TOKENS]
    assert answer.response_metadata["id"] == spans[1].attributes[semconv.RESPONSE_ID]
    conversation = json.loads(str(spans[1].attributes[semconv.INPUT_MESSAGES]))
    assert [message["role"] for message in conversation] == ["system", "user", "assistant", "tool"]
    assert conversation[2]["tool_calls"][0]["id"] == conversation[3]["tool_call_id"] == call["id"]


async def test_langchain_streams_what_it_gets_at_once() -> None:
    async with scripted_gateway(adding) as gateway:
        bound = model(await gateway.open_attempt()).bind_tools([ADD], tool_choice="none")
        shown = [chunk.text async for chunk in bound.astream("1 + 2?")]
    assert len([text for text in shown if text]) > 2
    assert "".join(shown) == f"Hm. {CALL}"


async def test_a_request_as_agent_loops_send_it() -> None:
    tool: dict[str, Any] = {"type": "function", "name": "add", "parameters": {}, "strict": True, "description": "adds"}
    common: dict[str, Any] = {
        "model": "gpt-5-codex",
        "instructions": "You are an agent.",
        "tools": [tool],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
        "text": {"verbosity": "low"},
    }
    first_answer: list[Any] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1 + 2?"}]}
    ]
    async with scripted_gateway(adding) as gateway:
        attempt = await gateway.open_attempt()
        async with openai.AsyncOpenAI(base_url=attempt.base_url, api_key="x", max_retries=0) as agent:
            async with agent.responses.stream(**common, input=first_answer) as stream:
                first = await stream.get_final_response()
            echoed = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output]
            reasoning: dict[str, Any] = {
                "type": "reasoning",
                "summary": [],
                "content": None,
                "encrypted_content": "gAAA",
            }
            output = {"type": "function_call_output", "call_id": echoed[-1]["call_id"], "output": "3"}
            again: Any = [*first_answer, reasoning, *echoed, output]
            create: Any = agent.responses.create
            second: Response = await create(**common, input=again)
    assert second.output_text == "It is 3."
    assert second.reasoning is not None
    assert second.reasoning.effort == "medium"


RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "real-model",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    ],
    "usage": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12},
}
CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGE = {"role": "assistant", "content": "Hello", "tool_calls": [CALLED], "refusal": None, "annotations": []}
PIECES: list[dict[str, Any]] = [
    {"type": "response.created", "response": RESPONSE | {"status": "in_progress", "output": [], "usage": None}},
    {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "content": []}},
    {"type": "response.output_text.delta", "output_index": 0, "delta": "Hel"},
    {"type": "response.output_text.delta", "output_index": 0, "delta": "lo"},
    {
        "type": "response.output_item.added",
        "output_index": 1,
        "item": {"type": "function_call", "call_id": "c1", "name": "f", "arguments": ""},
    },
    {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{}"},
]


def _stream(pieces: list[dict[str, Any]]) -> bytes:
    return b"".join(f"event: {piece['type']}\ndata: {json.dumps(piece)}\n\n".encode() for piece in pieces)


def test_an_upstreams_answer_is_read_whole_and_in_part() -> None:
    whole = read_answer(json.dumps(RESPONSE).encode(), streamed=False)
    assert json.loads(whole.output or "") == [MESSAGE]
    assert (whole.finish_reason, whole.usage, whole.model) == ("tool_calls", (5, 7), "real-model")
    cut = RESPONSE | {"status": "incomplete"}
    assert read_answer(json.dumps(cut).encode(), streamed=False).finish_reason == "length"
    part = read_answer(_stream(PIECES), streamed=True)
    assert json.loads(part.output or "") == [MESSAGE]
    assert (part.finish_reason, part.usage, part.model) == (None, None, "real-model")
    last: dict[str, Any] = {"type": "response.completed", "response": RESPONSE | {"output": []}}
    done = read_answer(_stream([*PIECES, last]), streamed=True)
    assert (done.output, done.finish_reason, done.usage) == (part.output, "tool_calls", (5, 7))
    assert not ended(_stream(PIECES))
    assert ended(_stream([*PIECES, last]))


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"object": "response", "output": 3}', b"data: {}\n\n"])
def test_what_is_no_answer_says_nothing(body: bytes) -> None:
    assert read_answer(body, streamed=False) == read_answer(body, streamed=True) == AnswerView()


@asynccontextmanager
async def forwarding(body: bytes, content_type: bytes) -> AsyncGenerator[tuple[str, MemoryStore, str]]:
    """Serve a gateway in front of an endpoint that always answers `body`."""

    async def provider(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and content_type == b"application/json":
            await send_json(send, 200, body)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type)]})
            await send({"type": "http.response.body", "body": body})

    store, key, behind = MemoryStore(), new_key(), GatewayServer(provider)
    server = GatewayServer(Gateway(store, Upstream(await behind.start() + "/v1", None, "real-model"), key).app)
    rollout = await store.start_rollout("a task", mode="train")
    url = await server.start()
    try:
        yield f"{url}/a/{mint(key, rollout.rollout_id, rollout.attempt.attempt_id)}/v1", store, rollout.rollout_id
    finally:
        await server.stop()
        await behind.stop()
        await store.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_upstreams_answer_is_passed_on_and_recorded(stream: bool) -> None:
    last = {"type": "response.completed", "response": RESPONSE}
    body = _stream([*PIECES, last]) if stream else json.dumps(RESPONSE).encode()
    kind = b"text/event-stream" if stream else b"application/json"
    async with forwarding(body, kind) as (url, store, rollout_id), httpx.AsyncClient() as http:
        answer = await http.post(f"{url}/responses", json={"model": "m", "input": "hi", "stream": stream})
        spans: list[Span] = (await store.query_spans(rollout_id)).items
    assert answer.content == body
    [span] = spans
    assert json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES])) == [MESSAGE]
    assert span.attributes[semconv.DIALECT] == "responses"
    assert span.attributes[semconv.OUTPUT_TOKENS] == 7

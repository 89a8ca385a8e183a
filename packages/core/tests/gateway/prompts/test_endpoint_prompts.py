"""Prompts that are replaced on their way to an endpoint, seen from both sides."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from leyden.core.data import semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.prompts.matching import CallerEdits, ReplacedText
from leyden.core.data.span import Span
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.http.asgi import send_json
from leyden.core.gateway.http.body import BodyLimits, read_body
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.prompts.echo import EchoFilter
from leyden.core.gateway.prompts.request import Replacement, edited_body
from leyden.core.gateway.upstream.relay import Upstream
from leyden.core.store.memory import MemoryStore
from leyden.core.trajectory.prompts.discover import RecordedCalls, find_prompts

pytestmark = pytest.mark.integration

OWN, NEW = "You solve {v1} sums.", "For {v1} sums: be {{careful}}."
SENT, REPLACED = "You solve hard sums.", "For hard sums: be {careful}."
SYSTEM = PromptComponent(name="system", role="system", text=OWN, new_text=NEW)
TOOL = PromptComponent(name="tool", role="tool", tool="add", text="adds", new_text="adds numbers")
FORMAT = PromptComponent(name="format", role="output", tool="sum", text="a sum", new_text="the exact sum")
CHAT = {
    "id": "1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "3"}, "finish_reason": "stop"}],
}  # fmt: skip


def response_of(request: dict[str, Any]) -> dict[str, Any]:
    """Return a response that repeats what an endpoint of the Responses API repeats."""
    part: dict[str, Any] = {"type": "output_text", "text": "3", "annotations": []}
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed",
        "instructions": request.get("instructions"), "tools": request.get("tools", []),
        "text": request.get("text", {"format": {"type": "text"}}),
        "output": [{"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}],
        "parallel_tool_calls": True, "tool_choice": "auto", "temperature": 1.0, "top_p": 1.0, "metadata": {},
    }  # fmt: skip


class Provider:
    """A stand-in for an endpoint with all four APIs, which keeps the requests."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body: dict[str, Any] = json.loads(await read_body(scope, receive, BodyLimits()))
        self.seen.append((scope["path"], body))
        if scope["path"].endswith("count_tokens"):
            return await send_json(send, 200, b'{"input_tokens": 9}')
        if scope["path"].endswith("/responses"):
            return await self._respond(body, send)
        message: dict[str, Any] = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [],
            "usage": {},
        }
        await send_json(send, 200, json.dumps(message if scope["path"].endswith("/messages") else CHAT).encode())

    async def _respond(self, body: dict[str, Any], send: Send) -> None:
        answer = response_of(body)
        if not body.get("stream"):
            return await send_json(send, 200, json.dumps(answer).encode())
        events = [
            {"type": kind, "sequence_number": number, "response": answer}
            for number, kind in enumerate(("response.created", "response.in_progress", "response.completed"))
        ]
        data = b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for start in range(0, len(data), 70):
            await send({"type": "http.response.body", "body": data[start : start + 70], "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Run:
    """A gateway in front of `provider`, with one open attempt."""

    def __init__(self, provider: Provider, store: MemoryStore, rollout_id: str, root: str) -> None:
        self.provider, self.root = provider, root
        self._store, self._rollout_id = store, rollout_id

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.root}/v1", api_key="x", max_retries=0)

    async def spans(self) -> list[Span]:
        return (await self._store.query_spans(self._rollout_id)).items


@asynccontextmanager
async def run_with(*components: PromptComponent, as_default: bool = False) -> AsyncGenerator[Run]:
    provider, store, key = Provider(), MemoryStore(), new_key()
    endpoint = GatewayServer(provider)
    gateway = Gateway(store, Upstream(f"{await endpoint.start()}/v1", None), key)
    edits = PromptEdits(components=components)
    if as_default:
        gateway.edit_prompts(edits)
    else:
        await store.add_resources({"prompts": edits})
    server = GatewayServer(gateway.app)
    url = await server.start()
    rollout = await store.start_rollout("task")
    token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
    try:
        yield Run(provider, store, rollout.rollout_id, f"{url}/a/{token}")
    finally:
        await server.stop()
        await endpoint.stop()


@pytest.mark.parametrize("as_default", [False, True])
async def test_an_endpoint_gets_the_new_texts_and_the_record_has_both(as_default: bool) -> None:
    function: Any = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"x": 1e5}}}
    schema: Any = {"type": "json_schema", "json_schema": {"name": "sum", "description": "a sum", "schema": {}}}
    messages: list[Any] = [{"role": "system", "content": SENT}, {"role": "user", "content": "1 + 2"}]
    async with run_with(SYSTEM, TOOL, FORMAT, as_default=as_default) as run:
        async with run.client() as agent:
            reply = await agent.chat.completions.create(
                model="m", messages=messages, tools=[function], response_format=schema
            )
        [(_, body)] = run.provider.seen
        [span] = await run.spans()
    assert body["messages"] == [{"role": "system", "content": REPLACED}, messages[1]]
    assert body["tools"][0]["function"]["description"] == "adds numbers"
    assert body["response_format"]["json_schema"]["description"] == "the exact sum"
    assert reply.choices[0].message.content == "3"
    assert json.loads(str(span.attributes[semconv.INPUT_MESSAGES])) == body["messages"]
    edits = msgspec.json.decode(str(span.attributes[semconv.PROMPT_EDITS]), type=list[ReplacedText])
    assert {edit.component: edit.own for edit in edits} == {"system": SENT, "tool": "adds", "format": "a sum"}


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_do_not_show_the_replaced_texts(stream: bool) -> None:
    tools: Any = [{"type": "function", "name": "add", "description": "adds", "parameters": {}, "strict": True}]
    text: Any = {"format": {"type": "json_schema", "name": "sum", "description": "a sum", "schema": {}}}
    how: dict[str, Any] = {"model": "m", "input": "1 + 2", "instructions": SENT, "tools": tools, "text": text}
    async with run_with(SYSTEM, TOOL, FORMAT) as run:
        async with run.client() as client:
            agent: Any = client
            if stream:
                events: list[Any] = [event async for event in await agent.responses.create(stream=True, **how)]
                reply: Any = events[-1].response
                shown = repr(events)
            else:
                reply = await agent.responses.create(**how)
                shown = repr(reply)
        [(_, body)] = run.provider.seen
    assert (body["instructions"], body["input"]) == (REPLACED, "1 + 2")
    assert (body["tools"][0]["description"], body["text"]["format"]["description"]) == ("adds numbers", "the exact sum")
    assert (reply.instructions, reply.tools[0].description) == (SENT, "adds")
    assert not any(new in shown for new in (REPLACED, "adds numbers", "the exact sum"))


async def test_two_places_with_one_new_text_get_their_own_texts_back() -> None:
    """A tool whose own description is another's new text keeps it, too."""
    other = PromptComponent(name="other", role="tool", tool="sub", text="subtracts", new_text="adds numbers")
    descriptions = {"add": "adds", "sub": "subtracts", "mul": "adds numbers"}
    tools: Any = [
        {"type": "function", "name": name, "description": text, "parameters": {}, "strict": True}
        for name, text in descriptions.items()
    ]
    asked: Any = [{"role": "system", "content": SENT}, {"role": "user", "content": "1 + 2"}]
    async with run_with(SYSTEM, TOOL, other) as run:
        async with run.client() as client:
            agent: Any = client
            reply = await agent.responses.create(model="m", input=asked, instructions=REPLACED, tools=tools)
            later = await agent.responses.create(model="m", input=asked, tools=tools)
        bodies = [body for _, body in run.provider.seen]
    assert [tool["description"] for tool in bodies[0]["tools"]] == ["adds numbers"] * 3
    assert {tool.name: tool.description for tool in reply.tools} == descriptions
    assert (bodies[1]["input"][0]["content"], later.instructions) == (REPLACED, None)
    assert reply.instructions == REPLACED


async def test_messages_and_their_counts_have_the_new_text_in_one_block() -> None:
    component = PromptComponent(name="s", role="system", text="One.\nTwo {v1}.", new_text="New {v1}.")
    user = PromptComponent(name="u", role="user", part=1, text="Look: {v1}", new_text="See: {v1}")
    system: list[Any] = [
        {"type": "text", "text": "One."},
        {"type": "text", "text": "Two 2.", "cache_control": {"type": "ephemeral"}},
    ]
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    content: list[Any] = [{"type": "text", "text": "a"}, image, {"type": "text", "text": "Look: b"}]
    how: dict[str, Any] = {"model": "m", "system": system, "messages": [{"role": "user", "content": content}]}
    async with run_with(component, user) as run:
        async with anthropic.AsyncAnthropic(base_url=run.root, api_key="x", max_retries=0) as agent:
            await agent.messages.create(max_tokens=5, **how)
            await agent.messages.count_tokens(**how)
        bodies = [body for _, body in run.provider.seen]
    for body in bodies:
        assert body["system"] == [{"type": "text", "text": "New 2.", "cache_control": {"type": "ephemeral"}}]
        assert body["messages"][0]["content"] == [*content[:2], {"type": "text", "text": "See: b"}]


async def test_prompts_beside_a_document_are_found_as_they_are_replaced() -> None:
    system = PromptComponent(name="system", role="system", text="One.\nTwo.", new_text="Three.")
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a page"}}
    blocks: list[Any] = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    content: list[Any] = [document, {"type": "text", "text": "What does this page say about the task?"}]
    async with run_with(system) as run:
        async with anthropic.AsyncAnthropic(base_url=run.root, api_key="x", max_retries=0) as agent:
            messages: Any = [{"role": "user", "content": content}]
            await agent.messages.create(max_tokens=5, model="m", system=blocks, messages=messages)
        [(_, body)] = run.provider.seen
        spans = await run.spans()
    found = find_prompts([RecordedCalls(task="the task", spans=spans)])
    assert body["system"] == [{"type": "text", "text": "Three."}]
    assert [(one.role, one.text) for one in found.edits.components] == [
        ("system", "One.\nTwo."),
        ("user", "What does this page say about {v1}?"),
    ]


async def test_a_continued_conversation_has_no_first_message() -> None:
    user = PromptComponent(name="u", role="user", text="Task: {v1}", new_text="Do: {v1}")
    async with run_with(user) as run:
        async with run.client() as agent:
            await agent.responses.create(model="m", input="Task: a")
            await agent.responses.create(model="m", input="Task: b", previous_response_id="resp_1")
        inputs = [body["input"] for _, body in run.provider.seen]
    assert inputs == ["Do: a", "Task: b"]


async def test_a_body_without_a_component_is_sent_byte_for_byte() -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Other."}, {"role": "user", "content": SENT}]
    body = json.dumps({"messages": messages, "model": "m", "seed": 1e5, "x": 10**30}, indent=1).encode()
    assert edited_body(CallerEdits([SYSTEM, TOOL]), "chat", body) == (body, [])


def test_other_fields_and_messages_stay_as_they_were_written() -> None:
    other = b'{"role": "assistant",  "content": null, "tool_calls": [{"n": 1.0e2}]}'
    body = b'{"seed": 1e5, "messages": [{"role":"system","content":"You solve hard sums."}, ' + other + b"]}"
    new, replaced = edited_body(CallerEdits([SYSTEM]), "chat", body)
    assert len(replaced) == 1
    assert b'"seed":1e5' in new
    assert other in new


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["role", "content", "type", "text", "name", "description", "function", "format", "json_schema"]),
    inner)), st.sampled_from(["chat", "completions", "responses", "messages"]))  # fmt: skip
def test_fields_of_another_form_are_left_for_the_endpoint_to_refuse(value: Any, dialect: str) -> None:
    names = ("messages", "system", "input", "instructions", "tools", "response_format", "text", "prompt")
    body = json.dumps(dict.fromkeys(names, value)).encode()
    assert edited_body(CallerEdits([SYSTEM, TOOL, FORMAT]), dialect, body) == (body, [])


@given(st.lists(st.integers(0, 400), max_size=5), st.booleans())
def test_echoes_are_found_however_a_stream_is_cut(cuts: list[int], with_returns: bool) -> None:
    replaced = ReplacedText(component="s", role="system", own="own é")
    answer = {"type": "response.created", "response": {"instructions": "new", "output": [{"text": "new"}]}}
    line = f'event: response.created\ndata: {json.dumps(answer)}\n\ndata:  {{"response":  1}}\n\ndata: [DONE]\n\n'
    data = (line.replace("\n", "\r\n") if with_returns else line).encode()
    echo = EchoFilter([Replacement(replaced, "new")])
    points = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    sent = b"".join(echo.push(data[a:b]) for a, b in pairwise(points)) + echo.rest()
    shown = json.loads(sent.splitlines()[1].removeprefix(b"data: "))
    assert shown["response"] == {"instructions": "own é", "output": [{"text": "new"}]}
    assert sent.splitlines()[0] == b"event: response.created"
    assert sent.splitlines()[3] == b'data:  {"response":  1}'
    assert sent.endswith(b"data: [DONE]\r\n\r\n" if with_returns else b"data: [DONE]\n\n")


async def test_a_body_that_is_no_json_is_refused_and_not_sent() -> None:
    async with run_with(SYSTEM) as run, httpx.AsyncClient() as http:
        response = await http.post(f"{run.root}/v1/chat/completions", content=b"{")
    assert response.status_code == 400
    assert not run.provider.seen

"""Promises of every answer, each named for what agents have met with other servers: counters, bursts, ids, calls."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from drivers.strict_responses import read_response, read_stream

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids
from leyden.core.data.identity import mint, new_key
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest
from leyden.core.engine.embedded.engine import EmbeddedEngine
from leyden.core.engine.embedded.weights import load_model
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.reasoning import Reasoning, ReasoningForm, ReasoningSplitter
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import END, ByteCodec
from leyden.core.testing.scripted_engine import Script, ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, scripted_gateway

pytestmark = pytest.mark.integration

POLICY = Path(__file__).parents[2] / "examples/calculator_langgraph/policy"
CODEC = ByteCodec()
ASKED = "What is 1 + 2?"
DIALECTS = ("chat", "responses", "messages")
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
THINKING = "<think>\nOne and two.\n</think>\n\nIt is 3."
THINKS: dict[str, dict[str, Any]] = {"messages": {"thinking": {"type": "enabled", "budget_tokens": 1024}}}


def always(text: str, **how: Any) -> Script:
    def script(_: GenerateRequest) -> ScriptedAnswer:
        return ScriptedAnswer(ids=CODEC.answer(text), **how)

    return script


def body(dialect: str, **fields: Any) -> dict[str, Any]:
    asked = {"input": ASKED} if dialect == "responses" else {"messages": [{"role": "user", "content": ASKED}]}
    limit = {"max_tokens": 2000} if dialect == "messages" else {}
    return {"model": "m", **limit, **asked, **fields}


def tool(dialect: str) -> dict[str, Any]:
    if dialect == "messages":
        return {"name": "add", "input_schema": PARAMETERS}
    function = {"name": "add", "parameters": PARAMETERS}
    return {"type": "function", **(function if dialect == "responses" else {"function": function})}


async def send(attempt: AttemptHandle, dialect: str, **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient() as http:
        return await http.post(attempt.base_url + PATHS[dialect], json=body(dialect, **fields))


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "text", ["It is 3.", THINKING, CALL, f"Well.{CALL}{CALL}", f"{THINKING}{CALL}", "", "<think>on"]
)
@pytest.mark.parametrize("limit", [None, 16])
async def test_counters_are_never_null_at_the_end_of_a_response(text: str, limit: int | None, stream: bool) -> None:
    fields = {"tools": [tool("responses")], "stream": stream, "max_output_tokens": limit}
    async with scripted_gateway(always(text, chunk_size=3)) as gateway:
        answer = await send(await gateway.open_attempt(), "responses", **fields)
    read = read_stream(events_of(answer)) if stream else read_response(answer.json())
    sampled = len(gateway.engine.log[0].response_ids)
    assert read["usage"]["output_tokens"] == sampled == min(limit or 500, len(CODEC.answer(text)))


async def test_message_start_has_the_tokens_of_the_prompt_and_the_end_those_of_the_answer() -> None:
    async with scripted_gateway(always(THINKING, chunk_size=2)) as gateway:
        attempt = await gateway.open_attempt()
        answer = await send(attempt, "messages", stream=True, **THINKS["messages"])
        plain = (await send(attempt, "messages", **THINKS["messages"])).json()["usage"]
    events = events_of(answer)
    started, ended = events[0]["message"]["usage"], events[-2]["usage"]
    prompt = len(gateway.engine.requests[0].prompt_ids)
    assert (started["input_tokens"], started["output_tokens"]) == (prompt, 1)
    assert (ended["input_tokens"], ended["output_tokens"]) == (prompt, len(CODEC.answer(THINKING)))
    thought = len(THINKING.partition("</think>")[0] + "</think>")
    assert ended["output_tokens_details"] == plain["output_tokens_details"] == {"thinking_tokens": thought}
    assert all(value is not None for value in [*started.values(), *ended.values(), *plain.values()])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_stop_token_is_counted_once(dialect: str, stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if stream and dialect == "chat" else {}
    async with scripted_gateway(always("It is 3.")) as gateway:
        attempt = await gateway.open_attempt()
        answer = await send(attempt, dialect, stream=stream, **options)
        [span] = await gateway.calls(attempt)
    packed = span.attributes[semconv.RESPONSE_IDS]
    assert isinstance(packed, bytes)
    ids = list(unpack_ids(packed))
    assert ids == [*b"It is 3.", END]
    last = events_of(answer)[-2 if dialect == "messages" else -1] if stream else answer.json()
    usage = last.get("usage") or last["response"]["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == len(ids)
    assert "im_end" not in answer.text


async def chat_pieces(attempt: AttemptHandle) -> AsyncGenerator[str]:
    async with openai.AsyncOpenAI(base_url=attempt.base_url, api_key="k", max_retries=0) as agent:
        create: Any = agent.chat.completions.create
        async for chunk in await create(**body("chat", stream=True)):
            delta = chunk.choices[0].delta
            yield (delta.content or "") + (getattr(delta, "reasoning_content", None) or "")


async def responses_pieces(attempt: AttemptHandle) -> AsyncGenerator[str]:
    async with openai.AsyncOpenAI(base_url=attempt.base_url, api_key="k", max_retries=0) as agent:
        create: Any = agent.responses.create
        async for event in await create(**body("responses", stream=True)):
            if event.type in ("response.output_text.delta", "response.reasoning_text.delta"):
                yield event.delta


async def messages_pieces(attempt: AttemptHandle) -> AsyncGenerator[str]:
    root = attempt.base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=root, api_key="k", max_retries=0) as agent:
        create: Any = agent.messages.create
        async for event in await create(**body("messages", stream=True, **THINKS["messages"])):
            if event.type == "content_block_delta":
                yield getattr(event.delta, "text", "") + getattr(event.delta, "thinking", "")


PIECES: dict[str, Callable[[AttemptHandle], AsyncGenerator[str]]] = {
    "chat": chat_pieces,
    "responses": responses_pieces,
    "messages": messages_pieces,
}


def visible(text: str) -> str:
    """What an agent can see of an answer that begins with `text`."""
    parts = ReasoningSplitter(ReasoningForm()).push(text)
    return "".join(part.text if isinstance(part, Reasoning) else part for part in parts)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("text", ["one two three four five", THINKING])
async def test_text_arrives_while_it_is_sampled_and_not_in_a_burst_at_the_end(dialect: str, text: str) -> None:
    step, size = asyncio.Semaphore(0), 5
    async with scripted_gateway(always(text, chunk_size=size, step=step)) as gateway, asyncio.timeout(30):
        pieces = PIECES[dialect](await gateway.open_attempt())
        seen = ""
        for end in range(size, len(text), size):
            step.release()  # the engine samples one more chunk, and then waits
            while seen != visible(text[:end]):
                seen += await anext(pieces)
        step.release()
        step.release()
        seen += "".join([piece async for piece in pieces])
    assert seen == visible(text)


HISTORY: dict[str, dict[str, Any]] = {
    "chat": {
        "messages": [
            {"role": "user", "content": ASKED},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "Bash:0", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "Bash:0", "content": "3"},
        ]
    },
    "responses": {
        "input": [
            {"role": "user", "content": ASKED},
            {"type": "function_call", "call_id": "Bash:0", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "Bash:0", "output": "3"},
        ]
    },
    "messages": {
        "messages": [
            {"role": "user", "content": ASKED},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "Bash:0", "name": "add", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "Bash:0", "content": "3"}]},
        ]
    },
}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_tool_ids_of_other_models_are_accepted_in_the_history(dialect: str) -> None:
    async with scripted_gateway(always("It is 3.")) as gateway:
        attempt = await gateway.open_attempt()
        answer = await send(attempt, dialect, tools=[tool(dialect)], **HISTORY[dialect])
        [span] = await gateway.calls(attempt)
    assert answer.status_code == 200, answer.text
    assert '"Bash:0"' in str(span.attributes[semconv.INPUT_MESSAGES])


def texts_and_calls(dialect: str, answer: httpx.Response, *, stream: bool) -> tuple[str, list[Any]]:
    """The text of an answer, and the arguments of its calls."""
    if dialect == "responses":
        response = events_of(answer)[-1]["response"] if stream else answer.json()
        items = response["output"]
        text = "".join(item["content"][0]["text"] for item in items if item["type"] == "message")
        return text, [item["arguments"] for item in items if item["type"] == "function_call"]
    if dialect == "chat" and not stream:
        message = answer.json()["choices"][0]["message"]
        calls = message.get("tool_calls", [])
        return message["content"] or "", [call["function"]["arguments"] for call in calls]
    if dialect == "chat":
        deltas = [event["choices"][0]["delta"] for event in events_of(answer)]
        calls = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ())]
        return "".join(delta.get("content") or "" for delta in deltas), [call for call in calls if call]
    if not stream:
        blocks = answer.json()["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        return text, [json.dumps(block["input"]) for block in blocks if block["type"] == "tool_use"]
    deltas = [event["delta"] for event in events_of(answer) if event["type"] == "content_block_delta"]
    return "".join(one.get("text", "") for one in deltas), [
        one["partial_json"] for one in deltas if "partial_json" in one
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_text_of_a_call_is_never_sent_twice(dialect: str, stream: bool) -> None:
    async with scripted_gateway(always(f"{THINKING}{CALL}", chunk_size=3)) as gateway:
        attempt = await gateway.open_attempt()
        answer = await send(attempt, dialect, tools=[tool(dialect)], stream=stream, **THINKS.get(dialect, {}))
        [span] = await gateway.calls(attempt)
    assert texts_and_calls(dialect, answer, stream=stream) == ("It is 3.", ['{"a": 1}'])
    assert "tool_call>" not in answer.text
    [message] = json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES]))
    assert (message["content"], message["reasoning_content"]) == ("It is 3.", "One and two.")


MALFORMED = '{"a": 1, }'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_malformed_arguments_arrive_as_the_policy_wrote_them(dialect: str, stream: bool) -> None:
    name = {"messages": {"type": "tool", "name": "add"}, "responses": {"type": "function", "name": "add"}}
    forced = name.get(dialect, {"type": "function", "function": {"name": "add"}})
    written = CALL.replace('{"a": 1}', MALFORMED)
    async with scripted_gateway(always(written)) as gateway:
        loose = await send(await gateway.open_attempt(), dialect, tools=[tool(dialect)], stream=stream)
    assert texts_and_calls(dialect, loose, stream=stream) == (written, []), "a text that only looks like a call"
    async with scripted_gateway(always(f" {MALFORMED}}}\n</tool_call>")) as gateway:
        answer = await send(
            await gateway.open_attempt(), dialect, tools=[tool(dialect)], stream=stream, tool_choice=forced
        )
    _, [arguments] = texts_and_calls(dialect, answer, stream=stream)
    whole = f"{MALFORMED}}}"  # with the brace that would end the call
    expected = json.dumps({"INVALID_JSON": whole}) if dialect == "messages" else whole
    assert arguments.replace(" ", "") == expected.replace(" ", "")


@asynccontextmanager
async def embedded_gateway() -> AsyncGenerator[AttemptHandle]:
    """A gateway in front of the example's policy; gives an attempt."""
    key, store = new_key(), MemoryStore()
    engine = EmbeddedEngine(load_model(POLICY), name="tiny", tokenizer=str(POLICY))
    await engine.start()
    policy = ServedPolicy(name="policy", engine=engine, codec=HuggingFaceCodec(POLICY), sampling=Sampling())
    server = GatewayServer(Gateway(store, policy, key).app)
    url = await server.start()
    try:
        rollout = await store.start_rollout("a task", mode="train")
        token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
        yield AttemptHandle(
            rollout_id=rollout.rollout_id,
            attempt_id=rollout.attempt.attempt_id,
            token=token,
            base_url=f"{url}/a/{token}/v1",
        )
    finally:
        await server.stop()
        await engine.close()
        await store.close()


async def test_masked_tokens_are_never_in_a_log_probability() -> None:
    choices = ["3", "30", "4"]
    async with embedded_gateway() as attempt:
        fields = {"logprobs": True, "top_logprobs": 20, "guided_choice": choices}
        answer = (await send(attempt, "chat", **fields)).json()
    choice = answer["choices"][0]
    assert choice["message"]["content"] in choices
    written = ""
    for token in choice["logprobs"]["content"]:
        likeliest = {other["token"]: other["logprob"] for other in token["top_logprobs"]}
        assert token["token"] in likeliest
        allowed = {text for text in likeliest if any(one.startswith(written + text) for one in choices)}
        assert likeliest.keys() == allowed, "tokens with which no choice can begin"
        assert all(-100 < value <= 0 for value in likeliest.values())
        assert math.fsum(map(math.exp, likeliest.values())) <= 1 + 1e-5
        written += token["token"]

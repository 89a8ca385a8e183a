"""Answers of the Messages API as Anthropic's client sees them: a real server, the real SDK."""

import asyncio
import json
import time
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import MessageParam, ToolParam

from leyden.core.data import semconv
from leyden.core.engine.base import GenerateRequest
from leyden.core.errors import EngineError
from leyden.core.gateway.anthropic import reply
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import Script, Scripted, ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, ScriptedGateway, scripted_gateway

pytestmark = pytest.mark.integration

CODEC = ByteCodec()
ADD: ToolParam = {"name": "add", "description": "adds", "input_schema": {"type": "object", "properties": {}}}
SUB: ToolParam = {"name": "sub", "input_schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
OTHER_CALL = '<tool_call>\n{"name": "sub", "arguments": {"c": "é"}}\n</tool_call>'
QUESTION: list[MessageParam] = [{"role": "user", "content": "What is 1 + 2?"}]
PROMPT_TOKENS = len(CODEC.encode([{"role": "user", "content": "What is 1 + 2?"}]))


def script_of(text: str, **how: Any) -> Script:
    def script(_: GenerateRequest) -> ScriptedAnswer:
        return ScriptedAnswer(ids=CODEC.answer(text), **how)

    return script


def root(attempt: AttemptHandle) -> str:
    return attempt.base_url.removesuffix("/v1")


def client(attempt: AttemptHandle, retries: int = 0) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=root(attempt), api_key="the agent's own", max_retries=retries)


async def send_raw(attempt: AttemptHandle, path: str = "/messages", **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient() as http:
        body = {"model": "claude", "max_tokens": 2000, "messages": QUESTION, **fields}
        return await http.post(f"{attempt.base_url}{path}", json=body)


async def ask(attempt: AttemptHandle, stream: bool = False, **fields: Any) -> anthropic.types.Message:
    """Return the answer of a client, in one piece or put together from a stream."""
    how: dict[str, Any] = {"model": "claude", "max_tokens": 2000, "messages": QUESTION, **fields}
    async with client(attempt) as agent:
        messages: Any = agent.messages
        if not stream:
            return await messages.create(**how)
        async with messages.stream(**how) as events:
            return await events.get_final_message()


def events_of(text: str) -> list[dict[str, Any]]:
    """Read a stream, in which every event's name is its type."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    read: list[dict[str, Any]] = []
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        read.append(event)
    return read


def texts_and_calls(answer: anthropic.types.Message) -> list[object]:
    blocks: list[Any] = list(answer.content)
    return [block.text if block.type == "text" else (block.name, block.input) for block in blocks]


def usage(output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": PROMPT_TOKENS,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": output_tokens,
        "output_tokens_details": {"thinking_tokens": 0},
    }


async def test_a_plain_answer_has_the_providers_fields_and_no_others() -> None:
    async with scripted_gateway(script_of("It is 3.")) as gateway:
        response = await send_raw(await gateway.open_attempt())
    assert set(response.headers) == {"date", "content-type", "content-length", "request-id", "x-request-id"}
    answer = response.json()
    assert answer["id"].startswith("msg_")
    cache = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}
    assert answer == {
        "id": answer["id"],
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [{"type": "text", "text": "It is 3."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "usage": usage(9) | {"cache_creation": cache, "service_tier": "standard", "inference_geo": "global"},
    }


async def test_a_streamed_answer_has_the_providers_events_in_their_order() -> None:
    async with scripted_gateway(script_of(f"Hé {CALL}", chunk_size=1)) as gateway:
        response = await send_raw(await gateway.open_attempt(), stream=True, tools=[ADD])
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["request-id"] == response.headers["x-request-id"]
    events = events_of(response.text)
    started, call = events[0], events[6]["content_block"]
    assert started["message"]["usage"]["input_tokens"] > PROMPT_TOKENS
    assert started["message"]["usage"]["output_tokens"] == 1
    assert (started["message"]["content"], started["message"]["stop_reason"]) == ([], None)
    arguments = {"type": "input_json_delta", "partial_json": '{"a": 1, "b": 2}'}
    assert events[1:] == [
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "H"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "é"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": call["id"], "name": "add", "input": {}},
        },
        {"type": "content_block_delta", "index": 1, "delta": arguments},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": None},
            "usage": usage(len(CODEC.answer(f"Hé {CALL}")))
            | {"input_tokens": started["message"]["usage"]["input_tokens"]},
        },
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "fields", "content", "stop_reason", "stop_sequence"),
    [
        ("It is 3.", {}, ["It is 3."], "end_turn", None),
        ("", {}, [""], "end_turn", None),
        ("It is 3.", {"max_tokens": 5}, ["It is"], "max_tokens", None),
        ("It is 3. STOP more", {"stop_sequences": ["never", "STOP"]}, ["It is 3. "], "stop_sequence", "STOP"),
        ("STOP", {"stop_sequences": ["STOP"]}, [""], "stop_sequence", "STOP"),
        ("It is ST", {"stop_sequences": ["STOP"]}, ["It is ST"], "end_turn", None),
        (f"Hm. {CALL}", {"tools": [ADD]}, ["Hm.", ("add", {"a": 1, "b": 2})], "tool_use", None),
        (CALL, {"tools": [ADD]}, [("add", {"a": 1, "b": 2})], "tool_use", None),
        (f"Hm. {CALL}", {}, [f"Hm. {CALL}"], "end_turn", None),
        (f"Hm. {CALL}", {"tools": [ADD], "tool_choice": {"type": "none"}}, [f"Hm. {CALL}"], "end_turn", None),
        (
            f"{CALL}\n{OTHER_CALL}",
            {"tools": [ADD, SUB]},
            [("add", {"a": 1, "b": 2}), ("sub", {"c": "é"})],
            "tool_use",
            None,
        ),
        (
            f"{CALL}\n{OTHER_CALL}",
            {"tools": [ADD, SUB], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            [("add", {"a": 1, "b": 2})],
            "tool_use",
            None,
        ),
        (
            f"{CALL} and then",
            {"tools": [ADD]},
            [("add", {"a": 1, "b": 2}), "and then"],
            "tool_use",
            None,
        ),
        (
            ' {"a": 1}}\n</tool_call>',
            {"tools": [ADD, SUB], "tool_choice": {"type": "tool", "name": "add"}},
            [("add", {"a": 1})],
            "tool_use",
            None,
        ),
        (
            'sub", "arguments": {"a": 1}}\n</tool_call>',
            {"tools": [ADD, SUB], "tool_choice": {"type": "any"}},
            [("sub", {"a": 1})],
            "tool_use",
            None,
        ),
    ],
)
async def test_how_an_answer_ends_and_what_it_holds(
    text: str, fields: dict[str, Any], content: list[object], stop_reason: str, stop_sequence: str | None, stream: bool
) -> None:
    async with scripted_gateway(script_of(text, chunk_size=2)) as gateway:
        attempt = await gateway.open_attempt()
        answer = await ask(attempt, stream, **fields)
        [span] = await gateway.calls(attempt)
    assert texts_and_calls(answer) == content
    assert (answer.stop_reason, answer.stop_sequence) == (stop_reason, stop_sequence)
    assert answer.usage.input_tokens == span.attributes[semconv.INPUT_TOKENS]
    assert answer.usage.output_tokens == span.attributes[semconv.OUTPUT_TOKENS]
    assert answer.id == span.attributes[semconv.RESPONSE_ID]
    assert span.attributes[semconv.DIALECT] == "messages"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "text", ['<tool_call>{"name": "add", "arguments": {"a": ', "<tool_call>{no json}</tool_call> so"]
)
async def test_a_malformed_call_stays_text(text: str, stream: bool) -> None:
    async with scripted_gateway(script_of(text, chunk_size=1)) as gateway:
        answer = await ask(await gateway.open_attempt(), stream, tools=[ADD])
    assert texts_and_calls(answer) == [text]
    assert answer.stop_reason == "end_turn"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "arguments", "given"),
    [
        (" no object", "no object", {"INVALID_JSON": "no object"}),
        (' {"a": 1', '{"a": 1', {"INVALID_JSON": '{"a": 1'}),
        (" [1]", "[1]", {"INVALID_JSON": "[1]"}),
        ("", "", {}),
    ],
)
async def test_forced_arguments_that_are_no_object_come_back_as_they_were_written(
    text: str, arguments: str, given: dict[str, Any], stream: bool
) -> None:
    forced: dict[str, Any] = {"tools": [ADD], "tool_choice": {"type": "tool", "name": "add"}}
    async with scripted_gateway(script_of(text, chunk_size=1)) as gateway:
        attempt = await gateway.open_attempt()
        answer = await ask(attempt, stream, **forced)
        assert texts_and_calls(answer) == [("add", given)]
        [block] = answer.content
        assert block.type == "tool_use"
        result = {"type": "tool_result", "tool_use_id": block.id, "content": "bad"}
        await ask(attempt, messages=[*QUESTION, answer.to_param(), {"role": "user", "content": [result]}], **forced)
        first, second = await gateway.calls(attempt)
    [wrote] = json.loads(str(first.attributes[semconv.OUTPUT_MESSAGES]))
    read = json.loads(str(second.attributes[semconv.INPUT_MESSAGES]))[1]
    assert wrote["tool_calls"][0]["function"]["arguments"] == arguments
    assert read["tool_calls"][0] == wrote["tool_calls"][0] | (
        {} if arguments else {"function": {"name": "add", "arguments": "{}"}}
    )


def adding(request: GenerateRequest) -> Scripted:
    """Call two tools, and say what they returned."""
    read = bytes(token for token in request.prompt_ids if token < 256).decode()
    results = read.split("tool\n")[1:]
    text = " and ".join(part.partition("\n")[0] for part in results) if results else f"Hm. {CALL}{OTHER_CALL}"
    return ScriptedAnswer(ids=CODEC.answer(text), chunk_size=3)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_goes_round_two_tools(stream: bool) -> None:
    async with scripted_gateway(adding) as gateway:
        attempt = await gateway.open_attempt()
        first = await ask(attempt, stream, tools=[ADD, SUB], system="Add.")
        calls = [block for block in first.content if block.type == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": calls[1].id, "content": "gone", "is_error": True},
            {"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "3"}]},
            {"type": "text", "text": "Well?", "cache_control": {"type": "ephemeral"}},
        ]
        messages = [*QUESTION, first.to_param(), {"role": "user", "content": results}]
        second = await ask(attempt, stream, tools=[ADD, SUB], system="Add.", messages=messages)
        spans = await gateway.calls(attempt)
    assert all(call.id.startswith("toolu_") and call.id.isascii() for call in calls)
    assert len({call.id for call in calls}) == 2
    assert texts_and_calls(second) == ["Error: gone and 3"]
    recorded = json.loads(str(spans[1].attributes[semconv.INPUT_MESSAGES]))
    [wrote] = json.loads(str(spans[0].attributes[semconv.OUTPUT_MESSAGES]))
    assert [message["role"] for message in recorded] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert [call["id"] for call in recorded[2]["tool_calls"]] == [call["id"] for call in wrote["tool_calls"]]
    assert [message.get("tool_call_id") for message in recorded[3:5]] == [calls[1].id, calls[0].id]
    assert json.loads(str(spans[1].attributes[semconv.TOOL_DEFINITIONS]))[0] == {
        "type": "function",
        "function": {"name": "add", "description": "adds", "parameters": ADD["input_schema"]},
    }


async def test_thinking_in_the_history_reaches_the_template_and_what_is_encrypted_is_reported() -> None:
    thinking = [
        {"type": "thinking", "thinking": "1 and 2...", "signature": "s"},
        {"type": "redacted_thinking", "data": "gAAA"},
        {"type": "text", "text": "It is 3."},
    ]
    messages = [*QUESTION, {"role": "assistant", "content": thinking}, {"role": "user", "content": "Sure?"}]
    how: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"}}
    async with scripted_gateway(script_of("Yes.")) as gateway:
        attempt = await gateway.open_attempt()
        await ask(attempt, messages=messages, **how)
        [span] = await gateway.calls(attempt)
    assert json.loads(str(span.attributes[semconv.INPUT_MESSAGES]))[1] == {
        "role": "assistant",
        "content": "It is 3.",
        "reasoning_content": "1 and 2...",
    }
    assert json.loads(str(span.attributes[semconv.SAMPLING_ASKED])) == {"max_tokens": 2000, **how}
    assert span.attributes[semconv.LEFT_OUT] == ["redacted_thinking: encrypted, so the policy cannot read it"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": [{"type": "text", "text": "Add."}, {"type": "text", "text": "Well."}]},
        {"tools": [ADD], "tool_choice": {"type": "tool", "name": "add"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    ],
)
async def test_counted_tokens_are_those_that_a_call_reads(fields: dict[str, Any]) -> None:
    async with scripted_gateway(script_of("ok")) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            count: Any = agent.messages.count_tokens
            counted = await count(model="claude", messages=QUESTION, **fields)
        assert await gateway.calls(attempt) == []
        answer = await ask(attempt, **fields)
    assert counted.input_tokens == answer.usage.input_tokens


async def test_a_text_is_sent_while_it_is_sampled() -> None:
    how: dict[str, Any] = {"chunk_size": 4, "chunk_delay": 0.05}
    async with scripted_gateway(script_of("abcd" * 6, **how)) as gateway, client(await gateway.open_attempt()) as agent:
        times: list[float] = []
        async with agent.messages.stream(model="claude", max_tokens=500, messages=QUESTION) as events:
            async for _ in events.text_stream:
                times.append(time.monotonic())
            answer = await events.get_final_message()
    assert len(times) == 6
    assert times[-1] - times[0] > 0.15
    assert texts_and_calls(answer) == ["abcd" * 6]


async def test_a_long_tool_call_is_bridged_with_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "PING_SECONDS", 0.01)
    async with scripted_gateway(script_of(CALL, chunk_size=8, chunk_delay=0.02)) as gateway:
        response = await send_raw(await gateway.open_attempt(), stream=True, tools=[ADD])
    kinds = [event["type"] for event in events_of(response.text)]
    assert kinds.count("ping") > 2
    assert [kind for kind in kinds if kind != "ping"][:2] == ["message_start", "content_block_start"]


async def _refused(gateway: ScriptedGateway, attempt: AttemptHandle, **fields: Any) -> anthropic.APIStatusError:
    with pytest.raises(anthropic.APIStatusError) as raised:
        await ask(attempt, **fields)
    error = raised.value
    assert error.body == {
        "type": "error",
        "error": {"type": error.type, "message": error.api_message},
        "request_id": error.request_id,
    }
    return error


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_the_clients_own_exceptions(stream: bool) -> None:
    async with scripted_gateway([EngineError("broken")], context_length=100) as gateway:
        attempt = await gateway.open_attempt()
        too_long = await _refused(gateway, attempt, stream=stream, messages=[{"role": "user", "content": "x" * 200}])
        assert isinstance(too_long, anthropic.BadRequestError)
        assert (too_long.type, too_long.api_message) == (
            "invalid_request_error",
            "prompt is too long: 200 tokens > 100 maximum",
        )
        unknown = await _refused(gateway, attempt, stream=stream, extra_body={"foo": 1})
        assert (unknown.status_code, unknown.api_message) == (400, "foo: Extra inputs are not permitted")
        broken = await _refused(gateway, attempt, stream=stream)
        assert isinstance(broken, anthropic.InternalServerError)
        assert (broken.status_code, broken.type) == (500, "api_error")


async def test_errors_of_access_have_the_providers_types_and_statuses() -> None:
    async with scripted_gateway(script_of("ok")) as gateway:
        attempt = await gateway.open_attempt()
        await gateway.store.update_attempt(attempt.rollout_id, attempt.attempt_id, status="succeeded")
        ended = await _refused(gateway, attempt)
        assert isinstance(ended, anthropic.PermissionDeniedError)
        assert ended.type == "permission_error"
        other = AttemptHandle(rollout_id="", attempt_id="", token="", base_url=f"{gateway.url}/v1")
        unknown = await _refused(gateway, other)
        assert isinstance(unknown, anthropic.AuthenticationError)
        assert unknown.type == "authentication_error"
        async with httpx.AsyncClient() as http:
            wrong_method = await http.get(f"{attempt.base_url}/messages")
    assert (wrong_method.status_code, wrong_method.json()["error"]["type"]) == (405, "invalid_request_error")


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
async def test_the_token_of_an_attempt_is_a_key(header: str) -> None:
    async with scripted_gateway(script_of("ok")) as gateway, httpx.AsyncClient() as http:
        attempt = await gateway.open_attempt()
        key = attempt.token if header == "x-api-key" else f"Bearer {attempt.token}"
        body = {"model": "claude", "max_tokens": 5, "messages": QUESTION}
        answer = await http.post(f"{gateway.url}/v1/messages", json=body, headers={header: key})
        assert answer.status_code == 200
        assert len(await gateway.calls(attempt)) == 1


async def test_an_error_in_the_middle_of_a_stream_is_raised_by_the_client() -> None:
    def script(_: GenerateRequest) -> ScriptedAnswer:
        return ScriptedAnswer(ids=CODEC.answer("half"), chunk_size=1, error=EngineError("broken"))

    async with scripted_gateway(script) as gateway:
        attempt = await gateway.open_attempt()
        received = ""
        async with client(attempt) as agent:
            with pytest.raises(anthropic.APIStatusError, match="api_error"):
                async with agent.messages.stream(model="claude", max_tokens=9, messages=QUESTION) as events:
                    async for text in events.text_stream:
                        received += text
        [span] = await gateway.calls(attempt)
    assert received == "half"
    assert span.status.code == "error"


async def test_a_retry_gets_the_answer_that_was_sampled_and_counts_once() -> None:
    calls = 0

    def numbered(_: GenerateRequest) -> ScriptedAnswer:
        nonlocal calls
        calls += 1
        return ScriptedAnswer(ids=CODEC.answer(f"answer {calls} {CALL}"), chunk_size=3)

    body = {"model": "claude", "max_tokens": 2000, "messages": QUESTION, "tools": [ADD]}
    async with scripted_gateway(numbered) as gateway, httpx.AsyncClient() as http:
        attempt = await gateway.open_attempt()
        answers: list[Any] = []
        for count, stream in (("0", False), ("1", False), ("0", True), ("1", True)):
            headers = {"x-stainless-retry-count": count}
            sent = await http.post(f"{attempt.base_url}/messages", json=body | {"stream": stream}, headers=headers)
            answers.append(events_of(sent.text) if stream else sent.json())
        assert len(await gateway.calls(attempt)) == calls == 2
    assert answers[0] == answers[1]
    first, again = answers[2:]
    assert first[0] == again[0]
    assert first[-5:] == again[-5:]


async def test_a_client_retries_by_itself_and_gets_an_answer() -> None:
    async with scripted_gateway([EngineError("busy"), CODEC.answer("fine")]) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt, retries=2) as agent:
            answer = await agent.messages.create(model="claude", max_tokens=500, messages=QUESTION)
        assert len(await gateway.calls(attempt)) == 2
    assert texts_and_calls(answer) == ["fine"]


async def test_a_client_that_hangs_up_in_the_middle_leaves_a_record_that_is_not_trained() -> None:
    how: dict[str, Any] = {"chunk_size": 1, "chunk_delay": 0.02}
    async with scripted_gateway(script_of("a long answer" * 10, **how)) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            async with agent.messages.stream(model="claude", max_tokens=500, messages=QUESTION) as events:
                async for _ in events.text_stream:
                    break
            while not (spans := await gateway.calls(attempt)):
                await asyncio.sleep(0.01)
    assert spans[0].attributes[semconv.NOT_TRAINED] == "client disconnected"
    assert int(str(spans[0].attributes[semconv.OUTPUT_TOKENS])) < 130


async def test_the_models_are_listed_as_the_client_expects_them() -> None:
    async with scripted_gateway(script_of("ok")) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            listed = await agent.models.list()
            [model] = listed.data
            assert (listed.has_more, listed.first_id, listed.last_id) == (False, model.id, model.id)
            assert (model.type, model.display_name, model.created_at.year) == ("model", model.id, 1970)
            assert await agent.models.retrieve(model.id) == model
        async with httpx.AsyncClient() as http:
            plain = await http.get(f"{attempt.base_url}/models", headers={"authorization": f"Bearer {attempt.token}"})
            assert plain.json()["object"] == "list"

"""Answers of the Responses API as an OpenAI client sees them: a real server, the real SDK."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import FunctionToolParam, Response, ToolChoiceFunctionParam

from leyden.core.engine.base import GenerateRequest
from leyden.core.errors import EngineError
from leyden.core.gateway.codecs.answer_reader import AnswerReader
from leyden.core.gateway.dialect import FinishedChoice
from leyden.core.gateway.http.padding import BLOCK
from leyden.core.gateway.responses.format import Head
from leyden.core.gateway.responses.reply import AnswerWriter, StreamReply
from leyden.core.gateway.responses.request import checked_request, read_draft
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import Script, ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, scripted_gateway

CODEC = ByteCodec()
ADD: FunctionToolParam = {"type": "function", "name": "add", "parameters": {}, "strict": False}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
ARGUMENTS = '{"a": 1, "b": 2}'
PROMPT_TOKENS = len(CODEC.encode([{"role": "user", "content": "What is 1 + 2?"}]))
LOGPROBS = "message.output_text.logprobs"


def script_of(text: str, **how: Any) -> Script:
    def script(_: GenerateRequest) -> ScriptedAnswer:
        return ScriptedAnswer(ids=CODEC.answer(text), **how)

    return script


def client(attempt: AttemptHandle, retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=attempt.base_url, api_key="the agent's own", max_retries=retries)


async def raw(attempt: AttemptHandle, **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient() as http:
        body = {"model": "gpt-4o", "input": "What is 1 + 2?", **fields}
        return await http.post(f"{attempt.base_url}/responses", json=body)


def events(text: str, *, padded: bool = True) -> list[dict[str, Any]]:
    """Read a stream, in which every event's name is its type, the numbers count up from 0, and pieces are padded."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    read: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        if padded and event["type"].endswith(".delta"):
            assert len(event["delta"] + event.pop("obfuscation")) % BLOCK == 0
        assert name == f"event: {event['type']}"
        assert event.pop("sequence_number") == number
        read.append(event)
    return read


def counts(prompt: int, answer: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": answer,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + answer,
    }


def part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def message_item(item_id: str, text: str, status: str = "completed") -> dict[str, Any]:
    return {"id": item_id, "type": "message", "status": status, "content": [part(text)], "role": "assistant"}


async def test_a_plain_answer_has_the_providers_fields_and_no_others() -> None:
    async with scripted_gateway(script_of("It is 3.")) as gateway:
        response = await raw(await gateway.open_attempt(), temperature=0.3, metadata={"k": "v"}, tools=[ADD])
    assert set(response.headers) == {"date", "content-type", "content-length", "x-request-id"}
    answer = response.json()
    assert answer["id"].startswith("resp_")
    [item] = answer["output"]
    assert item == message_item(item["id"], "It is 3.")
    assert item["id"].startswith("msg_")
    tools: list[dict[str, Any]] = [
        {"type": "function", "description": None, "name": "add", "parameters": {}, "strict": False}
    ]
    assert answer["completed_at"] >= answer["created_at"] > 1e9
    assert answer == {
        "id": answer["id"],
        "object": "response",
        "created_at": answer["created_at"],
        "status": "completed",
        "background": False,
        "billing": {"payer": "developer"},
        "completed_at": answer["completed_at"],
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": "gpt-4o",
        "moderation": None,
        "output": [item],
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 0.3,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": tools,
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": counts(answer["usage"]["input_tokens"], 9),
        "user": None,
        "metadata": {"k": "v"},
    }


async def test_a_streamed_answer_has_the_providers_events_in_their_order() -> None:
    async with scripted_gateway(script_of("Hé", chunk_size=1)) as gateway:
        response = await raw(await gateway.open_attempt(), stream=True)
    assert set(response.headers) == {"date", "content-type", "transfer-encoding", "x-request-id"}
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    created, in_progress, *middle, completed = events(response.text)
    answer = completed["response"]
    [item] = answer["output"]
    begun = answer | {
        "status": "in_progress",
        "completed_at": None,
        "output": [],
        "service_tier": "auto",
        "usage": None,
    }
    assert created == {"type": "response.created", "response": begun}
    assert in_progress == {"type": "response.in_progress", "response": begun}
    assert completed == {"type": "response.completed", "response": answer}
    assert answer["status"] == "completed"
    assert answer["usage"] == counts(PROMPT_TOKENS, 4)
    location = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    added: dict[str, Any] = message_item(item["id"], "", "in_progress") | {"content": []}
    assert middle == [
        {"type": "response.output_item.added", "item": added, "output_index": 0},
        {"type": "response.content_part.added", **location, "part": part("")},
        {"type": "response.output_text.delta", **location, "delta": "H", "logprobs": []},
        {"type": "response.output_text.delta", **location, "delta": "é", "logprobs": []},
        {"type": "response.output_text.done", **location, "text": "Hé", "logprobs": []},
        {"type": "response.content_part.done", **location, "part": part("Hé")},
        {"type": "response.output_item.done", "item": message_item(item["id"], "Hé"), "output_index": 0},
    ]


async def test_padding_can_be_left_out() -> None:
    async with scripted_gateway(script_of("Hé")) as gateway:
        options = {"include_obfuscation": False}
        response = await raw(await gateway.open_attempt(), stream=True, stream_options=options)
    assert all("obfuscation" not in event for event in events(response.text, padded=False))


async def test_parallel_tool_calls_plain_and_streamed() -> None:
    async with scripted_gateway(script_of(f"{CALL}\n{CALL}", chunk_size=3)) as gateway:
        attempt = await gateway.open_attempt()
        plain = (await raw(attempt, tools=[ADD])).json()["output"]
        streamed = events((await raw(attempt, tools=[ADD], stream=True)).text)
    call = {"type": "function_call", "status": "completed", "arguments": ARGUMENTS, "name": "add"}
    assert plain == [call | {"id": item["id"], "call_id": item["call_id"]} for item in plain]
    assert all(item["id"].startswith("fc_") and item["call_id"].startswith("call_") for item in plain)
    assert len({item["id"] for item in plain} | {item["call_id"] for item in plain}) == 4
    output = streamed[-1]["response"]["output"]
    expected: list[dict[str, Any]] = []
    for index, item in enumerate(output):
        location = {"item_id": item["id"], "output_index": index}
        begun = item | {"status": "in_progress", "arguments": ""}
        expected += [
            {"type": "response.output_item.added", "item": begun, "output_index": index},
            {"type": "response.function_call_arguments.delta", **location, "delta": ARGUMENTS},
            {"type": "response.function_call_arguments.done", **location, "arguments": ARGUMENTS},
            {"type": "response.output_item.done", "item": item, "output_index": index},
        ]
    assert len(output) == 2
    assert streamed[2:-1] == expected


async def test_text_around_a_call_keeps_its_place() -> None:
    async with scripted_gateway(script_of(f"First. {CALL} Then.", chunk_size=2)) as gateway:
        attempt = await gateway.open_attempt()
        plain = (await raw(attempt, tools=[ADD])).json()["output"]
        streamed = events((await raw(attempt, tools=[ADD], stream=True)).text)[-1]["response"]["output"]
    for output in (plain, streamed):
        assert [item["type"] for item in output] == ["message", "function_call", "message"]
        assert [output[location]["content"][0]["text"].strip() for location in (0, 2)] == ["First.", "Then."]


async def test_one_call_at_a_time_and_a_forced_one() -> None:
    async with (
        scripted_gateway([_answer(f"{CALL}{CALL}"), _answer('{"a": 1}}\n</tool_call>')]) as gateway,
        client(await gateway.open_attempt()) as agent,
    ):
        one = await agent.responses.create(model="m", input="?", tools=[ADD], parallel_tool_calls=False)
        choice: ToolChoiceFunctionParam = {"type": "function", "name": "add"}
        forced = await agent.responses.create(model="m", input="?", tools=[ADD], tool_choice=choice)
    assert _meaning(one) == [("add", ARGUMENTS)]
    assert one.parallel_tool_calls is False
    assert _meaning(forced) == [("add", '{"a": 1}')]
    assert forced.status == "completed"


def _answer(text: str) -> ScriptedAnswer:
    return ScriptedAnswer(ids=CODEC.answer(text), chunk_size=1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cut_answer_is_incomplete(stream: bool) -> None:
    async with scripted_gateway(script_of("abcdefghijklmnopqrst", chunk_size=1)) as gateway:
        response = await raw(await gateway.open_attempt(), max_output_tokens=16, stream=stream)
    if stream:
        *_, done, last = events(response.text)
        assert last["type"] == "response.incomplete"
        assert done["item"]["status"] == "incomplete"
        answer = last["response"]
    else:
        answer = response.json()
    assert (answer["status"], answer["completed_at"]) == ("incomplete", None)
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"] == [message_item(answer["output"][0]["id"], "abcdefghijklmnop", "incomplete")]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_answer_is_an_empty_text(stream: bool) -> None:
    async with scripted_gateway(script_of("")) as gateway:
        response = await raw(await gateway.open_attempt(), stream=stream)
    output = (events(response.text)[-1]["response"] if stream else response.json())["output"]
    assert output == [message_item(output[0]["id"], "")]
    if stream:
        assert [event["type"].rpartition(".")[2] for event in events(response.text)[2:-1]] == [
            "added", "added", "done", "done", "done"
        ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_those_of_the_text(stream: bool) -> None:
    async with scripted_gateway(script_of("aé", chunk_size=1)) as gateway:
        response = await raw(await gateway.open_attempt(), include=[LOGPROBS], stream=stream)
    if stream:
        read = events(response.text)
        deltas = [event["logprobs"] for event in read if event["type"].endswith("text.delta")]
        assert [len(entries) for entries in deltas] == [1, 2]
        [done] = [event["logprobs"] for event in read if event["type"].endswith("text.done")]
        assert done == [entry for entries in deltas for entry in entries]
        assert read[-1]["response"]["output"][0]["content"][0]["logprobs"] == done
    else:
        done = response.json()["output"][0]["content"][0]["logprobs"]
    assert [entry["bytes"] for entry in done] == [[97], [0xC3], [0xA9]]
    assert [entry["logprob"] for entry in done] == gateway.engine.log[0].logprobs[:3]
    assert all(set(entry) == {"token", "bytes", "logprob", "top_logprobs"} for entry in done)


async def test_the_sdks_stream_helper_puts_the_same_answer_together() -> None:
    async with (
        scripted_gateway(script_of(f"Let me see. {CALL}", chunk_size=1)) as gateway,
        client(await gateway.open_attempt()) as agent,
    ):
        async with agent.responses.stream(model="m", input="?", tools=[ADD]) as stream:
            received = [event async for event in stream]
            streamed = await stream.get_final_response()
        plain = await agent.responses.create(model="m", input="?", tools=[ADD])
    assert "".join(event.delta for event in received if event.type == "response.output_text.delta") == plain.output_text
    assert plain.output_text == "Let me see."
    assert _meaning(streamed) == _meaning(plain) == [("message", "Let me see."), ("add", ARGUMENTS)]
    assert streamed.usage == plain.usage


def _meaning(response: Response) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for item in response.output:
        if item.type == "message":
            found.append((item.type, "".join(getattr(content, "text", "") for content in item.content)))
        elif item.type == "function_call":
            found.append((item.name, item.arguments))
    return found


async def test_the_synchronous_client_sees_the_same() -> None:
    def stream_answer(attempt: AttemptHandle) -> tuple[str, str]:
        with openai.OpenAI(base_url=attempt.base_url, api_key="x", max_retries=0) as agent:
            plain = agent.responses.create(model="m", input="hi")
            stream = agent.responses.create(model="m", input="hi", stream=True)
            return plain.output_text, "".join(e.delta for e in stream if e.type == "response.output_text.delta")

    async with scripted_gateway(script_of("naïve 🙂", chunk_size=2)) as gateway:
        assert await asyncio.to_thread(stream_answer, await gateway.open_attempt()) == ("naïve 🙂", "naïve 🙂")


async def test_errors_are_the_sdks_own_classes() -> None:
    async with (
        scripted_gateway([EngineError("no room")], context_length=100) as gateway,
        client(await gateway.open_attempt()) as agent,
    ):
        with pytest.raises(openai.InternalServerError, match="no room"):
            await agent.responses.create(model="m", input="hi", stream=True)
        with pytest.raises(openai.BadRequestError) as refused:
            await agent.responses.create(model="m", input="hi", background=True)
        with pytest.raises(openai.BadRequestError) as too_long:
            await agent.responses.create(model="m", input="x" * 100)
    assert (refused.value.param, refused.value.code) == ("background", "unsupported_parameter")
    assert (too_long.value.param, too_long.value.code) == ("input", "context_length_exceeded")


async def test_an_engine_that_fails_in_a_stream_is_an_error_in_the_stream() -> None:
    broken = ScriptedAnswer(ids=list(b"abc"), chunk_size=1, error=EngineError("lost"))
    async with scripted_gateway([broken, broken]) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            stream = await agent.responses.create(model="m", input="hi", stream=True)
            received = ""
            with pytest.raises(openai.APIError, match="lost"):
                async for event in stream:
                    received += event.delta if event.type == "response.output_text.delta" else ""
        *_, error, failed = events((await raw(attempt, stream=True)).text)
    assert received == "abc"
    assert (error["type"], error["error"]["type"]) == ("error", "server_error")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["code"] == "server_error"
    assert "lost" in failed["response"]["error"]["message"]


PIECES = st.one_of(st.text(max_size=8), st.sampled_from([CALL, "<tool_call>", "</tool_call>", "\n", " "]))


class _Sent:
    """Takes what a reply sends."""

    def __init__(self) -> None:
        self.body = b""

    async def __call__(self, message: Any) -> None:
        self.body += message.get("body", b"")


@settings(max_examples=60)
@given(st.lists(PIECES, max_size=6).map("".join), st.booleans(), st.booleans(), st.data())
def test_stream_events_add_up_to_the_plain_answer(text: str, tools: bool, shown: bool, data: st.DataObject) -> None:
    fields = ({"tools": [ADD]} if tools else {}) | ({"include": [LOGPROBS]} if shown else {})
    draft = read_draft(json.dumps({"model": "m", "input": "?"} | fields).encode())
    request = checked_request(draft, draft.items, [])
    head = Head(id="resp_1", created=1, model="m", settings=request.settings)
    ids = CODEC.answer(text.encode(errors="replace").decode())
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(ids) - 1)), max_size=6)))

    async def stream() -> bytes:
        sent, writer = _Sent(), AnswerWriter(head)
        reader, reply = AnswerReader(CODEC, request, "resp_1"), StreamReply(sent, writer, lambda _: None)
        for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
            await reply.show(0, reader.push(ids[start:end], [-1.0] * (end - start)), reader.tokens())
        await reply.show(0, reader.finish(), reader.tokens())
        await reply.end([FinishedChoice(reader=reader, engine_finish="stop", response_ids=ids)], 5)
        return sent.body

    reader = AnswerReader(CODEC, request, "resp_1")
    reader.push(ids, [-1.0] * len(ids))
    reader.finish()
    plain = AnswerWriter(head).whole(FinishedChoice(reader=reader, engine_finish="stop", response_ids=ids), 5)
    read = events(asyncio.run(stream()).decode(), padded=False)
    assert read[-1]["response"]["output"] == plain["output"]
    assert [event["item"] for event in read if event["type"] == "response.output_item.done"] == plain["output"]
    texts = ["" for _ in plain["output"]]
    for event in read:
        if event["type"].endswith(".delta"):
            texts[event["output_index"]] += event["delta"]
    assert texts == [item.get("arguments") or item["content"][0]["text"] for item in plain["output"]]


async def test_the_tokens_of_a_request_are_counted_without_a_call() -> None:
    async with scripted_gateway([CODEC.answer("hi")]) as gateway:
        attempt = await gateway.open_attempt()
        async with openai.AsyncOpenAI(base_url=attempt.base_url, api_key="x") as agent:
            counted = await agent.responses.input_tokens.count(model="m", input="How many?", instructions="Count.")
            assert await gateway.calls(attempt) == []
            answer = await agent.responses.create(model="m", input="How many?", instructions="Count.")
    assert answer.usage is not None
    assert counted.input_tokens == answer.usage.input_tokens == len(gateway.engine.requests[0].prompt_ids)

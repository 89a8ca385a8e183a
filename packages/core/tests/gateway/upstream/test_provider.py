"""Models of providers in the policy's place: what the provider gets, what the agent gets, and what is recorded."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam, ChatCompletionToolParam
from provider_formats import PROVIDERS, Provider, Script, ToolCall
from provider_runs import KEY, USER, running

from leyden.core.data import reasons, semconv

pytestmark = [
    pytest.mark.integration,
    pytest.mark.keeps("thread", "LiteLLM signs requests to Bedrock on threads that it keeps"),
]

ADD: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}


@pytest.fixture(params=PROVIDERS)
def formats(request: pytest.FixtureRequest) -> tuple[str, Provider]:
    return request.param, PROVIDERS[request.param]


async def test_a_call_is_answered_in_openais_format_and_recorded(
    formats: tuple[str, Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, provider = formats
    async with running(name, monkeypatch) as run:
        answer = await run.post(temperature=0.5, max_tokens=50)
        [span] = await run.spans()
        request = run.request
    body = answer.json()
    model = provider.model.partition("/")[2]
    assert answer.status_code == 200, body
    assert request.path == provider.path(model, False)
    assert KEY in provider.key_of(request) or name == "bedrock"
    assert provider.key_of(request)
    assert set(body) == {
        *("id", "object", "created", "model", "choices", "usage", "service_tier", "system_fingerprint")
    }
    assert (body["object"], body["model"]) == ("chat.completion", model)
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (11, 7)
    assert body["usage"]["total_tokens"] == 18
    assert span.attributes[semconv.NOT_TRAINED] == reasons.UPSTREAM
    assert (span.attributes[semconv.REQUEST_MODEL], span.attributes[semconv.RESPONSE_MODEL]) == ("gpt-4.1", model)
    assert (span.attributes[semconv.INPUT_TOKENS], span.attributes[semconv.OUTPUT_TOKENS]) == (11, 7)
    assert json.loads(str(span.attributes[semconv.INPUT_MESSAGES])) == USER
    assert json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES]))[0]["content"] == "Hello"
    assert json.loads(str(span.attributes[semconv.SAMPLING_ASKED])) == {"temperature": 0.5, "max_tokens": 50}
    assert span.attributes[semconv.RESPONSE_ID] == body["id"] == (provider.response_id or body["id"])
    assert span.attributes[semconv.FINISH_REASONS] == ["stop"]
    assert span.status.code == "ok"


async def test_a_stream_has_openais_events_and_the_record_its_token_counts(
    formats: tuple[str, Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, provider = formats
    async with running(name, monkeypatch) as run:
        answer = await run.post(stream=True)
        [span] = await run.spans()
        assert run.request.path == provider.path(provider.model.partition("/")[2], True)
    lines = [line for line in answer.text.split("\n\n") if line]
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    fields = {"id", "object", "created", "model", "service_tier", "system_fingerprint", "choices", "obfuscation"}
    assert all(set(event) == fields for event in events)
    assert len({event["id"] for event in events}) == 1
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas == [{"role": "assistant", "content": "", "refusal": None}, {"content": "Hel"}, {"content": "lo"}, {}]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, None, "stop"]
    assert (span.attributes[semconv.INPUT_TOKENS], span.attributes[semconv.OUTPUT_TOKENS]) == (11, 7)
    assert json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES]))[0]["content"] == "Hello"
    assert span.attributes[semconv.RESPONSE_ID] == events[0]["id"] == (provider.response_id or events[0]["id"])
    assert span.attributes[semconv.FINISH_REASONS] == ["stop"]


async def collected(stream: openai.AsyncStream[ChatCompletionChunk]) -> tuple[dict[int, list[str]], Any]:
    """Return name, arguments and id of each tool call of a stream, and its token counts."""
    calls: dict[int, list[str]] = {}
    counts = None
    async for chunk in stream:
        counts = chunk.usage or counts
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                known = calls.setdefault(call.index, ["", "", ""])
                assert call.function
                known[0] += call.function.name or ""
                known[1] += call.function.arguments or ""
                known[2] += call.id or ""
    return calls, counts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", [name for name in PROVIDERS if name != "azure"])
async def test_reasoning_is_passed_on_apart_from_the_content(
    name: str, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """In the fields of plain responses and of stream events, and in the record."""
    async with running(name, monkeypatch) as run, run.client() as client:
        run.server.script = Script(thoughts=("Let me ", "see."))
        if stream:
            events = await client.chat.completions.create(model="m", messages=USER, stream=True)
            deltas = [event.choices[0].delta.to_dict() async for event in events if event.choices]
            said: dict[str, str] = {}
            for delta in deltas:
                for field in ("reasoning_content", "reasoning", "content"):
                    said[field] = said.get(field, "") + str(delta.get(field) or "")
        else:
            answer = await client.chat.completions.create(model="m", messages=USER)
            said = {key: str(value) for key, value in answer.choices[0].message.to_dict().items()}
        [span] = await run.spans()
    recorded = json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES]))[0]
    for found in (said, recorded):
        assert (found["reasoning_content"], found["content"]) == ("Let me see.", "Hello")
    assert said["reasoning"] == "Let me see."


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_go_there_and_calls_come_back_and_results_go_there(
    formats: tuple[str, Provider], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    name, _ = formats
    async with running(name, monkeypatch) as run, run.client() as client:
        run.server.script = Script(pieces=(), call=ToolCall("add", {"a": 1}))
        if stream:
            events = await client.chat.completions.create(
                model="m", messages=USER, tools=[ADD], stream=True, stream_options={"include_usage": True}
            )
            calls, counts = await collected(events)
            [[called, arguments, call_id]] = calls.values()
            assert counts.total_tokens == 18
        else:
            answer = await client.chat.completions.create(model="m", messages=USER, tools=[ADD])
            [choice] = answer.choices
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
            [call] = choice.message.tool_calls or []
            assert call.type == "function"
            called, arguments, call_id = call.function.name, call.function.arguments, call.id
        assert (called, json.loads(arguments)) == ("add", {"a": 1})
        run.server.script = Script()
        calls_message: Any = {"id": call_id, "type": "function", "function": {"name": called, "arguments": arguments}}
        history: list[ChatCompletionMessageParam] = [
            *USER,
            {"role": "assistant", "content": None, "tool_calls": [calls_message]},
            {"role": "tool", "tool_call_id": call_id, "content": "the sum is 4"},
        ]
        last = await client.chat.completions.create(model="m", messages=history, tools=[ADD])
        spans = await run.spans()
        assert last.choices[0].message.content == "Hello"
        assert "the sum is 4" in json.dumps(run.server.requests[-1].body)
        assert "Adds." in json.dumps(run.server.requests[0].body)
    first = spans[0].attributes
    assert first[semconv.FINISH_REASONS] == ["tool_calls"]
    recorded = json.loads(str(first[semconv.OUTPUT_MESSAGES]))[0]["tool_calls"][0]
    assert (recorded["function"]["name"], json.loads(recorded["function"]["arguments"])) == ("add", {"a": 1})
    assert json.loads(str(first[semconv.TOOL_DEFINITIONS])) == [ADD]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (529, openai.InternalServerError),
    ],
)
async def test_the_providers_errors_have_its_status_and_no_key(
    formats: tuple[str, Provider],
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
    status: int,
    error: type[openai.APIStatusError],
) -> None:
    name, _ = formats
    async with running(name, monkeypatch) as run, run.client() as client:
        run.server.script = Script(status=status, message=f"the key {KEY} is too fast", retry_after="17")
        with pytest.raises(error) as raised:
            await client.chat.completions.create(model="m", messages=USER, stream=stream)
        [span] = await run.spans()
        assert len(run.server.requests) == 1
    assert raised.value.response.headers["retry-after"] == "17"
    assert raised.value.status_code == status
    body = raised.value.response.json()["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["message"].startswith("the key ")
    assert body["message"].endswith(" is too fast")
    assert KEY not in raised.value.response.text
    assert (span.status.code, span.attributes[semconv.ERROR_TYPE]) == ("error", str(status))
    assert KEY not in repr(span)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_that_hangs_up_ends_the_providers_request(
    formats: tuple[str, Provider], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    name, _ = formats
    async with running(name, monkeypatch) as run:
        run.server.script = Script(pieces=("a", "b", "c", "d", "e", "f", "g"), hold=True)
        async with httpx.AsyncClient(timeout=20) as http:
            body = {"model": "m", "messages": USER, "stream": stream}
            if stream:
                async with http.stream("POST", f"{run.base_url}/chat/completions", json=body) as answer:
                    async for _ in answer.aiter_lines():
                        break
            else:
                asking = asyncio.create_task(http.post(f"{run.base_url}/chat/completions", json=body))
                while not run.server.requests:
                    await asyncio.sleep(0.01)
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
        assert await asyncio.to_thread(run.server.left.wait, 10)
        while not (spans := await run.spans()):
            await asyncio.sleep(0.01)
    assert spans[0].attributes[semconv.NOT_TRAINED] == reasons.DISCONNECTED
    if stream:
        assert json.loads(str(spans[0].attributes[semconv.OUTPUT_MESSAGES]))[0]["content"].startswith("a")


async def test_a_stream_that_breaks_off_ends_with_an_error_and_is_recorded(
    formats: tuple[str, Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _ = formats
    async with running(name, monkeypatch) as run, run.client() as client:
        run.server.script = Script(pieces=("a", "b", "c", "d", "e", "f", "g"), broken=True)
        with pytest.raises(openai.APIError, match="Bad gateway"):
            await collected(await client.chat.completions.create(model="m", messages=USER, stream=True))
        [span] = await run.spans()
        assert len(run.server.requests) == 1
    assert span.status.code == "error"
    assert json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES]))[0]["content"].startswith("a")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_that_sends_nothing_is_a_bad_gateway_after_the_time_limit(
    formats: tuple[str, Provider], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    name, _ = formats
    async with running(name, monkeypatch, timeout=0.5) as run:
        run.server.script = Script(pieces=("a", "b", "c", "d", "e", "f", "g"), hold=True)
        answer = await run.post(stream=stream)
        [span] = await run.spans()
        assert len(run.server.requests) == 1
    assert "did not answer in time" in answer.text
    assert answer.status_code == (200 if stream else 502)
    assert span.status.code == "error"


async def test_a_provider_out_of_reach_is_a_bad_gateway(
    formats: tuple[str, Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, provider = formats
    async with running(name, monkeypatch) as run:
        for variable, value in provider.variables("http://127.0.0.1:9", KEY).items():
            monkeypatch.setenv(variable, value)
        answer = await run.post()
        [span] = await run.spans()
    assert answer.status_code == 502, answer.text
    assert "could not be reached" in answer.json()["error"]["message"]
    assert span.status.code == "error"

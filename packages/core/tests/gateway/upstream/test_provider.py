"""Models of providers in the policy's place: what the provider gets, what the agent gets, and what is recorded."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam, ChatCompletionToolParam
from planted import random_of
from provider_servers import PROVIDERS, Provider, ProviderServer, Request, Script, ToolCall, provider_server

from leyden.core.data import reasons, semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.data.provider_model import ProviderModel, read_provider_model
from leyden.core.data.span import Span
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.upstream.provider import ProviderUpstream
from leyden.core.store.memory import MemoryStore

pytestmark = [
    pytest.mark.integration,
    pytest.mark.keeps("thread", "LiteLLM signs requests to Bedrock on threads that it keeps"),
]

KEY = random_of("a provider's key")
USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
ADD: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}


class Run:
    """A gateway in front of a provider's server, with one open attempt."""

    def __init__(
        self, formats: Provider, server: ProviderServer, store: MemoryStore, rollout_id: str, url: str
    ) -> None:
        self.formats, self.server, self.base_url = formats, server, url
        self._store, self._rollout_id = store, rollout_id

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.base_url, api_key="sk-the-agents", max_retries=0)

    async def post(self, **fields: Any) -> httpx.Response:
        async with httpx.AsyncClient(timeout=20) as http:
            body = {"model": "gpt-4.1", "messages": USER, **fields}
            return await http.post(f"{self.base_url}/chat/completions", json=body)

    async def spans(self) -> list[Span]:
        return (await self._store.query_spans(self._rollout_id)).items

    @property
    def request(self) -> Request:
        [request] = self.server.requests
        return request


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let nothing be looked up or called except this machine's loopback."""
    asked: list[str] = []
    look_up = socket.getaddrinfo

    def only_here(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in ("127.0.0.1", "localhost", None):
            asked.append(str(host))
            raise OSError(f"{host} was looked up")
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", only_here)
    yield asked
    assert asked == []


@pytest.fixture(params=PROVIDERS)
def formats(request: pytest.FixtureRequest) -> tuple[str, Provider]:
    return request.param, PROVIDERS[request.param]


@asynccontextmanager
async def running(
    name: str, monkeypatch: pytest.MonkeyPatch, *, model: str | None = None, timeout: float = 20.0
) -> AsyncGenerator[Run]:
    formats, store, key = PROVIDERS[name], MemoryStore(), new_key()
    with provider_server(name) as server:
        for variable, value in formats.variables(server.url, KEY).items():
            monkeypatch.setenv(variable, value)
        given = read_provider_model(model or formats.model)
        assert given is not None
        upstream = ProviderUpstream(given, timeout=timeout)
        gateway = GatewayServer(Gateway(store, upstream, key).app)
        here = await gateway.start()
        rollout = await store.start_rollout("task")
        token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
        try:
            yield Run(formats, server, store, rollout.rollout_id, f"{here}/a/{token}/v1")
        finally:
            server.go.set()
            await gateway.stop()


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


# --- Models


@pytest.mark.parametrize("given", ["anthropic", "anthropic/*"])
async def test_without_a_model_the_agents_own_name_is_sent(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("anthropic", monkeypatch, model=given) as run:
        assert (await run.post(model="claude-haiku-4-5")).status_code == 200
        assert (await run.post(model="anthropic/claude-haiku-4-5")).status_code == 200
        assert [request.body["model"] for request in run.server.requests] == ["claude-haiku-4-5"] * 2
        nameless = await run.post(model="")
    assert nameless.status_code == 400


async def test_a_model_of_the_endpoint_replaces_the_agents_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running("anthropic", monkeypatch) as run:
        for _ in range(2):
            await run.post(model="gpt-4.1")
        assert {request.body["model"] for request in run.server.requests} == {"claude-sonnet-4-5"}
        async with httpx.AsyncClient() as http:
            listed = (await http.get(f"{run.base_url}/models")).json()
    [logged] = [record.getMessage() for record in caplog.records if record.name == "leyden.gateway"]
    assert logged.startswith("The agent requests the model 'gpt-4.1'; 'claude-sonnet-4-5' answers instead")
    assert [model["id"] for model in listed["data"]] == ["anthropic/claude-sonnet-4-5"]


# --- What is refused


SETTINGS: tuple[dict[str, Any], ...] = (
    {"api_base": "http://127.0.0.1:9"},
    {"base_url": "http://127.0.0.1:9"},
    {"api_key": "theirs"},
    {"extra_headers": {"x": "y"}},
    {"extra_body": {"x": "y"}},
    {"mock_response": "not from the provider"},
    {"fallbacks": ["openai/gpt-4.1"]},
    {"custom_llm_provider": "openai"},
    {"aws_bedrock_runtime_endpoint": "http://127.0.0.1:9"},
    {"model_list": []},
    {"num_retries": 3},
    {"timeout": 1},
)


@pytest.mark.parametrize("field", SETTINGS, ids=lambda field: next(iter(field)))
async def test_an_agent_cannot_change_the_settings_of_litellm(
    field: dict[str, Any], formats: tuple[str, Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(formats[0], monkeypatch) as run:
        answer = await run.post(**field)
        assert run.server.requests == []
        [span] = await run.spans()
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"Unrecognized request argument supplied: {next(iter(field))}"
    assert span.attributes[semconv.NOT_TRAINED] == reasons.UPSTREAM


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seed": 1}, "Unsupported parameter: 'seed' is not supported by the provider anthropic."),
        ({"presence_penalty": 0.5}, "Unsupported parameter: 'presence_penalty' is not supported by the provider"),
        ({"tools": [{"type": "mcp", "server_url": "http://x"}]}, "Unsupported parameter: 'tools' must be functions"),
        ({"tools": 3}, "Invalid type for 'tools'"),
        ({"messages": []}, "Missing required parameter: 'messages'."),
        ({"messages": [3]}, "Invalid type for 'messages'"),
        ({"stream": "yes"}, "We could not parse the JSON body of your request"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}],
                    }
                ]
            },
            "'image_url' names a file by its URL, which is not fetched here: send it as a data: URL.",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "https://x/y.png"}]}]},
            "'image_url' names a file by its URL",
        ),
    ],
)
async def test_what_the_provider_does_not_have_is_refused_by_its_name(
    fields: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running("anthropic", monkeypatch) as run:
        answer = await run.post(**fields)
        assert run.server.requests == []
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


async def test_neutral_values_and_hints_are_no_reason_to_refuse(
    formats: tuple[str, Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(formats[0], monkeypatch) as run:
        answer = await run.post(
            presence_penalty=0,
            frequency_penalty=0,
            logit_bias={},
            n=1,
            logprobs=False,
            parallel_tool_calls=True,
            seed=None,
            metadata={"a": "b"},
            store=False,
            user="me",
            response_format={"type": "text"},
            modalities=["text"],
        )
        assert answer.status_code == 200, answer.text
        sent = json.dumps(run.request.body)
    assert not any(name in sent for name in ('{"a": "b"}', "store", "no-log", "caching", "drop_params", "num_retries"))


async def test_responses_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("anthropic", monkeypatch) as run, run.client() as client:
        with pytest.raises(openai.NotFoundError) as raised:
            await client.responses.create(model="m", input="hi")
        assert run.server.requests == []
    assert raised.value.response.json()["error"]["message"] == (
        "Models of the provider anthropic answer Chat Completions here, and not /responses."
    )


# --- Keys


async def test_the_key_is_in_no_log_whatever_is_logged(
    formats: tuple[str, Provider], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    name, provider = formats
    caplog.set_level(logging.DEBUG)
    levels = {logger: logging.getLogger(logger).level for logger in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")}
    try:
        for logger in levels:
            logging.getLogger(logger).setLevel(logging.DEBUG)
        async with running(name, monkeypatch) as run:
            for script in (Script(), Script(status=401, message=f"bad key {KEY}")):
                run.server.script = script
                for stream in (False, True):
                    await run.post(stream=stream)
            spans = await run.spans()
            assert provider.key_of(run.server.requests[0])
    finally:
        for logger, level in levels.items():
            logging.getLogger(logger).setLevel(level)
    printed = capfd.readouterr()
    texts = [record.getMessage() for record in caplog.records] + [str(record.exc_text) for record in caplog.records]
    assert any(record.name.startswith("LiteLLM") for record in caplog.records)
    assert len(spans) == 4
    assert [text for text in texts if KEY in text] == []
    assert KEY not in printed.out + printed.err + repr(spans)


def test_the_key_is_not_shown() -> None:
    assert KEY not in repr(ProviderUpstream(ProviderModel("anthropic", "m"), KEY))


async def test_a_given_key_takes_the_place_of_the_providers_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with provider_server("anthropic") as server:
        monkeypatch.setenv("ANTHROPIC_API_BASE", server.url)
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        store, key = MemoryStore(), new_key()
        upstream = ProviderUpstream(ProviderModel("anthropic", "claude-sonnet-4-5"), KEY)
        gateway = GatewayServer(Gateway(store, upstream, key).app)
        here = await gateway.start()
        rollout = await store.start_rollout("task")
        token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
        async with httpx.AsyncClient() as http:
            body = {"model": "m", "messages": USER}
            answer = await http.post(f"{here}/a/{token}/v1/chat/completions", json=body)
        await gateway.stop()
        assert answer.status_code == 200
        assert server.requests[0].headers["x-api-key"] == KEY

"""Requests to models of providers: which model is called, what is refused, and where the key is not."""

import json
import logging
from typing import Any

import anthropic
import httpx
import openai
import pytest
from provider_formats import PROVIDERS, Provider, Script
from provider_runs import KEY, USER, running
from provider_servers import provider_server

from leyden.core.data import reasons, semconv
from leyden.core.data.encoding.provider_model import ProviderModel
from leyden.core.data.identity import mint, new_key
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.upstream.provider import ProviderUpstream
from leyden.core.store.memory import MemoryStore

pytestmark = [
    pytest.mark.integration,
    pytest.mark.keeps("thread", "LiteLLM signs requests to Bedrock on threads that it keeps"),
]


@pytest.fixture(params=PROVIDERS)
def formats(request: pytest.FixtureRequest) -> tuple[str, Provider]:
    return request.param, PROVIDERS[request.param]


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


async def test_other_apis_are_refused_in_their_own_format(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("anthropic", monkeypatch) as run, run.client() as client:
        with pytest.raises(openai.NotFoundError) as responses:
            await client.responses.create(model="m", input="hi")
        with pytest.raises(openai.NotFoundError) as completions:
            await client.completions.create(model="m", prompt="hi")
        base_url = run.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key="sk-the-agents", max_retries=0) as messages:
            with pytest.raises(anthropic.NotFoundError) as message:
                await messages.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}])
        assert run.server.requests == []
        spans = await run.spans()
    refusal = "Models of the provider anthropic answer Chat Completions here, and not {}."
    assert responses.value.response.json()["error"]["message"] == refusal.format("/responses")
    assert completions.value.response.json()["error"]["message"] == refusal.format("/completions")
    answer = message.value.response.json()
    assert (answer["type"], answer["error"]["type"]) == ("error", "not_found_error")
    assert answer["error"]["message"] == refusal.format("/messages")
    assert [span.attributes[semconv.NOT_TRAINED] for span in spans] == [reasons.UPSTREAM] * 3
    assert [bool(span.attributes[semconv.INPUT_MESSAGES]) for span in spans] == [True] * 3


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

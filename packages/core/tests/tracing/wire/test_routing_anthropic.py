"""Anthropic's client, unchanged, in an attempt: its calls reach the gateway, and its key reaches no server."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.lib.vertex import AsyncAnthropicVertex
from anthropic.types import MessageParam

from leyden.core.data import semconv
from leyden.core.engine.base import GenerateRequest
from leyden.core.testing import factories
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, ScriptedGateway, scripted_gateway
from leyden.core.testing.servers.echo_endpoint import Endpoint
from leyden.core.tracing import context_propagation
from leyden.core.tracing.context import Caller, OpenAttempt, open_attempt, set_caller
from leyden.core.tracing.wire import gateway_pool, routing

pytestmark = pytest.mark.integration

CODEC = ByteCodec()
KEY = "sk-ant-the-agents-own"
QUESTION: list[MessageParam] = [{"role": "user", "content": "hi"}]
HOW: dict[str, Any] = {"model": "claude", "max_tokens": 50, "messages": QUESTION}


@pytest.fixture(autouse=True)
def routed() -> Iterator[None]:
    context_propagation.install()
    routing.install(fail_closed=True)
    yield
    routing.uninstall()
    context_propagation.uninstall()


def script(_: GenerateRequest) -> ScriptedAnswer:
    return ScriptedAnswer(ids=CODEC.answer("It is 3."), chunk_size=3)


def opened(gateway: ScriptedGateway, attempt: AttemptHandle) -> OpenAttempt:
    return factories.attempt(gateway.url, token=attempt.token)


async def test_calls_of_an_async_client_reach_the_gateway() -> None:
    client: Any = anthropic.AsyncAnthropic(api_key=KEY, max_retries=0)
    async with scripted_gateway(script) as gateway, client as agent:
        attempt = await gateway.open_attempt()
        with open_attempt(opened(gateway, attempt)):
            set_caller(Caller(agent="solver"))
            answers: list[Any] = [await agent.messages.create(**HOW)]
            async with agent.messages.stream(**HOW) as events:
                answers.append(await events.get_final_message())
            raw = await agent.messages.create(**HOW, stream=True)
            kinds = [event.type async for event in raw]
            answers.append(await agent.beta.messages.create(**HOW, betas=["some-beta"]))
            counted = await agent.messages.count_tokens(model="claude", messages=QUESTION)
        spans = await gateway.calls(attempt)
        await gateway_pool.aclose()
    assert [answer.content[0].text for answer in answers] == ["It is 3."] * 3
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert counted.input_tokens == answers[0].usage.input_tokens
    assert [span.attributes[semconv.AGENT_NAME] for span in spans] == ["solver"] * 4
    assert all(span.attributes[semconv.DIALECT] == "messages" for span in spans)


async def test_calls_of_a_sync_client_in_a_thread_reach_the_gateway() -> None:
    def work() -> list[str]:
        client: Any = anthropic.Anthropic(api_key=KEY, max_retries=0)
        with client as agent:
            answer = agent.messages.create(**HOW)
            with agent.messages.stream(**HOW) as events:
                streamed = "".join(events.text_stream)
        return [answer.content[0].text, streamed]

    async with scripted_gateway(script) as gateway:
        attempt = await gateway.open_attempt()
        with open_attempt(opened(gateway, attempt)):
            texts = await asyncio.to_thread(work)
        assert len(await gateway.calls(attempt)) == 2
    assert texts == ["It is 3.", "It is 3."]


@pytest.mark.parametrize("base_url", [None, "https://proxy.invalid/anthropic"])
async def test_no_credential_leaves_the_process(
    base_url: str | None, gateway: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    if base_url:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", base_url)
    attempt = factories.attempt(gateway.url)
    headers = {"x-api-key": KEY, "anthropic-beta": "some-beta"}
    client: Any = anthropic.AsyncAnthropic(api_key=KEY, default_headers=headers, max_retries=0)
    async with client as agent:
        with open_attempt(attempt):
            await agent.messages.create(**HOW)
            await agent.messages.count_tokens(model="claude", messages=QUESTION)
        await gateway_pool.aclose()
    assert [call["path"] for call in gateway.seen] == ["/v1/messages", "/v1/messages/count_tokens"]
    assert KEY not in json.dumps(gateway.seen, default=str)
    for call in gateway.seen:
        assert call["headers"][semconv.HEADER_ATTEMPT] == "t"
        assert call["headers"]["anthropic-beta"] == "some-beta"


async def test_calls_that_the_gateway_does_not_speak_are_stopped(gateway: Endpoint) -> None:
    attempt = factories.attempt(gateway.url)
    async with anthropic.AsyncAnthropic(api_key=KEY, max_retries=0) as agent:
        with open_attempt(attempt):
            with pytest.raises(anthropic.APIConnectionError) as stopped:
                await agent.messages.batches.list()
            assert "stopped by Leyden" in str(stopped.value.__cause__)
    vertex: Any = AsyncAnthropicVertex(region="us-east5", project_id="p", access_token=KEY, max_retries=0)
    async with vertex:
        with open_attempt(attempt):
            with pytest.raises(anthropic.APIConnectionError) as stopped:
                await vertex.messages.create(**HOW)
            assert "the gateway does not support :rawPredict calls" in str(stopped.value.__cause__)
    assert gateway.seen == []

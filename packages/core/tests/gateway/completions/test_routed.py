"""Completions of an agent in this process, whose client has a provider's URL: they are routed to the gateway."""

import asyncio
from collections.abc import Iterator

import openai
import pytest

from leyden.core.engine.base import GenerateRequest
from leyden.core.testing import factories
from leyden.core.testing.byte_codec import STOP
from leyden.core.testing.scripted_engine import ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, ScriptedGateway, scripted_gateway
from leyden.core.tracing.context import OpenAttempt, open_attempt
from leyden.core.tracing.wire import gateway_pool, routing

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def routed() -> Iterator[None]:
    routing.install(fail_closed=True)
    yield
    routing.uninstall()


def hello(request: GenerateRequest) -> ScriptedAnswer:
    return ScriptedAnswer(ids=[*b" world", STOP], chunk_size=2)


def attempt_of(gateway: ScriptedGateway, attempt: AttemptHandle) -> OpenAttempt:
    return factories.attempt(
        gateway.url, rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id, token=attempt.token
    )


async def test_the_providers_url_in_the_code_is_kept_and_not_called() -> None:
    def call(attempt: OpenAttempt) -> str:
        with open_attempt(attempt), openai.OpenAI(api_key="sk-own", base_url="https://api.openai.com/v1") as agent:
            raw = agent.completions.with_raw_response.create(model="gpt-3.5-turbo-instruct", prompt="Hello")
            assert str(raw.url) == "https://api.openai.com/v1/completions"
            answer = raw.parse()
            assert answer.model == "gpt-3.5-turbo-instruct"
            return answer.choices[0].text

    async with scripted_gateway(hello) as gateway:
        attempt = await gateway.open_attempt()
        assert await asyncio.to_thread(call, attempt_of(gateway, attempt)) == " world"
        assert len(await gateway.calls(attempt)) == 1


async def test_a_stream_of_an_asynchronous_client() -> None:
    async with scripted_gateway(hello) as gateway:
        attempt = await gateway.open_attempt()
        with open_attempt(attempt_of(gateway, attempt)):
            async with openai.AsyncAzureOpenAI(
                api_key="k", azure_endpoint="https://some.openai.azure.com", api_version="2024-10-21"
            ) as agent:
                events = await agent.completions.create(model="d", prompt="Hello", stream=True)
                assert "".join([choice.text async for event in events for choice in event.choices]) == " world"
        assert len(await gateway.calls(attempt)) == 1
        await gateway_pool.aclose()


async def test_another_dialect_of_the_same_path_is_stopped() -> None:
    async with scripted_gateway(hello) as gateway:
        attempt = await gateway.open_attempt()
        with open_attempt(attempt_of(gateway, attempt)):
            async with openai.AsyncOpenAI(
                api_key="k", base_url="https://api.mistral.ai/v1/agents", max_retries=0
            ) as agent:
                with pytest.raises(openai.APIConnectionError) as stopped:
                    await agent.completions.create(model="m", prompt="Hello")
        assert "does not support /agents/completions calls" in str(stopped.value.__cause__)
        assert await gateway.calls(attempt) == []

"""The instrumentor in production: each workflow is a rollout, and whatever is wrong with the gateway stays ours."""

# The SDK's own types are partly unknown:
# pyright: reportUnknownMemberType=false

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from agents import (
    Agent,
    MaxTurnsExceeded,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    trace,
)
from openai import AsyncOpenAI

from leyden.core.data import semconv
from leyden.core.testing.adapter_contract.shared import ContractModel, is_served
from leyden.core.testing.capturing import captures, capturing_bench
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.testing.servers.echo_endpoint import Endpoint, echo_endpoint
from leyden.core.tracing.context import current_attempt
from leyden.core.tracing.emit import emit_reward
from leyden.openai_agents import OpenAIAgentsInstrumentor

PROVIDER = "https://api.openai.com/v1"
KEY = "sk-the-agents"
UNTRACED = RunConfig(tracing_disabled=True)
"""Nothing is for the SDK's own exporter here."""


@function_tool
def double(number: int) -> int:
    """Double a number."""
    emit_reward(0.5)
    return 2 * number


def agent(name: str = "solver", kind: Any = OpenAIResponsesModel, url: str = PROVIDER, **more: Any) -> Agent[Any]:
    # No connection to the endpoint is left open for another event loop.
    client = AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0, default_headers={"connection": "close"})
    more.setdefault("tools", [double])
    return Agent(name=name, model=kind("gpt-4.1-mini", openai_client=client), **more)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayBench]:
    """A gateway that captures, named by the environment, and the instrumentor."""
    with capturing_bench(ContractModel(), monkeypatch) as bench:
        OpenAIAgentsInstrumentor().instrument()
        yield bench
        OpenAIAgentsInstrumentor().uninstrument()


@pytest.fixture
def provider() -> Iterator[Endpoint]:
    with echo_endpoint() as endpoint:
        endpoint.go.set()
        yield endpoint


async def test_runs_at_once_are_rollouts_with_their_own_tokens(bench: GatewayBench) -> None:
    agents = agent(), agent(kind=OpenAIChatCompletionsModel)

    async def run(number: int) -> str:
        if number % 2:
            result = await Runner.run(agents[0], f"double {number}", run_config=UNTRACED)
            return result.final_output
        streamed = Runner.run_streamed(agents[1], f"double {number}", run_config=UNTRACED)
        async for _ in streamed.stream_events():
            continue
        return streamed.final_output

    assert await asyncio.gather(*map(run, range(1, 9))) == [f"It is {2 * n}." for n in range(1, 9)]
    recorded = await captures(bench)
    assert len(recorded) == 8
    assert len(bench.log) == 16
    for rollout, spans in recorded:
        assert rollout.status == "succeeded"
        calls = [span for span in spans if is_served(span)]
        assert [span.attributes[semconv.AGENT_NAME] for span in calls] == ["solver", "solver"]
        assert all(span.attributes[semconv.RESPONSE_IDS] for span in calls)
        assert [span.attributes[semconv.REWARD_VALUE] for span in spans if span.name == semconv.REWARD] == [0.5]
    assert current_attempt() is None


async def test_handoffs_and_runs_under_one_trace_are_one_rollout(bench: GatewayBench) -> None:
    right = agent("right", tools=[], instructions="Listen.")
    left = agent("left", tools=[], instructions="Please hand over to right.", handoffs=[right])
    await Runner.run(left, "double 7", run_config=UNTRACED)
    with trace("conversation", disabled=True):
        for _ in range(2):
            await Runner.run(right, "double 8", run_config=UNTRACED)
    speakers = [
        [span.attributes[semconv.AGENT_NAME] for span in spans if is_served(span)] for _, spans in await captures(bench)
    ]
    assert speakers == [["left", "right"], ["right", "right"]]


async def test_an_agent_that_fails_fails_its_rollout(bench: GatewayBench) -> None:
    with pytest.raises(MaxTurnsExceeded):
        await Runner.run(agent(), "double 7", max_turns=1, run_config=UNTRACED)
    [(rollout, spans)] = await captures(bench)
    assert rollout.status == "failed"
    assert len([span for span in spans if is_served(span)]) == 1


async def test_a_stream_that_is_left_ends_its_rollout(bench: GatewayBench) -> None:
    streamed = Runner.run_streamed(agent(), "double 7", run_config=UNTRACED)
    async for event in streamed.stream_events():
        if event.type == "raw_response_event":
            break
    streamed.cancel()
    async for _ in streamed.stream_events():  # as the SDK asks its users to
        continue
    [(rollout, _)] = await captures(bench)
    assert rollout.status not in ("preparing", "running")
    assert current_attempt() is None


async def test_without_the_gateway_the_agents_provider_answers(
    bench: GatewayBench, provider: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LEYDEN_GATEWAY_URL", "http://127.0.0.1:9")
    echoed = agent(kind=OpenAIChatCompletionsModel, url=f"{provider.url}/v1")
    with caplog.at_level(logging.WARNING, logger="leyden.production"):
        for _ in range(2):
            with suppress(Exception):  # an echo is no completion
                await Runner.run(echoed, "double 7", run_config=UNTRACED)
    assert [call["headers"]["authorization"] for call in provider.seen] == [f"Bearer {KEY}"] * 2
    assert len([record for record in caplog.records if record.name == "leyden.production"]) == 1
    assert not await captures(bench)

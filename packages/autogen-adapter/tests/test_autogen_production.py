"""Recorded in production: every outermost run of an agent or a team is a rollout, with the tokens of all its calls."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

from leyden.autogen import AutoGenInstrumentor
from leyden.core.data import semconv
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.testing.adapter_contract.shared import PROVIDER, ContractModel, is_served
from leyden.core.testing.capturing import captures, capturing_bench
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.tracing.context import current_attempt
from leyden.core.tracing.emit import emit_reward

# AutoGen expects an answer from a dated model; the bench answers as the model that was asked for.
pytestmark = pytest.mark.filterwarnings("ignore:Resolved model mismatch:UserWarning")

NOBODY = "http://127.0.0.1:9"


def double(number: int) -> int:
    """Double a number."""
    emit_reward(0.5)
    return 2 * number


def solver(url: str = PROVIDER, **more: Any) -> AssistantAgent:
    client = OpenAIChatCompletionClient(model="gpt-4.1-mini", base_url=url, api_key="sk-agents", max_retries=0)
    return AssistantAgent("solver", client, tools=[double], reflect_on_tool_use=True, **more)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayBench]:
    """A gateway that captures, as the environment says, and AutoGen instrumented."""
    with capturing_bench(ContractModel(), monkeypatch) as bench:
        AutoGenInstrumentor().instrument()
        yield bench
        AutoGenInstrumentor().uninstrument()


async def captured(bench: GatewayBench) -> dict[str, list[tuple[AttemptedRollout, list[Span]]]]:
    """The rollouts of each root, with their model calls and notes, once all have ended."""
    found: dict[str, list[tuple[AttemptedRollout, list[Span]]]] = {}
    for rollout, spans in await captures(bench):
        found.setdefault(rollout.metadata["agent"], []).append((rollout, spans))
    return found


async def test_agents_and_teams_at_once_are_one_rollout_each(bench: GatewayBench) -> None:
    runs = [solver().run(task=f"double {number}") for number in range(3)]
    runs += [RoundRobinGroupChat([solver()], name="team", max_turns=1).run(task=f"double {n}") for n in (7, 8)]
    results = await asyncio.gather(*runs)
    assert [result.messages[-1].to_text() for result in results] == [f"It is {2 * n}." for n in (0, 1, 2, 7, 8)]
    assert current_attempt() is None
    recorded = await captured(bench)
    assert {root: len(found) for root, found in recorded.items()} == {"solver": 3, "team": 2}
    for rollout, spans in [*recorded["solver"], *recorded["team"]]:
        assert rollout.status == "succeeded"
        calls = [span for span in spans if is_served(span)]
        assert [call.attributes[semconv.AGENT_NAME] for call in calls] == ["solver", "solver"]
        assert [span.attributes[semconv.REWARD_VALUE] for span in spans if span.name == semconv.REWARD] == [0.5]
    assert len(bench.log) == 10


async def test_the_pieces_of_one_stream_are_one_rollout_whichever_task_takes_them(bench: GatewayBench) -> None:
    stream: Any = solver(model_client_stream=True).run_stream(task="double 7")
    while await asyncio.create_task(anext(stream, None)) is not None:
        assert current_attempt() is None
    async with aclosing(solver(model_client_stream=True).run_stream(task="double 8")) as half:
        async for event in half:
            if getattr(event, "source", "") == "solver":
                break
    recorded = (await captured(bench))["solver"]
    assert len(recorded) == 2
    whole = next(spans for _, spans in recorded if len([span for span in spans if is_served(span)]) == 2)
    assert [span.attributes[semconv.AGENT_NAME] for span in whole if is_served(span)] == ["solver", "solver"]
    assert all(rollout.status != "running" for rollout, _ in recorded)


async def test_a_run_that_fails_fails_its_rollout(bench: GatewayBench) -> None:
    with pytest.raises(RuntimeError, match="Connection error"):  # of the provider, which is asked in the end
        await RoundRobinGroupChat([solver(f"{NOBODY}/v1")], name="team", max_turns=1).run(task="broken 1")
    [(rollout, _)] = (await captured(bench))["team"]
    assert rollout.status == "failed"


@pytest.fixture
def provider() -> Iterator[str]:
    """The agent's own provider, which is another engine than the gateway's."""
    bench = GatewayBench(ContractModel())
    bench.start()
    yield f"{bench.url}/a/{asyncio.run(bench.attempt('x')).token}/v1"
    bench.stop()


async def test_without_the_gateway_the_agents_provider_answers(
    provider: str, bench: GatewayBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LEYDEN_GATEWAY_URL", NOBODY)
    agent = solver(provider)
    with caplog.at_level(logging.WARNING, logger="leyden.production"):
        result = await agent.run(task="double 7")
    await vars(agent)["_model_client"].close()
    assert result.messages[-1].to_text() == "It is 14."
    assert [record.name for record in caplog.records if "Not captured" in record.message] == ["leyden.production"]
    assert not await captured(bench)

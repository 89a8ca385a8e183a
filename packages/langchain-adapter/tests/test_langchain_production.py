"""The instrumentor in production: each root run is a rollout, and whatever is wrong with the gateway stays ours."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import SecretStr

from leyden.core.data import semconv
from leyden.core.testing.adapter_contract.shared import ContractModel, is_served
from leyden.core.testing.capturing import captures, capturing_bench
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.testing.servers.echo_endpoint import Endpoint, echo_endpoint
from leyden.core.tracing.context import current_attempt
from leyden.core.tracing.emit import emit_reward
from leyden.langchain import LangChainInstrumentor

pytestmark = pytest.mark.usefixtures("closed_http_clients")

PROVIDER = "https://api.openai.com/v1"
KEY = "sk-the-agents"


def double(number: int) -> int:
    """Double a number."""
    emit_reward(0.5)
    if number == 13:
        raise ValueError("13 is unlucky")
    return 2 * number


def model(url: str = PROVIDER, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(model="gpt-4.1-mini", base_url=url, api_key=SecretStr(KEY), max_retries=0, **more)


def solver(**more: Any) -> Any:
    return create_agent(model(**more), [double], name="solver")


def asking(number: int) -> Any:
    return {"messages": [("user", f"double {number}")]}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayBench]:
    """A gateway that captures, named by the environment, and the instrumentor."""
    with capturing_bench(ContractModel(), monkeypatch) as bench:
        LangChainInstrumentor().instrument()
        yield bench
        LangChainInstrumentor().uninstrument()


@pytest.fixture
def provider() -> Iterator[Endpoint]:
    with echo_endpoint() as endpoint:
        endpoint.go.set()
        yield endpoint


async def test_runs_at_once_are_rollouts_with_their_own_tokens(bench: GatewayBench) -> None:
    agent = solver()
    results = await asyncio.gather(*(agent.ainvoke(asking(number)) for number in range(1, 5)))
    with ThreadPoolExecutor(4) as pool:
        results += await asyncio.to_thread(lambda: list(pool.map(agent.invoke, map(asking, range(5, 9)))))
    assert [result["messages"][-1].text for result in results] == [f"It is {2 * n}." for n in range(1, 9)]
    recorded = await captures(bench)
    assert len(recorded) == 8
    assert len(bench.log) == 16
    for rollout, spans in recorded:
        assert (rollout.status, rollout.metadata) == ("succeeded", {"agent": "solver", "capture": "production"})
        calls = [span for span in spans if is_served(span)]
        assert [span.attributes[semconv.AGENT_NAME] for span in calls] == ["solver", "solver"]
        assert all(span.attributes[semconv.RESPONSE_IDS] for span in calls)
        assert [span.attributes[semconv.REWARD_VALUE] for span in spans if span.name == semconv.REWARD] == [0.5]
    assert current_attempt() is None


async def test_only_roots_are_rollouts_and_streams_that_are_left_end_theirs(bench: GatewayBench) -> None:
    inner = solver()

    async def ask(state: MessagesState) -> Any:
        return {"messages": (await inner.ainvoke(asking(7)))["messages"][-1:]}

    team = StateGraph(MessagesState)
    team.add_node("ask", ask)
    team.add_edge(START, "ask")
    await team.compile(name="team").ainvoke(asking(7))
    stream = solver(streaming=True).astream(asking(8), stream_mode="messages")
    await anext(stream)
    await stream.aclose()
    assert current_attempt() is None
    recorded = await captures(bench)
    assert [rollout.metadata["agent"] for rollout, _ in recorded] == ["team", "solver"]
    assert len([span for span in recorded[0][1] if is_served(span)]) == 2
    assert recorded[1][0].status != "running"


async def test_an_agent_that_fails_fails_its_rollout(bench: GatewayBench) -> None:
    with pytest.raises(ValueError, match="unlucky"):
        await solver().ainvoke(asking(13))
    [(rollout, spans)] = await captures(bench)
    assert rollout.status == "failed"
    assert len([span for span in spans if is_served(span)]) == 1


async def test_a_bare_model_call_is_no_agent_and_goes_where_it_went(bench: GatewayBench, provider: Endpoint) -> None:
    with pytest.raises(Exception, match=r"Unexpected response|model_dump"):  # an echo is no completion
        await model(f"{provider.url}/v1").ainvoke("double 7")
    assert not await captures(bench)
    assert [call["headers"]["authorization"] for call in provider.seen] == [f"Bearer {KEY}"]


async def test_without_the_gateway_the_agents_provider_answers(
    bench: GatewayBench, provider: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LEYDEN_GATEWAY_URL", "http://127.0.0.1:9")
    agent = create_agent(model(f"{provider.url}/v1"), [double], name="solver")
    with caplog.at_level(logging.WARNING, logger="leyden.production"):
        for _ in range(2):
            with pytest.raises(Exception, match=r"Unexpected response|model_dump"):
                await agent.ainvoke(asking(7))
    assert [call["headers"]["authorization"] for call in provider.seen] == [f"Bearer {KEY}"] * 2
    assert len([r for r in caplog.records if r.name == "leyden.production"]) == 1
    assert not await captures(bench)

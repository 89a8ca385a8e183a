import asyncio
import logging
from collections.abc import Iterator

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import EVENT_LOGGER_NAME
from autogen_core.logging import LLMCallEvent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from opentelemetry import trace

from leyden.autogen import AutoGenAdapter, AutoGenInstrumentor, LeydenLogHandler
from leyden.core.data import semconv
from leyden.core.testing.adapter_contract.shared import ContractModel
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.testing.span_tape import SpanTape

# AutoGen expects an answer from a dated model; the bench answers as the model that was asked for.
pytestmark = pytest.mark.filterwarnings("ignore:Resolved model mismatch:UserWarning")

CHAT = "chat gpt-4.1-mini"
LOGGER = logging.getLogger(EVENT_LOGGER_NAME)


@pytest.fixture
def base_url() -> Iterator[str]:
    """A provider."""
    bench = GatewayBench(ContractModel())
    bench.start()
    yield f"{bench.url}/a/{asyncio.run(bench.attempt('x')).token}/v1"
    bench.stop()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> SpanTape:
    """The user's own tracing, as OpenTelemetry's global one."""
    own = SpanTape()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", own.provider)
    return own


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """AutoGen's event log, as a user switches it on."""
    monkeypatch.setattr(LOGGER, "propagate", False)
    before = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    yield
    LOGGER.setLevel(before)


@pytest.fixture
def handler(logged: None, own: SpanTape) -> Iterator[LeydenLogHandler]:
    handler = LeydenLogHandler()
    LOGGER.addHandler(handler)
    yield handler
    LOGGER.removeHandler(handler)


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


async def run(base_url: str, *, stream: bool = False, team: bool = False) -> str:
    client = OpenAIChatCompletionClient(model="gpt-4.1-mini", base_url=base_url, api_key="sk-x")
    solver = AssistantAgent("solver", client, tools=[double], reflect_on_tool_use=True, model_client_stream=stream)
    result = await (RoundRobinGroupChat([solver], max_turns=1) if team else solver).run(task="double 7")
    await client.close()
    return result.messages[-1].to_text()


@pytest.mark.parametrize("stream", [False, True])
async def test_model_calls_are_added_to_autogens_own_spans(
    own: SpanTape, handler: LeydenLogHandler, base_url: str, stream: bool
) -> None:
    assert await run(base_url, stream=stream) == "It is 14."
    [agent] = own.spans("invoke_agent solver")
    calls = [span for span in own.spans() if span.name.startswith("chat ")]
    assert len(calls) == 2
    assert agent.context is not None
    for call in calls:
        assert call.parent is not None
        assert call.parent.span_id == agent.context.span_id
        assert dict(call.attributes or {})[semconv.AGENT_NAME] == "solver"
    assert len(own.spans("execute_tool double")) == 1  # AutoGen's own


async def test_another_backend_is_told_of_tools_too(own: SpanTape, tape: SpanTape, logged: None, base_url: str) -> None:
    handler = LeydenLogHandler(tape.provider)
    LOGGER.addHandler(handler)
    try:
        await run(base_url, team=True)
    finally:
        LOGGER.removeHandler(handler)
    told = sorted(span.name for span in tape.spans())
    assert told == [CHAT, CHAT, "execute_tool double"]
    assert tape.attribute("execute_tool double", semconv.TOOL_RESULT) == "14"
    assert tape.attribute("execute_tool double", semconv.AGENT_NAME) == "solver"


async def test_beside_the_instrumentor_nothing_is_recorded_twice(
    own: SpanTape, handler: LeydenLogHandler, base_url: str
) -> None:
    AutoGenInstrumentor().instrument()
    try:
        await run(base_url)
    finally:
        AutoGenInstrumentor().uninstrument()
    tree = [line for line in own.tree() if "create_agent" not in line]
    assert tree == ["invoke_agent solver", f"  {CHAT}", "  execute_tool double", f"  {CHAT}"]


def test_an_event_that_cannot_be_read_is_our_affair(
    handler: LeydenLogHandler, caplog: pytest.LogCaptureFixture
) -> None:
    event = LLMCallEvent(messages=[], response={}, prompt_tokens=1, completion_tokens=1)
    del event.kwargs["response"]
    with caplog.at_level(logging.ERROR, logger="leyden.tracing"):
        LOGGER.info(event)
        LOGGER.info("no event at all")
    assert caplog.text.count("could not be recorded") == 1


def test_the_adapter_gives_one() -> None:
    assert isinstance(AutoGenAdapter().callback_handler(), LeydenLogHandler)

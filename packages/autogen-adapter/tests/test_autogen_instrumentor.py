import importlib
import warnings
from collections.abc import Callable
from typing import Any

import autogen_core
import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.teams import BaseGroupChat, RoundRobinGroupChat
from autogen_core.models import ChatCompletionClient, UserMessage
from autogen_core.tools import Workbench
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.models.replay import ReplayChatCompletionClient
from opentelemetry import trace

from leyden.autogen import AutoGenAdapter, AutoGenInstrumentor
from leyden.core.testing.servers.chat_endpoint import chat_endpoint
from leyden.core.testing.span_tape import SpanTape

Replay = Callable[..., ReplayChatCompletionClient]
CHAT = "chat ReplayChatCompletionClient"
SOLO = ["invoke_agent solo", f"  {CHAT}", "  execute_tool look_up", f"  {CHAT}"]


def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}!"


def solo(replay: Replay) -> AssistantAgent:
    client = replay(("look_up", {"word": "tea"}), "fine")
    return AssistantAgent("solo", client, tools=[look_up], reflect_on_tool_use=True)


async def test_clients_defined_after_instrumenting_are_recorded(tape: SpanTape, replay: Replay) -> None:
    AutoGenInstrumentor().instrument(tracer_provider=tape.provider)
    try:

        class Later(ReplayChatCompletionClient):
            async def create(self, *args: Any, **kwargs: Any) -> Any:
                return await super().create(*args, **kwargs)

        await AssistantAgent("solo", Later(["fine"])).run(task="hi")
    finally:
        AutoGenInstrumentor().uninstrument()
    assert tape.tree() == ["invoke_agent solo", "  chat Later"]  # what calls its base class is one call
    await Later(["fine"]).create([])
    assert len(tape.spans()) == 2


def test_uninstrument_leaves_autogen_as_it_was(tape: SpanTape) -> None:
    def state() -> list[Any]:
        tools = importlib.import_module("autogen_core.tools")
        base = importlib.import_module("autogen_agentchat.agents._base_chat_agent")
        container = importlib.import_module("autogen_agentchat.teams._group_chat._chat_agent_container")
        tracing = importlib.import_module("autogen_core._telemetry._tracing")
        kinds: list[Any] = [autogen_core, base, container, container.ChatAgentContainer, tracing.TraceHelper]
        kinds += [BaseChatAgent, AssistantAgent, BaseGroupChat, ChatCompletionClient, ReplayChatCompletionClient]
        kinds += [Workbench, tools.BaseTool]
        return [contents(kind) for kind in kinds]

    def contents(kind: Any) -> dict[str, Any]:
        return dict(kind.__dict__)

    before = state()
    for _ in range(2):
        AutoGenInstrumentor().instrument(tracer_provider=tape.provider)
        assert state() != before
        AutoGenInstrumentor().uninstrument()
        assert state() == before


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> SpanTape:
    """The user's own tracing, as OpenTelemetry's global one."""
    own = SpanTape()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", own.provider)
    return own


async def test_where_all_goes_to_one_backend_nothing_stands_there_twice(own: SpanTape, replay: Replay) -> None:
    agent = solo(replay)
    AutoGenInstrumentor().instrument()
    try:
        with own.provider.get_tracer("the user's").start_as_current_span("request"):
            await agent.run(task="hi")
    finally:
        AutoGenInstrumentor().uninstrument()
    assert [line for line in own.tree() if "create_agent" not in line] == ["request", *("  " + line for line in SOLO)]
    assert all("fine" not in span.to_json() and "tea" not in span.to_json() for span in own.spans())


async def test_the_users_own_tracing_gets_what_it_got_before(own: SpanTape, tape: SpanTape, replay: Replay) -> None:
    async def run() -> list[str]:
        before = len(own.spans())
        await RoundRobinGroupChat([solo(replay)], max_turns=1).run(task="hi")
        return sorted(span.name.partition("_")[0] for span in own.spans()[before:])

    alone = await run()
    assert "execute" in alone
    AutoGenInstrumentor().instrument(tracer_provider=tape.provider)
    try:
        assert await run() == alone
    finally:
        AutoGenInstrumentor().uninstrument()
    assert tape.tree()[1:] == ["  " + line for line in SOLO]


async def test_a_span_of_the_users_in_a_tool_hangs_from_the_tool(own: SpanTape, replay: Replay) -> None:
    async def ask(word: str) -> str:
        """Look a word up in a span."""
        with own.provider.get_tracer("the user's").start_as_current_span("mine"):
            return word

    agent = AssistantAgent("solo", replay(("ask", {"word": "x"})), tools=[ask])
    AutoGenInstrumentor().instrument()
    try:
        await agent.run(task="hi")
    finally:
        AutoGenInstrumentor().uninstrument()
    tree = [line for line in own.tree() if "create_agent" not in line]
    assert tree == ["invoke_agent solo", f"  {CHAT}", "  execute_tool ask", "    mine"]


async def test_a_warning_that_autogen_has_for_its_caller_names_the_agents_line() -> None:
    """Which it is shown for once, as without us."""
    with chat_endpoint("four") as endpoint:
        shown = [await mismatches(endpoint.url)]
        AutoGenInstrumentor().instrument()
        shown.append(await mismatches(endpoint.url))
        AutoGenInstrumentor().uninstrument()
    assert shown[0] == shown[1]
    assert [file for file, _ in shown[0]] == [__file__]


async def mismatches(base_url: str) -> list[tuple[str, int]]:
    """Where AutoGen says that three calls from one line were answered by another model than it thinks."""
    llm = OpenAIChatCompletionClient(model="gpt-4.1-mini", base_url=base_url, api_key="k", max_retries=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            await llm.create([UserMessage(content="double 7", source="user")])
    await llm.close()
    return [(warning.filename, warning.lineno) for warning in caught if "mismatch" in str(warning.message)]


def test_the_adapter_makes_no_other_warning_appear_again() -> None:
    def warn() -> None:
        warnings.warn("seen before", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        warn()
        before = list(warnings.filters)
        adapter = AutoGenAdapter()
        adapter.instrument()
        warn()
        warnings.warn("Resolved model mismatch: a != b", UserWarning, stacklevel=1)
        adapter.uninstrument()
        warn()
        assert list(warnings.filters) == before
    assert [str(warning.message) for warning in caught] == ["seen before"]

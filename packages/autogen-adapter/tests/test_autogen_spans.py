import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

import autogen_core
import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent, SocietyOfMindAgent
from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken
from autogen_core.tools import TextResultContent, ToolResult, ToolSchema, Workbench
from autogen_ext.models.replay import ReplayChatCompletionClient
from opentelemetry import trace

from leyden.core.data import semconv
from leyden.core.testing import factories
from leyden.core.testing.span_tape import SpanTape
from leyden.core.tracing import context_propagation
from leyden.core.tracing.context import Caller, current_caller, open_attempt, set_caller
from leyden.core.tracing.emit import emit_reward, operation

Replay = Callable[..., ReplayChatCompletionClient]
CHAT = "chat ReplayChatCompletionClient"
SOLO = ["invoke_agent solo", f"  {CHAT}", "  execute_tool look_up", f"  {CHAT}"]

recorded = pytest.mark.usefixtures("instrumented")


def look_up(word: str) -> str:
    """Look a word up."""
    if word == "nothing":
        raise KeyError(word)
    with operation("think"):
        emit_reward(0.5)
    return f"{word}!"


def solo(replay: Replay, word: str = "tea", **more: Any) -> AssistantAgent:
    client = replay(("look_up", {"word": word}), "fine")
    return AssistantAgent("solo", client, tools=[look_up], reflect_on_tool_use=True, **more)


def speakers(tape: SpanTape) -> list[tuple[Any, Any]]:
    """Agent and node of every model call, in the order in which they began."""
    calls = sorted(tape.spans(CHAT), key=lambda span: span.start_time or 0)
    return [
        ((call.attributes or {}).get(semconv.AGENT_NAME), (call.attributes or {}).get(semconv.NODE)) for call in calls
    ]


def failed(tape: SpanTape) -> dict[str, Any]:
    """Names of the spans that failed, with the type of their error."""
    return {
        span.name: (span.attributes or {}).get(semconv.ERROR_TYPE)
        for span in tape.spans()
        if span.status.status_code is trace.StatusCode.ERROR
    }


@recorded
async def test_an_agent_its_calls_and_its_tool_form_one_tree(tape: SpanTape, replay: Replay) -> None:
    await solo(replay, description="looks up").run(task="hi")
    assert tape.tree() == SOLO
    assert speakers(tape) == [("solo", None)] * 2
    assert tape.attribute("invoke_agent solo", semconv.AGENT_DESCRIPTION) == "looks up"
    assert tape.attribute("execute_tool look_up", semconv.TOOL_ARGUMENTS) == '{"word": "tea"}'
    assert tape.attribute("execute_tool look_up", semconv.TOOL_RESULT) == "tea!"
    assert tape.attribute("execute_tool look_up", semconv.TOOL_CALL_ID) == "call-1"
    asked = dict(tape.spans(CHAT)[0].attributes or {})
    assert (asked[semconv.PROVIDER], asked[semconv.FINISH_REASONS]) == ("replay", ("function_calls",))
    assert (asked[semconv.INPUT_TOKENS], asked[semconv.OUTPUT_TOKENS]) == (3, 2)
    assert current_caller() is None


@recorded
async def test_a_swarms_handoffs_hang_from_who_hands_over(tape: SpanTape, replay: Replay) -> None:
    triage = AssistantAgent("triage", replay(("transfer_to_expert", {})), handoffs=["expert"])
    await Swarm([triage, AssistantAgent("expert", replay("done"))], max_turns=2).run(task="hi")
    assert tape.tree() == [
        "invoke_workflow Swarm",
        "  invoke_agent triage",
        f"    {CHAT}",
        "    execute_tool transfer_to_expert",
        "    handoff expert",
        "  invoke_agent expert",
        f"    {CHAT}",
    ]
    assert tape.attribute("handoff expert", semconv.HANDOFF_FROM) == "triage"
    assert tape.attribute("handoff expert", semconv.HANDOFF_TO) == "expert"
    assert tape.attribute("invoke_agent expert", semconv.AGENT_ID).startswith("expert_")


@recorded
async def test_who_chooses_the_next_speaker_is_a_node(tape: SpanTape, replay: Replay) -> None:
    members = [AssistantAgent(name, replay("well")) for name in ("ann", "bob")]
    chooser = replay("bob", "ann")
    await SelectorGroupChat([*members], chooser, max_turns=2, allow_repeated_speaker=True).run(task="hi")
    chosen = (None, "SelectorGroupChatManager")
    assert speakers(tape) == [chosen, ("bob", None), chosen, ("ann", None)]
    assert tape.tree() == [
        "invoke_workflow SelectorGroupChat",
        f"  {CHAT}",
        "  invoke_agent bob",
        f"    {CHAT}",
        f"  {CHAT}",
        "  invoke_agent ann",
        f"    {CHAT}",
    ]


@recorded
async def test_teams_and_agents_inside_one_another_are_nested(tape: SpanTape, replay: Replay) -> None:
    writer = AgentTool(AssistantAgent("writer", replay("a poem"), description="writes"))
    boss = AssistantAgent(
        "boss", replay(("writer", {"task": "write"}), "good"), tools=[writer], reflect_on_tool_use=True
    )
    society = SocietyOfMindAgent("society", RoundRobinGroupChat([boss], max_turns=1), replay("all agree"))
    plain = RoundRobinGroupChat([AssistantAgent("last", replay("done"))], name="rest", max_turns=1)
    await RoundRobinGroupChat([society, plain], name="all", max_turns=2).run(task="hi")
    assert tape.tree() == [
        "invoke_workflow all",
        "  invoke_agent society",
        "    invoke_workflow RoundRobinGroupChat",
        "      invoke_agent boss",
        f"        {CHAT}",
        "        execute_tool writer",
        "          invoke_agent writer",
        f"            {CHAT}",
        f"        {CHAT}",
        f"    {CHAT}",
        "  invoke_workflow rest",
        "    invoke_agent last",
        f"      {CHAT}",
    ]
    spoken = ["boss", "writer", "boss", "society", "last"]
    assert speakers(tape) == [(name, None) for name in spoken]


@recorded
async def test_a_stream_belongs_to_its_agent_whichever_task_takes_its_pieces(tape: SpanTape, replay: Replay) -> None:
    streams = [solo(replay, model_client_stream=True).run_stream(task="hi") for _ in range(2)]
    pieces = 0
    while streams:
        for stream in list(streams):
            piece = await asyncio.create_task(anext(stream, None))
            pieces += 1
            assert current_caller() is None  # whoever listens does not speak
            if piece is None:
                streams.remove(stream)
    assert pieces > 8
    roots = tape.spans("invoke_agent solo")
    assert len(roots) == 2
    ids = sorted(root.context.trace_id for root in roots if root.context)
    for name in (CHAT, "execute_tool look_up"):
        found = sorted({span.context.trace_id for span in tape.spans(name) if span.context})
        assert found == sorted(set(ids))
    assert speakers(tape) == [("solo", None)] * 4


@recorded
async def test_a_stream_left_half_way_ends_what_it_began(tape: SpanTape, replay: Replay) -> None:
    team = RoundRobinGroupChat([solo(replay, model_client_stream=True)], max_turns=1)
    async with aclosing(team.run_stream(task="hi")) as stream:
        async for _ in stream:
            break
    assert "invoke_workflow RoundRobinGroupChat" in [span.name for span in tape.spans()]
    assert not failed(tape)
    assert current_caller() is None


@recorded
async def test_failures_are_those_of_what_failed(tape: SpanTape, replay: Replay) -> None:
    await solo(replay, word="nothing").run(task="hi")
    assert failed(tape) == {"execute_tool look_up": "KeyError"}  # the model is told; the agent goes on
    team = RoundRobinGroupChat([AssistantAgent("dry", replay())], max_turns=1)
    with pytest.raises(RuntimeError, match="No more mock responses"):
        await team.run(task="hi")
    names = {"execute_tool look_up", CHAT, "invoke_agent dry", "invoke_workflow RoundRobinGroupChat"}
    assert set(failed(tape)) == names
    assert failed(tape)["invoke_agent dry"] == "ValueError"


class Shelf(Workbench):
    """A workbench with no tools of AutoGen's kind, as those of MCP servers are."""

    async def list_tools(self) -> list[ToolSchema]:
        """Return its only tool."""
        return [ToolSchema(name="take", description="Take a book.")]

    async def call_tool(
        self,
        name: str,
        arguments: Any = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        """Fail without raising."""
        with autogen_core.trace_tool_span(name, tool_call_id=call_id):
            return ToolResult(name=name, result=[TextResultContent(content="no such book")], is_error=True)

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def reset(self) -> None:
        """Nothing to reset."""

    async def save_state(self) -> dict[str, Any]:
        """Nothing to save."""
        return {}

    async def load_state(self, state: Any) -> None:
        """Nothing to load."""


@recorded
async def test_a_tool_of_a_workbench_may_fail_without_raising(tape: SpanTape, replay: Replay) -> None:
    agent = AssistantAgent("solo", replay(("take", {"book": 1})), workbench=Shelf())
    await agent.run(task="hi")
    assert tape.tree() == ["invoke_agent solo", f"  {CHAT}", "  execute_tool take"]
    assert tape.attribute("execute_tool take", semconv.TOOL_ARGUMENTS) == '{"book": 1}'
    assert tape.attribute("execute_tool take", semconv.TOOL_RESULT) == "no such book"
    assert failed(tape) == {"execute_tool take": "ToolFailure"}


class Parrot(BaseChatAgent):
    """An agent of the user's own that asks no model."""

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        """What it answers with."""
        return (TextMessage,)

    async def on_messages(self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken) -> Response:
        """Repeat."""
        return Response(chat_message=TextMessage(content=messages[-1].to_text(), source=self.name))

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        """Nothing to reset."""


@recorded
async def test_agents_that_users_wrote_or_call_directly_are_agents_too(tape: SpanTape, replay: Replay) -> None:
    message = TextMessage(content="hi", source="user")
    await Parrot("parrot", "repeats").run(task="hi")
    await AssistantAgent("direct", replay("a")).on_messages([message], CancellationToken())
    async for _ in AssistantAgent("stream", replay("a")).on_messages_stream([message], CancellationToken()):
        assert current_caller() is None
    await replay("a").create([])
    assert tape.tree() == [
        "invoke_agent parrot",
        "invoke_agent direct",
        f"  {CHAT}",
        "invoke_agent stream",
        f"  {CHAT}",
        CHAT,
    ]


@recorded
async def test_a_root_hangs_from_whoever_speaks_and_others_hang_from_it(tape: SpanTape, replay: Replay) -> None:
    """AutoGen inside another framework, inside AutoGen."""

    async def outside(word: str) -> str:
        """Ask another framework, which asks another agent."""
        spoke = current_caller()
        assert spoke is not None
        assert spoke.agent == "solo"
        set_caller(Caller(agent="graph", node="n", trace_id=spoke.trace_id, span_id="12" * 8, outer=spoke))
        await AssistantAgent("inner", replay("a")).run(task=word)
        await replay("b").create([])
        return word

    agent = AssistantAgent("solo", replay(("outside", {"word": "x"})), tools=[outside])
    await agent.run(task="hi")
    for name in ("invoke_agent inner", CHAT):
        below = [
            span for span in tape.spans(name) if span.parent is not None and span.parent.span_id == int("12" * 8, 16)
        ]
        assert len(below) == 1
    assert ("graph", "n") in speakers(tape)


@recorded
async def test_what_is_emitted_in_a_tool_hangs_from_the_tool(tape: SpanTape, replay: Replay) -> None:
    attempt = factories.attempt()
    context_propagation.install()  # AutoGen runs sync tools on threads
    try:
        with open_attempt(attempt):
            await solo(replay).run(task="hi")
    finally:
        context_propagation.uninstall()
    [reward, thought] = attempt.notes
    [tool] = tape.spans("execute_tool look_up")
    assert tool.context is not None
    assert (reward.name, reward.parent_id) == (semconv.REWARD, thought.span_id)
    assert thought.parent_id == f"{tool.context.span_id:016x}"


@recorded
async def test_our_own_failure_is_logged_and_the_agent_notices_nothing(
    replay: Replay, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("leyden.core.tracing.spans.run_tree.start_span", broken)
    with caplog.at_level(logging.ERROR, logger="leyden.tracing"):
        result = await RoundRobinGroupChat([solo(replay)], max_turns=1).run(task="hi")
    assert result.messages[-1].to_text() == "fine"
    assert "could not be recorded" in caplog.text

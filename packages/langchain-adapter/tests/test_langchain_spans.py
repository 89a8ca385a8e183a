"""Span trees of runs with several agents, of runs that go wrong, and of runs in production and to foreign backends."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.errors import GraphRecursionError
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from leyden.core.data import semconv
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.testing import factories
from leyden.core.testing.servers.otlp_sink import otlp_sink
from leyden.core.testing.span_tape import SpanTape
from leyden.core.tracing.context import OpenAttempt, current_caller, open_attempt
from leyden.core.tracing.emit import emit_reward, operation
from leyden.core.tracing.spans.export import CONTENT
from leyden.langchain import LangChainInstrumentor

HI: Any = {"messages": [("user", "hi")]}


class Model(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


class Work(TypedDict):
    items: list[int]


def calling(name: str, arguments: dict[str, Any]) -> Model:
    call = {"name": name, "args": arguments, "id": "call-1"}
    return Model(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("done")]))


def saying(text: str = "fine") -> FakeListChatModel:
    return FakeListChatModel(responses=[text])


def graph(nodes: dict[str, Any], *edges: tuple[str, str], state: Any = MessagesState, **compiled: Any) -> Any:
    """A graph that begins at its first node."""
    built = StateGraph(state)
    for name, node in nodes.items():
        built.add_node(name, node)
    for edge in ((START, next(iter(nodes))), *edges):
        built.add_edge(*edge)
    return built.compile(**compiled)


def attempt() -> OpenAttempt:
    return factories.attempt()


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[SpanTape]:
    monkeypatch.setenv(CONTENT, "true")
    tape = SpanTape()
    LangChainInstrumentor().instrument(tracer_provider=tape.provider)
    yield tape
    LangChainInstrumentor().uninstrument()


def handoffs(tape: SpanTape) -> list[tuple[Any, Any]]:
    found = [span.attributes or {} for span in tape.spans()]
    return [(a[semconv.HANDOFF_FROM], a[semconv.HANDOFF_TO]) for a in found if semconv.HANDOFF_TO in a]


@tool
def transfer_to_bob() -> Any:
    """Hand over to Bob, as a tool of one agent in a graph of agents does."""
    update = {"messages": [ToolMessage("over to Bob", tool_call_id="call-1")]}
    return Command(goto="bob", graph=Command.PARENT, update=update)


async def test_a_handoff_tool_passes_from_one_agent_to_another(tape: SpanTape) -> None:
    alice = create_agent(calling("transfer_to_bob", {}), [transfer_to_bob], name="alice")
    team = graph({"alice": alice, "bob": create_agent(saying(), [], name="bob")}, name="team")
    await team.ainvoke(HI)
    assert tape.tree() == [
        "invoke_workflow team",
        "  node alice",
        "    invoke_agent alice",
        "      node model",
        "        chat model",
        "      node tools",
        "        execute_tool transfer_to_bob",
        "        handoff bob",
        "  node bob",
        "    invoke_agent bob",
        "      node model",
        "        chat model",
    ]
    assert handoffs(tape) == [("alice", "bob")]
    assert {span.status.status_code.name for span in tape.spans()} == {"UNSET"}  # control flow is no failure


def test_nodes_pass_on_to_nodes_and_to_many(tape: SpanTape) -> None:
    def planner(state: Any) -> Command[Any]:
        return Command(goto="critic", update={"messages": saying().invoke("x")})

    def critic(state: Any) -> Command[Any]:
        return Command(goto=[Send("worker", state), Send("worker", state)])

    def worker(state: Any) -> Command[Any]:
        return Command(goto=END)

    graph({"planner": planner, "critic": critic, "worker": worker}, name="team").invoke(HI)
    assert handoffs(tape) == [("planner", "critic"), ("critic", "worker"), ("critic", "worker")]
    assert tape.tree()[:4] == ["invoke_agent team", "  node planner", "    chat model", "    handoff critic"]


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
async def test_what_send_fans_out_keeps_its_calls_apart(how: str, tape: SpanTape) -> None:
    meeting = threading.Barrier(3, timeout=10)

    def spread(state: Work) -> list[Send]:
        return [Send("work", {"items": [item]}) for item in state["items"]]

    def work(state: Work) -> dict[str, Any]:
        meeting.wait()  # all are under way at once
        with operation(f"item {state['items'][0]}"):
            saying().invoke("x")
        return {}

    built = StateGraph(Work)
    built.add_node("work", work)
    built.add_conditional_edges(START, spread, ["work"])
    fan = built.compile(name="fan")
    with open_attempt(attempt()) as opened:
        if how == "invoke":
            await asyncio.to_thread(fan.invoke, {"items": [1, 2, 3]})
        else:
            await fan.ainvoke({"items": [1, 2, 3]})
    routing = ["invoke_agent fan", "  node __start__"]
    assert sorted(tape.tree()) == sorted([*routing, *["  node work", "    chat model"] * 3])
    nodes = sorted(span.context.span_id for span in tape.spans("node work") if span.context)
    assert sorted(span.parent.span_id for span in tape.spans("chat model") if span.parent) == nodes
    assert sorted(int(str(note.parent_id), 16) for note in opened.notes) == nodes
    assert [(span.attributes or {})[semconv.NODE] for span in tape.spans("chat model")] == ["work"] * 3


async def test_subgraphs_nest_and_the_outermost_node_speaks(tape: SpanTape) -> None:
    inner = graph({"think": lambda state: {"messages": [saying().invoke("x")]}}, name="inner")
    middle = graph({"deep": inner}, name="middle")
    await graph({"outer": middle}, name="whole").ainvoke(HI)
    assert tape.tree() == [
        "invoke_workflow whole",
        "  node outer",
        "    invoke_workflow middle",
        "      node deep",
        "        invoke_agent inner",
        "          node think",
        "            chat model",
    ]
    assert tape.attribute("chat model", semconv.AGENT_NAME) == "inner"
    assert tape.attribute("chat model", semconv.NODE) == "outer"


async def test_an_agent_as_a_tool_leaves_the_one_that_calls_it_an_agent(tape: SpanTape) -> None:
    scholar = create_agent(saying(), [], name="scholar")

    @tool
    async def consult(question: str) -> str:
        """Ask the scholar."""
        return (await scholar.ainvoke(HI))["messages"][-1].text

    boss = create_agent(calling("consult", {"question": "x"}), [consult], name="boss")
    await (RunnableLambda(lambda x: x) | boss).ainvoke(HI)
    assert tape.tree() == [
        "invoke_workflow RunnableSequence",
        "  invoke_agent boss",
        "    node model",
        "      chat model",
        "    node tools",
        "      execute_tool consult",
        "        invoke_agent scholar",
        "          node model",
        "            chat model",
        "    node model",
        "      chat model",
    ]


async def test_an_agent_without_a_name_is_still_an_agent(tape: SpanTape) -> None:
    scholar = create_agent(saying(), [], name="scholar")

    @tool
    def consult(question: str) -> str:
        """Ask the scholar."""
        return scholar.invoke(HI)["messages"][-1].text

    await create_agent(calling("consult", {"question": "x"}), [consult]).ainvoke(HI)
    assert tape.tree()[0] == "invoke_agent LangGraph"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (RunnableLambda(str) | saying(), "helper"),
        (graph({"say": lambda state: {}}), "helper"),
        (create_agent(saying(), []).with_config({"tags": ["x"]}), "helper"),
        (graph({"say": lambda state: {}}, name="mine"), "mine"),
        (create_agent(saying(), [], name="mine"), "mine"),
        ((RunnableLambda(str) | saying()).with_config({"run_name": "mine"}), "mine"),
    ],
)
async def test_a_root_without_a_name_is_called_what_the_user_calls_it(tape: SpanTape, given: Any, name: str) -> None:
    source = AgentSource.of(given, called="team.py:agents.helper")
    await source.adapter.run(source.fresh(), "hi", {})
    assert tape.tree()[0] == f"invoke_agent {name}"


async def test_the_tasks_of_a_function_are_nodes_and_speak(tape: SpanTape) -> None:
    speakers: list[Any] = []

    @task
    def write(question: str) -> str:
        caller = current_caller()
        speakers.append(caller and (caller.agent, caller.node))
        return saying().invoke(question).text

    @task
    async def check(text: str) -> str:
        critic: Any = create_agent(saying(), [], name="critic")
        return (await critic.ainvoke({"messages": [("user", text)]}))["messages"][-1].text

    @entrypoint()
    async def flow(question: str) -> str:
        return await check(await write(question))

    assert await flow.ainvoke("hi") == "fine"
    assert tape.tree() == [
        "invoke_workflow LangGraph",
        "  node flow",
        "    node write",
        "      chat model",
        "    node check",
        "      invoke_agent critic",
        "        node model",
        "          chat model",
    ]
    assert speakers == [("LangGraph", "write")]
    chats = [span.attributes or {} for span in tape.spans("chat model")]
    assert [span[semconv.NODE] for span in chats] == ["write", "check"]


async def test_an_agent_that_never_calls_a_model(tape: SpanTape) -> None:
    await graph({"say": lambda state: {"messages": [AIMessage("42")]}}, name="mute").ainvoke(HI)
    assert tape.tree() == ["invoke_agent mute", "  node say"]


async def test_limits_and_time_outs_are_recorded_and_reach_the_caller(tape: SpanTape) -> None:
    async def forever(state: MessagesState) -> None:
        await asyncio.Event().wait()

    looping = graph({"again": lambda state: {}}, ("again", "again"), name="looping")
    with pytest.raises(GraphRecursionError):
        await looping.ainvoke(HI, {"recursion_limit": 3})
    assert tape.attribute("invoke_agent looping", semconv.ERROR_TYPE) == "GraphRecursionError"
    slow = graph({"wait": forever}, name="slow")
    slow.step_timeout = 0.01
    with pytest.raises(TimeoutError):
        await slow.ainvoke(HI)
    assert "Timeout" in tape.attribute("invoke_agent slow", semconv.ERROR_TYPE)
    cut = graph({"wait": forever}, name="cut")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(cut.ainvoke(HI), 0.05)
    assert tape.attribute("invoke_agent cut", semconv.ERROR_TYPE) == "CancelledError"


async def test_a_failing_tool_fails_everything_above_it(tape: SpanTape) -> None:
    @tool
    def fail(word: str) -> str:
        """Fail."""
        raise KeyError("no such word")

    with pytest.raises(KeyError, match="no such word"):
        await create_agent(calling("fail", {"word": "x"}), [fail], name="solo").ainvoke(HI)
    failed = {span.name for span in tape.spans() if span.status.status_code.name == "ERROR"}
    assert failed == {"execute_tool fail", "node tools", "invoke_agent solo"}
    assert tape.attribute("execute_tool fail", semconv.ERROR_TYPE) == "KeyError"


@pytest.mark.parametrize("how", ["sync", "async", "thread"])
async def test_callbacks_and_tools_may_emit(how: str, tape: SpanTape) -> None:
    class Rewarding(BaseCallbackHandler):
        run_inline = how == "async"

        def on_tool_end(self, output: Any, **kwargs: Any) -> None:
            emit_reward(0.25)

    @tool
    def look_up(word: str) -> str:
        """Look a word up."""
        emit_reward(0.5)
        return word

    agent = create_agent(calling("look_up", {"word": "tea"}), [look_up], name="solo")
    with open_attempt(attempt()) as opened:
        config: Any = {"callbacks": [Rewarding()]}
        if how == "sync":
            agent.invoke(HI, config)
        elif how == "async":
            await agent.ainvoke(HI, config)
        else:
            await asyncio.to_thread(agent.invoke, HI, config)
    assert [note.attributes[semconv.REWARD_VALUE] for note in opened.notes] == [0.5, 0.25]
    [tool_span] = tape.spans("execute_tool look_up")
    assert tool_span.context is not None
    assert opened.notes[0].parent_id == f"{tool_span.context.span_id:016x}"


@pytest.mark.integration
@pytest.mark.parametrize("asked", ["", "true"], ids=["structure", "content"])
def test_a_foreign_backend_is_told_of_content_only_if_it_is_asked_for(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over real OTLP, the text of an error included."""

    @tool
    def fail(word: str) -> str:
        """Fail."""
        raise ValueError(f"the secret word is {word}")

    monkeypatch.setenv(CONTENT, asked)
    sesame: Any = {"messages": [("user", "open sesame")]}
    agent = create_agent(calling("fail", {"word": "xyzzy"}), [fail], name="solo")
    with otlp_sink() as sink:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{sink.url}/v1/traces")))
        LangChainInstrumentor().instrument(tracer_provider=provider)
        try:
            with pytest.raises(ValueError, match="xyzzy"):
                agent.invoke(sesame)
        finally:
            LangChainInstrumentor().uninstrument()
            provider.shutdown()
    assert "    execute_tool fail" in sink.tree()
    assert {span.attributes.get(semconv.ERROR_TYPE) for span in sink.spans} == {None, "ValueError"}
    assert (b"xyzzy" in sink.raw) == bool(asked)
    assert b"sesame" not in sink.raw

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_core.tracers import context
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from leyden.core.data import semconv
from leyden.core.testing import factories
from leyden.core.testing.span_tape import SpanTape
from leyden.core.tracing.context import Caller, current_caller, open_attempt, set_caller
from leyden.core.tracing.emit import emit_reward
from leyden.core.tracing.spans.export import CONTENT
from leyden.langchain import LangChainInstrumentor, LeydenCallbackHandler

HI: Any = {"messages": [("user", "hi")]}


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> SpanTape:
    monkeypatch.setenv(CONTENT, "true")
    return SpanTape()


@pytest.fixture
def instrumented(tape: SpanTape) -> Iterator[None]:
    LangChainInstrumentor().instrument(tracer_provider=tape.provider)
    yield
    LangChainInstrumentor().uninstrument()


class Model(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def calling(name: str, arguments: dict[str, Any]) -> Model:
    call = {"name": name, "args": arguments, "id": "call-1"}
    return Model(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("done")]))


def saying(text: str = "fine") -> FakeListChatModel:
    return FakeListChatModel(responses=[text])


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    emit_reward(0.5)
    return f"{word}!"


def nested() -> Any:
    """A graph with an agent, a subgraph that nobody named, and an agent called inside a node."""
    agent = create_agent(calling("look_up", {"word": "tea"}), [look_up], name="scholar")
    inner = StateGraph(MessagesState)
    inner.add_node("think", lambda state: {"messages": [saying().invoke("x")]})
    inner.add_edge(START, "think")
    helper = create_agent(saying(), [], name="helper")

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": (await helper.ainvoke(HI))["messages"][-1:]}

    graph = StateGraph(MessagesState)
    graph.add_node("study", agent)
    graph.add_node("sub", inner.compile())
    graph.add_node("ask", ask)
    graph.add_edge(START, "study")
    graph.add_edge("study", "sub")
    graph.add_edge("sub", "ask")
    return graph.compile(name="school")


NESTED = [
    "invoke_workflow school",
    "  node study",
    "    invoke_agent scholar",
    "      node model",
    "        chat model",
    "      node tools",
    "        execute_tool look_up",
    "      node model",
    "        chat model",
    "  node sub",
    "    invoke_agent LangGraph",
    "      node think",
    "        chat model",
    "  node ask",
    "    invoke_agent helper",
    "      node model",
    "        chat model",
]


async def test_graphs_agents_nodes_calls_and_tools_form_one_tree(tape: SpanTape, instrumented: None) -> None:
    await nested().ainvoke(HI)
    assert tape.tree() == NESTED
    assert tape.attribute("invoke_workflow school", semconv.OPERATION) == "invoke_workflow"
    assert tape.attribute("invoke_workflow school", semconv.WORKFLOW_NAME) == "school"
    chats = [span.attributes or {} for span in tape.spans() if span.name == "chat model"]
    speakers = [(chat[semconv.AGENT_NAME], chat[semconv.NODE]) for chat in chats]
    assert speakers == [("scholar", "study"), ("scholar", "study"), ("LangGraph", "sub"), ("helper", "ask")]
    assert tape.attribute("execute_tool look_up", semconv.TOOL_ARGUMENTS) == '{"word": "tea"}'
    assert tape.attribute("execute_tool look_up", semconv.TOOL_RESULT) == "tea!"
    assert tape.attribute("execute_tool look_up", semconv.TOOL_CALL_ID) == "call-1"
    assert current_caller() is None


async def test_a_bare_agent_speaks_as_itself(tape: SpanTape, instrumented: None) -> None:
    await create_agent(saying(), [], name="solo").ainvoke(HI)
    assert tape.tree() == ["invoke_agent solo", "  node model", "    chat model"]
    assert tape.attribute("chat model", semconv.AGENT_NAME) == "solo"
    assert tape.attribute("chat model", semconv.NODE) == "model"


async def test_a_chain_is_its_root_and_its_calls(tape: SpanTape, instrumented: None) -> None:
    chain = ChatPromptTemplate.from_template("{x}") | saying() | RunnableLambda(lambda message: message)
    await chain.ainvoke({"x": 1})
    saying().invoke("x")
    assert tape.tree() == ["invoke_agent RunnableSequence", "  chat model", "chat model"]


async def test_every_form_at_once_records_every_run_once(tape: SpanTape, instrumented: None) -> None:
    explicit = LeydenCallbackHandler(tape.provider)
    model = FakeListChatModel(responses=["fine"], callbacks=[LeydenCallbackHandler(tape.provider)])
    agent = create_agent(model, [], name="solo")
    await agent.ainvoke(HI, {"callbacks": [explicit, LeydenCallbackHandler(tape.provider)]})
    assert tape.tree() == ["invoke_agent solo", "  node model", "    chat model"]


async def test_an_explicit_handler_needs_no_instrumentor(tape: SpanTape) -> None:
    await nested().ainvoke(HI, {"callbacks": [LeydenCallbackHandler(tape.provider)]})
    assert tape.tree() == NESTED


def test_uninstrument_leaves_langchain_as_it_was(tape: SpanTape) -> None:
    before = list(context._configure_hooks)  # pyright: ignore[reportPrivateUsage]  # what the instrumentor adds to
    for _ in range(2):
        LangChainInstrumentor().instrument(tracer_provider=tape.provider)
        assert len(context._configure_hooks) == len(before) + 1  # pyright: ignore[reportPrivateUsage]
        LangChainInstrumentor().uninstrument()
        assert context._configure_hooks == before  # pyright: ignore[reportPrivateUsage]
    saying().invoke("x")
    assert not tape.spans()


async def test_runs_under_way_end_even_if_uninstrumented_meanwhile(tape: SpanTape) -> None:
    LangChainInstrumentor().instrument(tracer_provider=tape.provider)

    def stop(state: MessagesState) -> dict[str, Any]:
        LangChainInstrumentor().uninstrument()
        return {"messages": [saying().invoke("x")]}

    graph = StateGraph(MessagesState)
    graph.add_node("stop", stop)
    graph.add_edge(START, "stop")
    await graph.compile(name="cut").ainvoke(HI)
    assert tape.tree() == ["invoke_agent cut", "  node stop"]


async def test_an_interrupt_is_no_failure_and_an_error_is(tape: SpanTape, instrumented: None) -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("ask", lambda state: {"messages": [interrupt("may I?")]})
    graph.add_edge(START, "ask")
    await graph.compile(checkpointer=InMemorySaver()).ainvoke(HI, {"configurable": {"thread_id": "1"}})
    assert {span.status.status_code.name for span in tape.spans()} == {"UNSET"}
    assert "node ask" in [span.name for span in tape.spans()]

    failing = StateGraph(MessagesState)
    failing.add_node("fail", lambda state: 1 / 0)
    failing.add_edge(START, "fail")
    with pytest.raises(ZeroDivisionError):
        await failing.compile(name="bad").ainvoke(HI)
    assert tape.attribute("node fail", semconv.ERROR_TYPE) == "ZeroDivisionError"
    assert tape.attribute("invoke_agent bad", semconv.ERROR_TYPE) == "ZeroDivisionError"


async def test_a_tool_that_answers_with_an_error_has_failed(tape: SpanTape, instrumented: None) -> None:
    @tool
    def refuse(word: str) -> Any:
        """Refuse."""
        return ToolMessage(content="no", tool_call_id="call-1", status="error")

    await create_agent(calling("refuse", {"word": "x"}), [refuse]).ainvoke(HI)
    [span] = [span for span in tape.spans() if span.name == "execute_tool refuse"]
    assert (span.status.status_code.name, span.status.description) == ("ERROR", "no")
    assert (span.attributes or {})[semconv.TOOL_RESULT] == "no"


async def test_a_stream_left_half_way_and_a_cancelled_run_still_end(tape: SpanTape, instrumented: None) -> None:
    agent = create_agent(calling("look_up", {"word": "tea"}), [look_up], name="solo")
    stream: Any = agent.astream(HI)
    await anext(stream)
    await stream.aclose()
    assert "invoke_agent solo" in [span.name for span in tape.spans()]

    async def forever(state: MessagesState) -> dict[str, Any]:
        await asyncio.sleep(100)
        return {}

    graph = StateGraph(MessagesState)
    graph.add_node("wait", forever)
    graph.add_edge(START, "wait")
    task = asyncio.create_task(graph.compile(name="waiting").ainvoke(HI))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tape.attribute("invoke_agent waiting", semconv.ERROR_TYPE) == "CancelledError"


async def test_a_root_hangs_from_whoever_speaks(tape: SpanTape, instrumented: None) -> None:
    """A graph inside another framework's tool, or inside an `operation`."""
    crew = Caller(agent="crew", trace_id="ab" * 16, span_id="12" * 8)
    set_caller(crew)
    try:
        saying().invoke("x")
        [span] = tape.spans()
        assert span.parent is not None
        assert span.context is not None
        assert (f"{span.parent.span_id:x}", f"{span.context.trace_id:x}") == ("12" * 8, "ab" * 16)
        assert current_caller() is crew
    finally:
        set_caller(None)


async def test_what_is_emitted_in_a_tool_hangs_from_the_tool(tape: SpanTape, instrumented: None) -> None:
    attempt = factories.attempt()
    with open_attempt(attempt):
        await nested().ainvoke(HI)
    [reward] = attempt.notes
    [tool_span] = [span for span in tape.spans() if span.name == "execute_tool look_up"]
    assert tool_span.context is not None
    assert reward.parent_id == f"{tool_span.context.span_id:016x}"


async def test_our_own_failure_is_logged_and_the_agent_notices_nothing(
    tape: SpanTape, instrumented: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("leyden.core.tracing.spans.run_tree.start_span", broken)
    with caplog.at_level(logging.ERROR, logger="leyden.tracing"):
        result = await create_agent(saying(), [], name="solo").ainvoke(HI)
    assert result["messages"][-1].text == "fine"
    assert "could not be recorded" in caplog.text

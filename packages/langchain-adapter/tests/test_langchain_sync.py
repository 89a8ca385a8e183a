"""Agents that work only by `invoke` are run by it, others are awaited, and none is run twice for one attempt."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false, reportUnknownLambdaType=false

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, before_model, wrap_model_call, wrap_tool_call
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from leyden.core.testing.factories import attempt
from leyden.core.testing.span_tape import SpanTape
from leyden.core.tracing.context import current_attempt, open_attempt
from leyden.langchain import LangChainAdapter, LangChainInstrumentor
from leyden.langchain._sync import works_only_sync

seen: list[Any] = []
"""The attempt that each model call worked for."""


class Model(GenericFakeChatModel):
    """Calls the tool once, then says that it is fine."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        seen.append(current_attempt())
        return super()._generate(*args, **kwargs)


def model() -> Model:
    call = {"name": "look_up", "args": {"word": "tea"}, "id": "call-1"}
    return Model(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("fine")]))


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}!"


@tool
async def look_up_later(word: str) -> str:
    """Look a word up."""
    return f"{word}!"


@wrap_model_call
def sync_wrap(request: Any, handler: Any) -> Any:
    return handler(request)


@wrap_tool_call
def sync_tools(request: Any, handler: Any) -> Any:
    return handler(request)


@wrap_model_call
async def async_wrap(request: Any, handler: Any) -> Any:
    return await handler(request)


class Both(AgentMiddleware[Any, Any, Any]):
    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request)

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


@before_model
def before(state: Any, runtime: Any) -> None:
    return None


class SyncSaver(InMemorySaver):
    """As savers of sync database clients are: the async methods refuse."""

    async def aget_tuple(self, config: Any) -> Any:
        raise NotImplementedError("use the async saver")

    async def adelete_thread(self, thread_id: str) -> None:
        raise NotImplementedError("use the async saver")


def agent(*middleware: Any, tools: Any = (look_up,), **more: Any) -> Any:
    return create_agent(model(), list(tools), middleware=middleware, name="solver", **more)


def holding(inner: Any) -> Any:
    built = StateGraph(MessagesState)
    built.add_node("inner", inner)
    built.add_edge(START, "inner")
    return built.compile(name="outer")


class OnlyInvoke(Runnable[Any, Any]):
    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return model().invoke("hi") and {"messages": [AIMessage("fine")]}


class Counting(CompiledStateGraph[Any, Any, Any, Any]):
    """A graph whose author changed `invoke` alone."""

    count = 0

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        Counting.count += 1
        return super().invoke(*args, **kwargs)


def counting() -> Any:
    graph = agent()
    graph.__class__ = Counting
    return graph


SYNC: dict[str, Callable[[], Any]] = {
    "model middleware": lambda: agent(sync_wrap),
    "tool middleware": lambda: agent(sync_tools),
    "one of several": lambda: agent(Both(), sync_wrap).with_config({"tags": ["x"]}),
    "saver": lambda: agent(checkpointer=SyncSaver()),
    "subgraph": lambda: holding(agent(sync_wrap)),
    "chain": lambda: agent(sync_wrap) | RunnableLambda(lambda state: state),
    "only invoke": OnlyInvoke,
    "invoke overridden": counting,
}
ASYNC: dict[str, Callable[[], Any]] = {
    "plain": agent,
    "both forms": lambda: agent(Both()),
    "async middleware": lambda: agent(async_wrap),
    "node middleware": lambda: agent(before),
    "saver": lambda: agent(checkpointer=InMemorySaver()),
    "neither way works whole": lambda: agent(sync_wrap, tools=[look_up_later]),
    "subgraph": lambda: holding(agent(async_wrap)),
    "function": lambda: RunnableLambda(lambda state: model().invoke("hi") and {"messages": [AIMessage("fine")]}),
}


@pytest.fixture
def tape() -> Iterator[SpanTape]:
    tape = SpanTape()
    LangChainInstrumentor().instrument(tracer_provider=tape.provider)
    yield tape
    LangChainInstrumentor().uninstrument()


async def run(adapter: LangChainAdapter, given: Any) -> Any:
    ours = attempt()
    seen.clear()
    with open_attempt(ours):
        fresh = adapter.fresh(given)
        adapter.check(fresh, {"question": "hi"})
        result = await adapter.run(fresh, {"question": "hi"}, {})
    assert seen
    assert all(one is ours for one in seen)
    return result["messages"][-1].text


@pytest.mark.parametrize("make", SYNC.values(), ids=SYNC)
async def test_what_only_works_by_invoke_is_run_by_it(make: Callable[[], Any], tape: SpanTape) -> None:
    assert await works_only_sync(LangChainAdapter().fresh(make()))
    assert await run(LangChainAdapter(), make()) == "fine"


@pytest.mark.parametrize("make", [make for name, make in ASYNC.items() if "neither" not in name])
async def test_other_agents_are_awaited(make: Callable[[], Any], tape: SpanTape) -> None:
    assert not await works_only_sync(LangChainAdapter().fresh(make()))
    assert await run(LangChainAdapter(), make()) == "fine"


async def test_an_agent_with_parts_of_both_kinds_is_awaited() -> None:
    assert not await works_only_sync(ASYNC["neither way works whole"]())


async def test_the_record_is_the_same_both_ways(tape: SpanTape) -> None:
    await run(LangChainAdapter(), agent(sync_wrap))
    invoked = tape.tree()
    await run(LangChainAdapter(), agent(Both()))
    assert tape.tree() == invoked * 2
    assert invoked[0] == "invoke_agent solver"


async def test_a_sync_saver_keeps_nothing_of_an_attempt(tape: SpanTape) -> None:
    saver = SyncSaver()
    await run(LangChainAdapter(), agent(checkpointer=saver))
    assert not saver.storage


async def test_an_invoke_of_the_authors_own_is_called(tape: SpanTape) -> None:
    Counting.count = 0
    await run(LangChainAdapter(), counting())
    assert Counting.count == 1


class Hidden(AgentMiddleware[Any, Any, Any]):
    """Has an async form, which calls the one that LangChain only declares."""

    calls = 0

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request)

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        Hidden.calls += 1
        return await super().awrap_model_call(request, handler)


async def test_what_shows_only_when_it_is_awaited_fails_one_attempt_and_is_not_run_twice(
    tape: SpanTape, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = LangChainAdapter()
    Hidden.calls = 0
    with pytest.raises(NotImplementedError, match="awrap_model_call"):
        await adapter.run(agent(Hidden()), "hi", {})
    assert Hidden.calls == 1
    assert "from the next attempt on, Leyden calls its invoke" in caplog.text
    assert await run(adapter, agent(Hidden())) == "fine"
    assert Hidden.calls == 1


async def test_a_tool_that_is_not_implemented_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    adapter = LangChainAdapter()

    def fails(row: Any) -> Any:
        raise NotImplementedError("not yet")

    for _ in range(2):
        with pytest.raises(NotImplementedError, match="not yet"):
            await adapter.run(RunnableLambda(fails), "hi", {})
    assert not caplog.records

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.caches import InMemoryCache
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.language_models.fake_chat_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from leyden.core.errors import TaskError, UnknownAgent
from leyden.langchain import LangChainAdapter

ADAPTER = LangChainAdapter()


class Math(TypedDict):
    question: str
    answer: str


class Chatty(MessagesState):
    topic: str


def fake() -> FakeListChatModel:
    return FakeListChatModel(responses=["fine"])


def graph(state: Any = MessagesState, **compiled: Any) -> Any:
    def only(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage("fine")]} if "messages" in state else {}

    built = StateGraph(state)
    built.add_node("only", only)
    built.add_edge(START, "only")
    return built.compile(**compiled)


def shown(prompt: Any) -> str:
    return prompt.to_string()


async def seen_by(agent: Any, task: Any) -> Any:
    """Run a chain that returns what it was given."""
    ADAPTER.check(agent, task)
    return await ADAPTER.run(agent, task, {})


@pytest.mark.parametrize("row", [{key: "hi"} for key in ("question", "input", "prompt", "query", "text", "problem")])
async def test_the_text_of_a_row_becomes_a_message(row: dict[str, str]) -> None:
    result = await seen_by(graph(), {**row, "answer": "42"})
    assert [message.text for message in result["messages"]] == ["hi", "fine"]


async def test_a_plain_text_and_ready_messages_are_taken() -> None:
    for task in ("hi", {"messages": [{"role": "user", "content": "hi"}]}, {"messages": [("user", "hi")]}):
        result = await seen_by(graph(), task)
        assert [message.text for message in result["messages"]] == ["hi", "fine"]
    assert (await seen_by(fake(), {"question": "hi"})).text == "fine"


async def test_state_keys_are_matched_by_name_and_answers_are_kept_back() -> None:
    assert await seen_by(graph(Math), {"question": "6*7", "answer": "42"}) == {"question": "6*7"}
    result = await seen_by(graph(Chatty), {"question": "hi", "topic": "tea", "id": 3})
    assert (result["messages"][0].text, result["topic"]) == ("hi", "tea")


async def test_a_prompts_variables_are_filled() -> None:
    chain = ChatPromptTemplate.from_template("{a} of {answer}") | RunnableLambda(shown)
    assert await seen_by(chain, {"a": 1, "answer": 2, "b": 3}) == "Human: 1 of 2"
    one = ChatPromptTemplate.from_template("say {it}") | RunnableLambda(shown)
    assert await seen_by(one, {"problem": "this"}) == "Human: say this"
    assert await seen_by(RunnableLambda(lambda row: row), {"x": [1]}) == {"x": [1]}


@pytest.mark.parametrize("task", ["why?", {"question": "why?", "answer": "so"}])
async def test_a_part_of_a_parallel_may_take_the_whole_input(task: Any) -> None:
    """The retrieval chain of LangChain's own documentation: its schema names a key `root`."""
    search = RunnableLambda(lambda question: f"found for {question}")
    taken = {"context": search, "question": RunnablePassthrough()} | RunnableLambda(lambda given: given)
    assert await seen_by(taken, task) == {"context": "found for why?", "question": "why?"}


async def test_a_key_beside_the_whole_input_is_matched_by_name() -> None:
    parts: Any = {"asked": RunnableLambda(itemgetter("question")), "all": RunnablePassthrough()}
    parts["known"] = itemgetter("question") | RunnableLambda(str.upper)
    given = await seen_by(parts | RunnableLambda(lambda given: given), {"question": "why?", "answer": "so"})
    assert given == {"asked": "why?", "all": {"question": "why?"}, "known": "WHY?"}
    named = ChatPromptTemplate.from_template("the {root} of it") | RunnableLambda(shown)
    assert await seen_by(named, {"root": "end"}) == "Human: the end of it"


@pytest.mark.parametrize(
    ("agent", "task", "words"),
    [
        (graph(), {"id": 1, "body": "x"}, ["id, body", "messages", "question"]),
        (graph(Math), {"id": 1}, ["the keys id", "question"]),
        (ChatPromptTemplate.from_template("{a} {b}") | fake(), {"a": 1}, ["the keys a", "takes b"]),
        (fake(), {"id": 1}, ["the keys id", "question"]),
        (graph(), [1, 2], ["a list", "messages"]),
    ],
    ids=["messages", "state", "prompt", "model", "list"],
)
def test_a_row_that_does_not_fit_is_an_error_that_names_its_keys(agent: Any, task: Any, words: list[str]) -> None:
    with pytest.raises(TaskError) as error:
        ADAPTER.check(agent, task)
    assert all(word in str(error.value) for word in words), error.value


async def test_a_graph_with_memory_starts_afresh_and_leaves_nothing() -> None:
    saver = InMemorySaver()
    agent = graph(checkpointer=saver)
    for _ in range(2):
        fresh = ADAPTER.fresh(agent)
        assert fresh is not agent
        assert len((await ADAPTER.run(fresh, "hi", {}))["messages"]) == 2
    assert not saver.storage
    assert "configurable" not in (agent.config or {})
    named = agent.with_config({"configurable": {"thread_id": "the author's"}})
    ids = {ADAPTER.fresh(named).config["configurable"]["thread_id"] for _ in range(3)}
    assert len(ids) == 3
    assert "the author's" not in ids
    memoryless = graph()
    assert ADAPTER.fresh(memoryless) is memoryless


@pytest.mark.filterwarnings("ignore::langchain_core._api.deprecation.LangChainDeprecationWarning")
async def test_a_message_history_is_one_attempts_own() -> None:
    histories: dict[str, InMemoryChatMessageHistory] = {}
    chain = RunnableWithMessageHistory(
        fake(), lambda session_id: histories.setdefault(session_id, InMemoryChatMessageHistory())
    )
    for _ in range(2):
        await ADAPTER.run(ADAPTER.fresh(chain), "hi", {})
    assert [len(history.messages) for history in histories.values()] == [2, 2]


async def test_agents_that_wait_for_a_human_are_refused() -> None:
    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [interrupt("may I?")]}

    with pytest.raises(UnknownAgent, match="only"):
        ADAPTER.check(graph(checkpointer=InMemorySaver(), interrupt_before=["only"]), "hi")
    asking = StateGraph(MessagesState)
    asking.add_node("ask", ask)
    asking.add_edge(START, "ask")
    agent = asking.compile(checkpointer=InMemorySaver())
    with pytest.raises(UnknownAgent, match="may I"):
        await ADAPTER.run(ADAPTER.fresh(agent), "hi", {})
    assert ADAPTER.supports(asking)
    with pytest.raises(UnknownAgent, match=r"\.compile\(\)"):
        ADAPTER.check(asking, "hi")


def test_a_subgraph_that_waits_for_a_human_is_refused() -> None:
    """Without memory it would end there without a word."""
    middle = StateGraph(MessagesState)
    middle.add_node("inner", graph(interrupt_before=["only"]))
    middle.add_edge(START, "inner")
    outer = StateGraph(MessagesState)
    outer.add_node("middle", middle.compile())
    outer.add_edge(START, "middle")
    with pytest.raises(
        UnknownAgent, match=r"the subgraph 'middle\|inner' of the agent waits for human input at \['only'\]"
    ):
        ADAPTER.check(outer.compile().with_config({"recursion_limit": 5}), "hi")


async def test_a_tool_that_a_human_must_allow_is_refused_when_it_is_called() -> None:
    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

    def wire(amount: int) -> str:
        """Wire money."""
        raise AssertionError("nobody allowed it")

    call = {"name": "wire", "args": {"amount": 9}, "id": "call-1"}
    model = Model(messages=iter([AIMessage("", tool_calls=[call])]))
    middleware = HumanInTheLoopMiddleware(interrupt_on={"wire": True})
    agent = create_agent(model, [wire], middleware=[middleware], checkpointer=InMemorySaver())
    with pytest.raises(UnknownAgent, match=r"waits for human input.*wire"):
        await ADAPTER.run(ADAPTER.fresh(agent), "hi", {})


async def test_errors_and_time_outs_of_a_graph_pass_through() -> None:
    async def forever(state: MessagesState) -> None:
        await asyncio.Event().wait()

    built = StateGraph(MessagesState)
    built.add_node("wait", forever)
    built.add_edge(START, "wait")
    agent = built.compile()
    agent.step_timeout = 0.01
    with pytest.raises(TimeoutError):
        await ADAPTER.run(agent, "hi", {})


async def test_recursion_errors_pass_through() -> None:
    looping = StateGraph(MessagesState)
    looping.add_node("again", lambda state: {})
    looping.add_edge(START, "again")
    looping.add_edge("again", "again")
    with pytest.raises(GraphRecursionError):
        await ADAPTER.run(looping.compile().with_config({"recursion_limit": 3}), "hi", {})


@pytest.fixture
def cached() -> Iterator[InMemoryCache]:
    cache = InMemoryCache()
    set_llm_cache(cache)
    yield cache
    set_llm_cache(None)


async def test_the_answer_cache_is_off_while_instrumented(cached: InMemoryCache) -> None:
    adapter, model = LangChainAdapter(), GenericFakeChatModel(messages=iter([AIMessage("one"), AIMessage("two")]))
    adapter.instrument()
    try:
        assert [(await adapter.run(model, "hi", {})).text for _ in range(2)] == ["one", "two"]
        set_llm_cache(late := InMemoryCache())  # an agent's module may set one at any time
        await adapter.run(fake(), "hi", {})
        assert get_llm_cache() is None
    finally:
        adapter.uninstrument()
    assert get_llm_cache() is late


async def test_nothing_of_a_run_leaves_for_langsmith(monkeypatch: pytest.MonkeyPatch) -> None:
    from langsmith import utils

    get_env_var: Any = utils.get_env_var  # an lru_cache
    tracing_is_enabled = utils.tracing_is_enabled
    seen: list[Any] = []
    monkeypatch.setenv("LANGSMITH_TRACING", "true")
    get_env_var.cache_clear()
    try:
        assert tracing_is_enabled()
        await ADAPTER.run(RunnableLambda(lambda row: seen.append(tracing_is_enabled())), "hi", {})
    finally:
        monkeypatch.undo()
        get_env_var.cache_clear()
    assert seen == [False]


async def test_a_chain_gives_what_it_would_have_given() -> None:
    chain = ChatPromptTemplate.from_template("{question}") | fake() | StrOutputParser()
    assert await ADAPTER.run(chain, {"question": "hi"}, {}) == await chain.ainvoke({"question": "hi"}) == "fine"
    agent = create_agent(fake(), [])
    result = await ADAPTER.run(agent, {"question": "hi"}, {})
    assert [type(message) for message in result["messages"]] == [HumanMessage, AIMessage]


@pytest.mark.integration
def test_importing_the_adapter_loads_no_framework_and_it_is_found_by_its_entry_points() -> None:
    script = """
import sys
from importlib.metadata import entry_points
[adapter] = [e for e in entry_points(group="leyden.adapters") if e.name == "langchain"]
adapter = adapter.load()()
assert adapter.name == "langchain" and not adapter.supports(object())
[instrumentor] = [e for e in entry_points(group="opentelemetry_instrumentor") if e.name == "leyden_langchain"]
assert instrumentor.load()().instrumentation_dependencies()
loaded = {"langchain", "langchain_core", "langgraph", "langsmith", "httpx", "torch"} & set(sys.modules)
assert not loaded, loaded
from leyden.langchain import LeydenCallbackHandler
assert isinstance(adapter.callback_handler(), LeydenCallbackHandler)
"""
    subprocess.run([sys.executable, "-c", script], check=True)

"""What rollouts of LangChain's and LangGraph's objects would share."""

from collections.abc import Callable
from typing import Any

import pytest
from langchain import agents
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore

from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.isolation.shared_state import shared_objects

model = ChatOpenAI(model="gpt-4o-mini", api_key="any")  # type: ignore[arg-type]
limited = ChatOpenAI(model="gpt-4o-mini", api_key="any", rate_limiter=InMemoryRateLimiter())  # type: ignore[arg-type]
prompt = ChatPromptTemplate.from_messages([("user", "{question}")])
chain = prompt | model | StrOutputParser()
create_agent: Any = vars(agents)["create_agent"]
history: list[Any] = []
sessions: dict[str, InMemoryChatMessageHistory] = {}


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def note(text: str) -> int:
    """Keep a note."""
    history.append(text)
    return len(history)


def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [model.invoke(state["messages"])]}


def remember(state: MessagesState) -> dict[str, Any]:
    history.append(state)
    return {}


def session(name: str) -> InMemoryChatMessageHistory:
    if name not in sessions:
        sessions[name] = InMemoryChatMessageHistory()
    return sessions[name]


def graph(node: Callable[[MessagesState], Any], **options: Any) -> Any:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile(**options)


plain, with_memory = graph(answer), graph(answer, checkpointer=InMemorySaver())


def runs_a_plain_graph(task: Any) -> Any:
    return plain.invoke(task)


def runs_a_graph_with_memory(task: Any) -> Any:
    return with_memory.invoke(task, {"configurable": {"thread_id": "1"}})


def makes_an_agent() -> Any:
    return create_agent(ChatOpenAI(model="gpt-4o-mini"), tools=[add])


def makes_an_agent_that_notes() -> Any:
    return create_agent(ChatOpenAI(model="gpt-4o-mini"), tools=[note])


def found(agent: Any) -> list[str]:
    return [str(one) for one in shared_objects(AgentSource.of(agent))]


NOTHING: list[Any] = [
    chain,
    RunnableParallel(answer=chain, question=RunnablePassthrough()),
    chain | RunnableLambda(lambda text: str(text).strip()),
    chain.with_retry(),
    chain.with_config({"tags": ["a"]}),
    plain,
    create_agent(model, tools=[add]),
    runs_a_plain_graph,
]
SOMETHING: list[tuple[Any, str]] = [
    (chain | RunnableLambda(lambda text: history.append(text)), "history (list), which <lambda>()"),
    (graph(remember), "history (list), which remember()"),
    (with_memory, "CompiledStateGraph"),
    (graph(answer, store=InMemoryStore()), "CompiledStateGraph"),
    (create_agent(model, tools=[note]), "history (list), which note()"),
    (create_agent(model, tools=[add], checkpointer=InMemorySaver()), "CompiledStateGraph"),
    (prompt | limited, "InMemoryRateLimiter"),
    (runs_a_graph_with_memory, "with_memory (CompiledStateGraph), which runs_a_graph_with_memory()"),
]


@pytest.mark.parametrize("agent", NOTHING)
def test_what_keeps_nothing_is_shared_without_harm(agent: Any) -> None:
    assert found(agent) == []


@pytest.mark.parametrize(("agent", "name"), SOMETHING)
def test_what_may_remember_is_named(agent: Any, name: str) -> None:
    assert any(name in line for line in found(agent)), found(agent)


@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")
def test_the_function_that_returns_a_history_is_followed() -> None:
    (line,) = found(RunnableWithMessageHistory(chain, session))
    assert "sessions (dict), which session()" in line


def test_factories_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    assert found(makes_an_agent) == []
    assert any("history (list), which note()" in line for line in found(makes_an_agent_that_notes))

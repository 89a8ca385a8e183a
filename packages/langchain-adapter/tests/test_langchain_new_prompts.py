"""Agents of LangChain and LangGraph see the same whether their prompts are replaced or not."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUntypedFunctionDecorator=false

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import SecretStr

from leyden.core.testing.adapter_contract import API_KEY, ReplacedPromptsContract
from leyden.core.testing.adapter_contract.shared import PROVIDER
from leyden.langchain import LangChainAdapter

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("closed_http_clients")]

EVENTS = [name for name in dir(BaseCallbackHandler) if name.startswith("on_")]


@tool
def double(number: int) -> int:
    """Double a number."""
    if number == 13:
        raise ValueError("13 is unlucky")
    return 2 * number


def model(stream: bool, dialect: dict[str, Any]) -> ChatOpenAI:
    key = SecretStr(API_KEY)
    return ChatOpenAI(model="gpt", base_url=PROVIDER, api_key=key, max_retries=0, streaming=stream, **dialect)


def handler(seen: list[Any]) -> BaseCallbackHandler:
    """Return a callback handler that keeps every event with its arguments."""

    def keeper(name: str) -> Any:
        def keep(_self: Any, *args: Any, **given: Any) -> None:
            seen.append((name, args, given))

        return keep

    return type("Handler", (BaseCallbackHandler,), {name: keeper(name) for name in EVENTS})()


class Graphs(ReplacedPromptsContract):
    """A graph that is asked in each of the ways that LangGraph has."""

    dialect: ClassVar[dict[str, Any]] = {}

    @contextmanager
    def instrumented(self) -> Generator[None]:
        adapter = LangChainAdapter()
        adapter.instrument()
        yield
        adapter.uninstrument()

    def make(self, stream: bool) -> Any:
        raise NotImplementedError

    async def observe(self, question: str, seen: list[Any], *, stream: bool) -> None:
        graph = self.make(stream)
        events: list[Any] = []  # the framework sends them on threads of its own, while the stream goes on
        seen.append(events)
        asked: Any = {"messages": [("user", question)]}
        config: Any = {"configurable": {"thread_id": "one"}, "callbacks": [handler(events)]}
        if stream:
            async for chunk in graph.astream(asked, config, stream_mode=["values", "updates", "messages"]):
                seen.append(chunk)
            async for event in graph.astream_events(asked, {"configurable": {"thread_id": "two"}}, version="v2"):
                seen.append(event)
        else:
            seen.append(await graph.ainvoke(asked, config))
        async for state in graph.aget_state_history(config):
            seen.append((state.values, state.next))


class TestCreateAgent(Graphs):
    roles = frozenset({"system", "tool"})

    def make(self, stream: bool) -> Any:
        return create_agent(
            model(stream, self.dialect),
            [double],
            system_prompt="You solve {sums}.",
            name="solver",
            checkpointer=InMemorySaver(),
        )


class TestCreateAgentOverResponses(TestCreateAgent):
    dialect: ClassVar[dict[str, Any]] = {"use_responses_api": True}


class TestContinuedResponses(TestCreateAgent):
    dialect: ClassVar[dict[str, Any]] = {"use_previous_response_id": True}


class TestGraph(Graphs):
    """Two nodes, each with prompts of its own around the question and the first answer."""

    roles = frozenset({"system", "user"})

    def make(self, stream: bool) -> Any:
        llm = model(stream, self.dialect)

        def write(state: MessagesState) -> dict[str, Any]:
            asked = [SystemMessage("You write {SQL}."), HumanMessage(f"Question: {state['messages'][0].text}\nSQL:")]
            return {"messages": [llm.invoke(asked)]}

        async def check(state: MessagesState) -> dict[str, Any]:
            asked = f"Check this answer to {state['messages'][0].text}.\n\nAnswer: {state['messages'][-1].text}"
            return {"messages": [await llm.ainvoke([SystemMessage("You check."), HumanMessage(asked)])]}

        graph = StateGraph(MessagesState)
        graph.add_node("write", write)
        graph.add_node("check", check)
        graph.add_edge(START, "write")
        graph.add_edge("write", "check")
        graph.add_edge("check", END)
        return graph.compile(name="sql", checkpointer=InMemorySaver())

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUntypedFunctionDecorator=false

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langsmith import tracing_context
from pydantic import SecretStr

from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.adapter_contract import API_KEY, AdapterContract
from leyden.core.testing.adapter_contract.concurrency import ConcurrencyTests
from leyden.core.testing.adapter_contract.shared import PROVIDER
from leyden.core.testing.adapter_contract.structure import StructureTests
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.langchain import LangChainAdapter

pytestmark = pytest.mark.usefixtures("closed_http_clients")


@tool
def double(number: int) -> int:
    """Double a number."""
    if number == 13:
        raise ValueError("13 is unlucky")
    return 2 * number


def model(base_url: str, stream: bool, retries: int = 0, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="gpt-4.1-mini",
        base_url=base_url,
        api_key=SecretStr(API_KEY),
        temperature=0,
        max_retries=retries,
        streaming=stream,
        **more,
    )


class Agents:
    """The contract's agents; `dialect` is what their model objects are told of the API to speak."""

    dialect: ClassVar[dict[str, Any]] = {}
    package = "leyden.langchain"
    framework = ("langchain", "langchain_core", "langgraph", "langsmith")

    def make_adapter(self) -> LangChainAdapter:
        return LangChainAdapter()

    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        return create_agent(model(base_url, stream, retries, **self.dialect), [double], name="solver")

    def make_team(self, base_url: str, *, stream: bool) -> Any:
        """Two nodes that run in parallel, one of them async where the graph is."""
        llm = model(base_url, stream, **self.dialect)

        def prompt(name: str, state: MessagesState) -> list[HumanMessage]:
            return [HumanMessage(f"{name} {state['messages'][0].text}")]

        def left(state: MessagesState) -> dict[str, Any]:
            return {"messages": [llm.invoke(prompt("left", state))]}

        def right(state: MessagesState) -> dict[str, Any]:
            return {"messages": [llm.invoke(prompt("right", state))]}

        async def right_async(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await llm.ainvoke(prompt("right", state))]}

        graph = StateGraph(MessagesState)
        for name, node in (("left", left), ("right", RunnableLambda(right, right_async))):
            graph.add_node(name, node)
            graph.add_edge(START, name)
            graph.add_edge(name, END)
        return graph.compile(name="team")

    def call(self, agent: Any, text: str) -> Any:
        return agent.invoke({"messages": [("user", text)]})

    def answer(self, result: Any) -> str:
        return result["messages"][-1].text

    async def stream_a_little(self, agent: Any, text: str) -> None:
        stream = agent.astream({"messages": [("user", text)]}, stream_mode="messages")
        async for _ in stream:
            break
        await stream.aclose()

    @contextmanager
    def without_own_tracing(self) -> Generator[None]:
        with tracing_context(enabled=False):
            yield


class TestLangChainContract(Agents, AdapterContract):
    """Every promise, over Chat Completions."""

    async def test_the_nodes_of_a_graph_have_prompts_of_their_own(self, bench: GatewayBench, adapter: Adapter) -> None:
        """A node's own texts are its prompts; what it repeats of another's answer is none."""
        llm = model(PROVIDER, stream=False)

        def write(state: MessagesState) -> dict[str, Any]:
            asked = [SystemMessage("You write {SQL}."), HumanMessage(f"Question: {state['messages'][0].text}\nSQL:")]
            return {"messages": [llm.invoke(asked)]}

        def check(state: MessagesState) -> dict[str, Any]:
            asked = f"Check this answer to {state['messages'][0].text}.\n\nAnswer: {state['messages'][-1].text}"
            return {"messages": [llm.invoke([SystemMessage("You check."), *state["messages"], HumanMessage(asked)])]}

        graph = StateGraph(MessagesState)
        graph.add_node("write", write)
        graph.add_node("check", check)
        graph.add_edge(START, "write")
        graph.add_edge("write", "check")
        found = await self.prompts_of(bench, adapter, graph.compile(name="sql"), "double 7", "double 8")
        assert [(one.node, one.role, one.text) for one in found.edits.components] == [
            ("check", "system", "You check."),
            ("write", "system", "You write {{SQL}}."),
            ("write", "user", "Question: {v1}\nSQL:"),
        ]


class TestLangChainResponses(Agents, StructureTests):
    """The tree, over Responses."""

    dialect: ClassVar[dict[str, Any]] = {"use_responses_api": True}


@wrap_model_call
def only_sync(request: Any, handler: Any) -> Any:
    return handler(request)


class TestLangChainOnlySync(Agents, ConcurrencyTests):
    """Crowds of an agent that cannot be awaited."""

    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        llm = model(base_url, stream, retries)
        return create_agent(llm, [double], name="solver", middleware=[only_sync])

    async def stream_a_little(self, agent: Any, text: str) -> None:
        def begin() -> None:
            stream = agent.stream({"messages": [("user", text)]}, stream_mode="messages")
            next(stream)
            stream.close()

        await asyncio.to_thread(begin)

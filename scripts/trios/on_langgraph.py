"""LangGraph: the planner's node first, then the solver's and the critic's side by side."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import SecretStr

from trios.model import API_KEY, CRITIC, MODEL, PLANNER, PROVIDER, SOLVER, TIMEOUT_SECONDS, double, instructions

ADAPTER = "leyden.langchain:LangChainAdapter"
NODES = {PLANNER: "plan", SOLVER: "solve", CRITIC: "review"}


def make() -> Any:
    """Return the graph."""
    llm = ChatOpenAI(model=MODEL, base_url=PROVIDER, api_key=SecretStr(API_KEY), max_retries=0, timeout=TIMEOUT_SECONDS)
    graph = StateGraph(MessagesState)
    for name, node in NODES.items():
        tools = [tool(double)] if name == SOLVER else []
        graph.add_node(node, create_agent(llm, tools, name=name, system_prompt=instructions(name)))
    graph.add_edge(START, NODES[PLANNER])
    graph.add_edge(NODES[PLANNER], NODES[SOLVER])
    graph.add_edge(NODES[PLANNER], NODES[CRITIC])
    return graph.compile(name="trio")

"""AutoGen: a team whose planner speaks first, and then the solver and the critic side by side."""

from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow
from autogen_ext.models.openai import OpenAIChatCompletionClient

from trios.model import AGENTS, API_KEY, MODEL, PROVIDER, SOLVER, TIMEOUT_SECONDS, double, instructions

ADAPTER = "leyden.autogen:AutoGenAdapter"
NODES: dict[str, str] = {}


def make() -> Any:
    """Return the team."""
    client = OpenAIChatCompletionClient(
        model=MODEL, base_url=PROVIDER, api_key=API_KEY, max_retries=0, timeout=TIMEOUT_SECONDS
    )
    planner, solver, critic = (
        AssistantAgent(
            name,
            client,
            tools=[double] if name == SOLVER else None,
            reflect_on_tool_use=name == SOLVER,
            system_message=instructions(name),
        )
        for name in AGENTS
    )
    graph = DiGraphBuilder().add_node(planner).add_node(solver).add_node(critic)
    graph.add_edge(planner, solver).add_edge(planner, critic)
    return GraphFlow([planner, solver, critic], graph.build())

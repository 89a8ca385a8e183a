"""OpenAI Agents: the planner hands over to the solver, and the solver to the critic."""

from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, function_tool
from openai import AsyncOpenAI

from trios.model import API_KEY, CRITIC, MODEL, PLANNER, PROVIDER, SOLVER, TIMEOUT_SECONDS, double, instructions

ADAPTER = "leyden.openai_agents:OpenAIAgentsAdapter"
NODES: dict[str, str] = {}


def make() -> Any:
    """Return the planner."""
    client = AsyncOpenAI(base_url=PROVIDER, api_key=API_KEY, max_retries=0, timeout=TIMEOUT_SECONDS)

    def agent(name: str, **given: Any) -> Agent[Any]:
        model = OpenAIChatCompletionsModel(MODEL, client)
        return Agent(name=name, instructions=instructions(name), model=model, **given)

    critic = agent(CRITIC)
    solver = agent(SOLVER, tools=[function_tool(double)], handoffs=[critic])
    return agent(PLANNER, handoffs=[solver])

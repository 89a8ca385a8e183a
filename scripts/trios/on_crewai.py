"""CrewAI: a crew of three, one task each."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from trios.model import AGENTS, API_KEY, MODEL, PROVIDER, SOLVER, TIMEOUT_SECONDS, double

ADAPTER = "leyden.crewai:CrewAIAdapter"
NODES: dict[str, str] = {}


def make() -> Any:
    """Return the crew, whose system prompts begin with the role of the agent, as CrewAI writes them."""
    llm = LLM(model=f"openai/{MODEL}", base_url=PROVIDER, api_key=API_KEY, max_retries=0, timeout=TIMEOUT_SECONDS)
    agents = [
        Agent(
            role=name,
            goal="answer",
            backstory="You work with others.",
            llm=llm,
            tools=[tool("double")(double)] if name == SOLVER else [],
            max_retry_limit=0,
        )
        for name in AGENTS
    ]
    tasks = [Task(description="{question}", expected_output="a sentence", agent=agent) for agent in agents]
    return Crew(agents=[*agents], tasks=tasks)

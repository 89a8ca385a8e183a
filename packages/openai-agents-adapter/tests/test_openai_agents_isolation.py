"""What rollouts of the Agents SDK's objects would share."""

import functools
from typing import Any

import pytest
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool, handoff
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI

from leyden.core.runner.adapters import AgentSource
from leyden.core.runner.isolation.shared_state import shared_objects

history: list[Any] = []


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@function_tool
def note(text: str) -> int:
    """Keep a note."""
    history.append(text)
    return len(history)


def instructions(context: Any, agent: Any) -> str:
    return f"You are {agent.name}."


def instructions_of_before(context: Any, agent: Any) -> str:
    return f"So far: {history.pop()}"


model = OpenAIChatCompletionsModel(model="gpt-4o-mini", openai_client=AsyncOpenAI(api_key="any"))
plain: Any = Agent(name="plain", instructions=instructions, model=model, tools=[add], model_settings=ModelSettings())
triage: Any = Agent(name="triage", handoffs=[plain, handoff(plain)])
notes: Any = Agent(name="notes", tools=[note])
server = MCPServerStdio({"command": "true"})
session = SQLiteSession("conversation")


async def runs_an_agent(task: Any) -> Any:
    return await Runner.run(plain, task)


async def goes_on_with_a_session(task: Any) -> Any:
    return await Runner.run(plain, task, session=session)


def found(agent: Any) -> list[str]:
    return [str(one) for one in shared_objects(AgentSource.of(agent))]


@pytest.mark.parametrize(
    "agent", [plain, triage, functools.partial(Runner.run, plain, session=session, context={"n": 1}), runs_an_agent]
)
def test_what_keeps_nothing_is_shared_without_harm(agent: Any) -> None:
    assert found(agent) == []


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (notes, "history (list), which note()"),
        (Agent(name="asks", handoffs=[notes]), "history (list), which note()"),
        (Agent(name="before", instructions=instructions_of_before), "history (list), which instructions_of_before()"),
        (Agent(name="served", mcp_servers=[server]), "MCPServerStdio"),
        (goes_on_with_a_session, "session (SQLiteSession), which goes_on_with_a_session()"),
    ],
)
def test_what_may_remember_is_named(agent: Any, name: str) -> None:
    assert any(name in line for line in found(agent)), found(agent)

"""What rollouts of the Agents SDK's objects would share, and what each has of its own."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunContextWrapper,
    Runner,
    SQLiteSession,
    function_tool,
    handoff,
)
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI

from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.isolation import alone
from leyden.core.runner.isolation.shared_state import shared_objects
from leyden.openai_agents import OpenAIAgentsAdapter

history: list[Any] = []


@dataclasses.dataclass
class Customer:
    name: str = "nobody"


customer = Customer()


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@function_tool
def note(text: str) -> int:
    """Keep a note."""
    history.append(text)
    return len(history)


@function_tool
def greet(context: RunContextWrapper[Customer], name: str) -> str:
    """Greet a customer."""
    context.context.name = name
    return f"Hello {customer.name}"


def instructions(context: Any, agent: Any) -> str:
    return f"You are {agent.name}."


def instructions_of_before(context: Any, agent: Any) -> str:
    return f"So far: {history.pop()}"


model = OpenAIChatCompletionsModel(model="gpt-4o-mini", openai_client=AsyncOpenAI(api_key="any"))
plain: Any = Agent(name="plain", instructions=instructions, model=model, tools=[add], model_settings=ModelSettings())
triage: Any = Agent(name="triage", handoffs=[plain, handoff(plain)])
notes: Any = Agent(name="notes", tools=[note])
greeter: Any = Agent(name="greeter", tools=[greet])
server = MCPServerStdio({"command": "true"})
session = SQLiteSession("conversation")


async def runs_an_agent(task: Any) -> Any:
    return await Runner.run(plain, task)


async def gives_a_context(task: Any) -> Any:
    return await Runner.run(greeter, task, context=customer)


async def goes_on_with_a_session(task: Any) -> Any:
    return await Runner.run(plain, task, session=session)


def found(agent: Any) -> list[str]:
    return [str(one) for one in shared_objects(AgentSource.of(agent))]


@pytest.mark.parametrize(
    "agent", [plain, triage, functools.partial(Runner.run, plain, context=customer, max_turns=3), runs_an_agent]
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
        (functools.partial(Runner.run, greeter, context=customer), "Customer"),
        (functools.partial(Runner.run, plain, context={"n": 1}), "dict"),
        (functools.partial(Runner.run, plain, session=session), "SQLiteSession"),
        (gives_a_context, "customer (Customer), which gives_a_context()"),
        (goes_on_with_a_session, "session (SQLiteSession), which goes_on_with_a_session()"),
    ],
)
def test_what_may_remember_is_named(agent: Any, name: str) -> None:
    assert any(name in line for line in found(agent)), found(agent)


def test_an_attempt_in_a_process_of_its_own_has_the_session_and_the_context_that_its_tools_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(alone, "_alone", True)
    adapter = OpenAIAgentsAdapter()
    own = adapter.fresh(functools.partial(Runner.run, greeter, context=customer, session=session))
    assert (own.keywords["context"], own.keywords["session"]) == (customer, session)
    assert own.keywords["context"] is customer
    in_a_file = SQLiteSession("conversation", tmp_path / "said.db")
    own = adapter.fresh(functools.partial(Runner.run, greeter, session=in_a_file))
    assert own.keywords["session"] is not in_a_file
    own.keywords["session"].close()
    in_a_file.close()

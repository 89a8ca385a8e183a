"""What rollouts of AutoGen's agents and teams would share."""

from collections.abc import Sequence
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core import SingleThreadedAgentRuntime
from autogen_ext.models.openai import OpenAIChatCompletionClient

from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.isolation.shared_state import shared_objects

model = OpenAIChatCompletionClient(model="gpt-4o-mini", api_key="any")
history: list[Any] = []


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def note(text: str) -> int:
    """Keep a note."""
    history.append(text)
    return len(history)


def next_speaker(messages: Sequence[Any]) -> str | None:
    history.append(messages)
    return None


def assistant(name: str, *tools: Any) -> AssistantAgent:
    return AssistantAgent(name, model_client=model, tools=list(tools))


plain, team = assistant("plain", add), RoundRobinGroupChat([assistant("a"), assistant("b", add)], max_turns=2)


async def runs_a_team(task: Any) -> Any:
    return await team.run(task=task)


async def makes_an_agent_each_time(task: Any) -> Any:
    return await assistant("own", add).run(task=task)


def makes_a_team() -> Any:
    return RoundRobinGroupChat([assistant("a", add)], max_turns=1)


def found(agent: Any) -> list[str]:
    return [str(one) for one in shared_objects(AgentSource.of(agent))]


@pytest.mark.parametrize("agent", [plain, team, makes_an_agent_each_time, makes_a_team])
def test_what_is_copied_or_made_anew_is_shared_without_harm(agent: Any) -> None:
    assert found(agent) == []


async def test_what_may_remember_is_named() -> None:
    selector = SelectorGroupChat([plain, assistant("other")], model, selector_func=next_speaker, max_turns=2)
    on_a_runtime = RoundRobinGroupChat([assistant("c")], max_turns=1, runtime=SingleThreadedAgentRuntime())
    cases: list[tuple[Any, str]] = [
        (assistant("notes", note), "history (list), which note()"),
        (selector, "history (list), which next_speaker()"),
        (on_a_runtime, "RoundRobinGroupChat"),
        (runs_a_team, "team (RoundRobinGroupChat), which runs_a_team()"),
    ]
    for agent, name in cases:
        assert any(name in line for line in found(agent)), (name, found(agent))


async def test_what_was_said_before_or_loaded_is_not_lost_in_a_copy() -> None:
    used, state = assistant("used"), await assistant("used").save_state()
    await used.load_state(state)
    assert found(used) == []
    state["llm_context"]["messages"].append({"type": "UserMessage", "content": "I am Ann.", "source": "user"})
    await used.load_state(state)
    assert found(used) == ["used (AssistantAgent), which the run uses"]
    loaded = RoundRobinGroupChat([assistant("a")], max_turns=1)
    await loaded.load_state(await RoundRobinGroupChat([assistant("a")], max_turns=1).save_state())
    assert any("RoundRobinGroupChat" in line for line in found(loaded)), found(loaded)

"""Agents and teams of AutoGen see the same whether their prompts are replaced or not."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

from leyden.autogen import AutoGenAdapter
from leyden.core.testing.adapter_contract import API_KEY, ReplacedPromptsContract
from leyden.core.testing.adapter_contract.shared import PROVIDER

# AutoGen expects an answer from a dated model; the gateway answers as the model that was asked for.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:Resolved model mismatch:UserWarning"),
]


def double(number: int) -> int:
    """Double a number."""
    if number == 13:
        raise ValueError("13 is unlucky")
    return 2 * number


def member(name: str, stream: bool, **more: Any) -> AssistantAgent:
    client = OpenAIChatCompletionClient(
        model="gpt-4.1-mini", base_url=PROVIDER, api_key=API_KEY, temperature=0, max_retries=0
    )
    system = f"You are {{{name}}}."
    return AssistantAgent(name, client, system_message=system, model_client_stream=stream, **more)


class TestAssistantAgent(ReplacedPromptsContract):
    roles = frozenset({"system", "tool"})

    @contextmanager
    def instrumented(self) -> Generator[None]:
        adapter = AutoGenAdapter()
        adapter.instrument()
        yield
        adapter.uninstrument()

    def make(self, stream: bool) -> Any:
        return member("solver", stream, tools=[double], reflect_on_tool_use=True)

    async def observe(self, question: str, seen: list[Any], *, stream: bool) -> None:
        agent = self.make(stream)
        for asked in (question, "And again, please."):
            if stream:
                async for event in agent.run_stream(task=asked):
                    seen.append(event)
            else:
                seen.append(await agent.run(task=asked))
            seen.append(await agent.save_state())


class TestTeam(TestAssistantAgent):
    def make(self, stream: bool) -> Any:
        members = [member("solver", stream, tools=[double]), member("checker", stream)]
        return RoundRobinGroupChat([*members], max_turns=2)

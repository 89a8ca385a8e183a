# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from crewai import LLM, Agent, Crew, Task
from crewai.agents.agent_builder.base_agent import BaseAgent
from crewai.tools import tool

from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.adapter_contract import API_KEY, AdapterContract
from leyden.core.testing.adapter_contract.shared import PROVIDER
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.crewai import CrewAIAdapter


@tool("double")
def double(number: int) -> int:
    """Double a number."""
    if number == 13:
        raise ValueError("13 is unlucky")
    return 2 * number


def member(role: str, base_url: str, stream: bool, retries: int = 0, **more: Any) -> Agent:
    llm = LLM(
        model="openai/gpt-4.1-mini",
        base_url=base_url,
        api_key=API_KEY,
        temperature=0,
        max_retries=retries,
        stream=stream,
    )
    return Agent(role=role, goal="answer", backstory="You work.", llm=llm, max_retry_limit=0, **more)


class TestCrewAIContract(AdapterContract):
    package = "leyden.crewai"
    framework = ("crewai", "crewai_core", "litellm", "chromadb")

    def make_adapter(self) -> CrewAIAdapter:
        return CrewAIAdapter()

    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        solver = member("solver", base_url, stream, retries, tools=[double])
        task = Task(description="{question}", expected_output="a sentence", agent=solver)
        return Crew(agents=[solver], tasks=[task], stream=stream)

    def make_team(self, base_url: str, *, stream: bool) -> Any:
        """Two tasks side by side: only the last of a crew's tasks may be asynchronous, so a third would follow both."""
        agents: list[BaseAgent] = [member(role, base_url, stream) for role in ("left", "right")]
        tasks = [
            Task(
                description=f"{agent.role} {{question}}",
                expected_output="a sentence",
                agent=agent,
                async_execution=agent.role == "left",
            )
            for agent in agents
        ]
        return Crew(agents=agents, tasks=tasks, stream=stream)

    def call(self, agent: Any, text: str) -> Any:
        output = agent.kickoff(inputs={"question": text})
        if not agent.stream:
            return output
        for _ in output:
            continue
        return output.result

    def answer(self, result: Any) -> str:
        return result.raw

    async def stream_a_little(self, agent: Any, text: str) -> None:
        output = await agent.akickoff(inputs={"question": text})
        async for _ in output:
            break
        await output.aclose()

    async def test_prompts_have_role_goal_and_backstory(self, bench: GatewayBench, adapter: Adapter) -> None:
        found = await self.prompts_of(bench, adapter, self.make_team(PROVIDER, stream=False), "double 7", "double 8")
        by_agent = {(one.agent, one.role): one.text for one in found.edits.components}
        for role in ("left", "right"):
            system, user = by_agent[role, "system"], by_agent[role, "user"]
            assert all(text in system for text in (f"You are {role}.", "You work.", "answer"))
            assert f"Current Task: {role} {{v1}}\n" in user
            assert "a sentence" in user

    @contextmanager
    def without_own_tracing(self) -> Generator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(os.environ, "CREWAI_TRACING_ENABLED", "false")
            patch.setitem(os.environ, "CREWAI_DISABLE_TELEMETRY", "true")
            yield

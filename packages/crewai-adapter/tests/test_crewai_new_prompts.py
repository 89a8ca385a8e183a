"""Crews see the same whether their prompts are replaced or not."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from crewai import LLM, Agent, Crew, Task
from crewai import events as crewai_events
from crewai.events import crewai_event_bus
from crewai.events.base_events import BaseEvent
from crewai.tools import tool

from leyden.core.testing.adapter_contract import API_KEY, ReplacedPromptsContract
from leyden.core.testing.adapter_contract.shared import PROVIDER
from leyden.crewai import CrewAIAdapter

EXPORTED = [getattr(crewai_events, name) for name in crewai_events.__all__]
EVENTS = [one for one in EXPORTED if isinstance(one, type) and issubclass(one, BaseEvent)]
SAID = ("messages", "tools", "response", "output", "chunk", "tool_name", "tool_args", "task_prompt", "error", "inputs")
"""What events say, without the agents, tasks and tools that they are about."""

pytestmark = pytest.mark.integration


@tool("double")
def double(number: int) -> int:
    """Double a number."""
    if number == 13:
        raise ValueError("13 is unlucky")
    return 2 * number


@contextmanager
def listening(seen: list[Any]) -> Generator[None]:
    """Add what the events of the block say to `seen`; the bus calls handlers on threads of its own."""
    kept: list[BaseEvent] = []

    def keep(_source: Any, event: Any) -> None:
        kept.append(event)

    for kind in EVENTS:
        crewai_event_bus.on(kind)(keep)
    try:
        yield
    finally:
        crewai_event_bus.flush()
        for kind in EVENTS:
            crewai_event_bus.off(kind, keep)
        assert kept
        ordered = sorted(kept, key=lambda event: event.emission_sequence or 0)
        seen.append([(event.type, [getattr(event, name, None) for name in SAID]) for event in ordered])


def member(role: str, stream: bool, **more: Any) -> Agent:
    llm = LLM(model="openai/gpt-4.1-mini", base_url=PROVIDER, api_key=API_KEY, max_retries=0, stream=stream)
    return Agent(role=role, goal="answer", backstory="You work with care.", llm=llm, max_retry_limit=0, **more)


class TestCrew(ReplacedPromptsContract):
    """Two agents, of which the second reads what the first answered."""

    roles = frozenset({"system", "user", "tool"})

    @contextmanager
    def instrumented(self) -> Generator[None]:
        adapter = CrewAIAdapter()
        adapter.instrument()
        yield
        adapter.uninstrument()

    async def observe(self, question: str, seen: list[Any], *, stream: bool) -> None:
        await asyncio.to_thread(self.work, question, seen, stream)

    def work(self, question: str, seen: list[Any], stream: bool) -> None:
        solver, checker = member("solver", stream, tools=[double]), member("checker", stream)
        tasks = [
            Task(description="Solve this now: {question}", expected_output="a number", agent=solver),
            Task(description="Check the answer to this: {question}", expected_output="a word", agent=checker),
        ]
        crew = Crew(agents=[solver, checker], tasks=tasks, stream=stream)
        with listening(seen):
            output: Any = crew.kickoff(inputs={"question": question})
            if stream:
                seen += [(chunk.content, chunk.chunk_type, chunk.agent_role) for chunk in output]
                output = output.result
        seen += [output.raw, [(one.raw, one.agent, one.description, one.messages) for one in output.tasks_output]]

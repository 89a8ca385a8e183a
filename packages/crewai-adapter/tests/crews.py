"""Crews to test with: over the real gateway and a scripted engine, and a foreign provider that keeps their spans."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from leyden.core.errors import EngineError
from leyden.core.testing.capturing import TOKEN
from leyden.core.testing.gateway_bench import GatewayBench, Late, Turn
from leyden.core.testing.span_tape import SpanTape
from leyden.core.tracing.emit import emit_reward
from leyden.core.tracing.spans.export import CONTENT
from leyden.crewai import CrewAIInstrumentor

CHAT = "chat gpt-4.1-mini"


class Tape(SpanTape):
    def attributes(self, span_name: str, attribute: str) -> list[Any]:
        return [(span.attributes or {}).get(attribute) for span in self.spans(span_name)]


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    monkeypatch.setenv(CONTENT, "true")
    return Tape()


@pytest.fixture
def instrumented(tape: Tape) -> Iterator[None]:
    CrewAIInstrumentor().instrument(tracer_provider=tape.provider)
    yield
    CrewAIInstrumentor().uninstrument()


def call_of(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Model:
    """Uses the tool it has, once; a chief gives work to its scholar. `broken` fails, `flaky` once, `slow` waits."""

    def __init__(self) -> None:
        self.failures = 1

    def __call__(self, conversation: list[Turn]) -> str | Exception | Late:
        asked = " ".join(turn.text for turn in conversation if turn.role == "user")
        tools = conversation[0].text if conversation[0].text.startswith("[{") else ""
        if "broken" in asked or ("flaky" in asked and self.failures):
            self.failures -= 1
            return EngineError("the engine is broken")
        if "slow" in asked:
            return Late("too late", 5)
        if conversation[-1].role == "tool":
            return "done"
        if '"delegate_work_to_coworker"' in tools:
            return call_of("delegate_work_to_coworker", task="look it up", context="tea", coworker="scholar")
        return call_of("look_up", word="tea") if '"look_up"' in tools else "fine"


@pytest.fixture
def bench() -> Iterator[GatewayBench]:
    bench = GatewayBench(Model(), capture_token=TOKEN)
    bench.start()
    yield bench
    bench.stop()


@pytest.fixture
def llm(bench: GatewayBench) -> Callable[..., Any]:
    """Makes models whose provider is the gateway."""
    base_url = f"{bench.url}/a/{asyncio.run(bench.attempt('x')).token}/v1"

    def make() -> Any:
        return LLM(model="openai/gpt-4.1-mini", base_url=base_url, api_key="sk-x", max_retries=0)

    return make


@tool("look_up")
def look_up(word: str) -> str:
    """Look a word up."""
    emit_reward(0.5)
    return f"{word}!"


def member(role: str, llm: Any, **more: Any) -> Any:
    return Agent(role=role, goal="answer", backstory="You work.", llm=llm, **more)


def crew(members: Any, wish: str = "speak", **more: Any) -> Any:
    tasks: list[Any] = [Task(description=wish, expected_output="words", agent=one) for one in members]
    return Crew(agents=members, tasks=tasks, **more)


def crew_of_two(llm: Any) -> Any:
    scholar = member("scholar", llm(), tools=[look_up])
    critic = member(" critic\n", llm())
    return Crew(
        agents=[scholar, critic],
        name="school",
        tasks=[
            Task(name="study", description="read", expected_output="words", agent=scholar),
            Task(description="judge", expected_output="words", agent=critic),
        ],
    )


CREW_OF_TWO = [
    "invoke_workflow school",
    "  node study",
    "    invoke_agent scholar",
    f"      {CHAT}",
    "      execute_tool look_up",
    f"      {CHAT}",
    "  invoke_agent critic",
    f"    {CHAT}",
]

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
"""CrewAI: a fake model that tells of its calls as CrewAI's own do, and a crew of one agent with it."""

import asyncio
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from overhead import model
from overhead.driver import instrumented, named

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, while it is imported
    from crewai import Agent, BaseLLM, Crew, Task
    from crewai.events.types.llm_events import LLMCallType
    from crewai.llms.base_llm import llm_call_context
    from crewai.tools import tool

ADAPTER = "leyden.crewai:CrewAIAdapter"
INSTRUMENTOR = "leyden.crewai:CrewAIInstrumentor"
OPENINFERENCE = "openinference.instrumentation.crewai:CrewAIInstrumentor"
CALLED = [{"id": "call-1", "type": "function", "function": {"name": model.TOOL, "arguments": model.ARGUMENTS_TEXT}}]
USAGE: dict[str, Any] = dict(
    zip(("prompt_tokens", "completion_tokens", "total_tokens"), model.TOKENS.values(), strict=True)
)
THREADS = ThreadPoolExecutor(model.CROWD)


class Fake(BaseLLM):
    """Calls the tool that it is given once, then answers."""

    def call(
        self,
        messages: Any,
        tools: Any = None,
        callbacks: Any = None,
        available_functions: Any = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: Any = None,
    ) -> Any:
        """Answer when the gate is open."""
        place = {"from_task": from_task, "from_agent": from_agent}
        with llm_call_context():
            self._emit_call_started_event(messages, tools, callbacks, available_functions, **place)
            with model.around[-1]():
                model.gate.passed_in_thread()
                asked = bool(tools) and messages[-1]["role"] != "tool"
                answer = CALLED if asked else model.ANSWER
            self._emit_call_completed_event(
                answer,
                LLMCallType.TOOL_CALL if asked else LLMCallType.LLM_CALL,
                **place,
                messages=messages,
                usage=USAGE,
                finish_reason="tool_calls" if asked else "stop",
                response_id="chatcmpl-1",
            )
            return answer

    def supports_function_calling(self) -> bool:
        """Take tools as providers' models do."""
        return True

    def get_input_tokens_count(self, *_: Any, **options: Any) -> int:
        """Return what every prompt has."""
        return model.TOKENS["input_tokens"]


CHAT = Fake(model=model.MODEL)


def crew() -> Crew:
    """Make a crew."""
    solver = Agent(role="solver", goal="answer", backstory="You work.", llm=CHAT, tools=[tool(model.double)])
    return Crew(agents=[solver], tasks=[Task(description="{question}", expected_output="A number.", agent=solver)])


AGENT: Any = crew()


async def call() -> Any:
    """Ask the model."""
    return CHAT.call(model.PROMPT)


async def run() -> Any:
    """Run a copy of the crew in a thread, as `kickoff_for_each_async` does: none can run twice at once."""
    kickoff = partial(AGENT.copy().kickoff, {"question": model.PROMPT})
    return await asyncio.get_running_loop().run_in_executor(THREADS, copy_context().run, kickoff)


def agentops(provider: Any) -> None:
    """Instrument as `agentops.init` does."""
    instrumented(named("agentops.instrumentation.agentic.crewai:CrewaiInstrumentor")(), provider)

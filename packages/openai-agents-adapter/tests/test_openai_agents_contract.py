import asyncio
import functools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.run import CallModelData, ModelInputData
from openai import AsyncOpenAI

from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.adapter_contract import API_KEY, AdapterContract
from leyden.core.testing.adapter_contract.shared import PROVIDER
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.openai_agents import OpenAIAgentsAdapter


def double(number: int) -> int:
    """Double a number."""
    if number == 13:
        raise ValueError("13 is unlucky")
    return 2 * number


def asked_by_name(data: CallModelData[Any]) -> ModelInputData:
    """Let each member of the team hear the question as its own, and nothing else."""
    question: Any = data.model_data.input[0]
    heard: Any = {"role": "user", "content": f"{data.agent.name} {question['content']}"}
    return ModelInputData(input=[heard], instructions=data.model_data.instructions)


async def finish(streamed: Any) -> Any:
    async for _ in streamed.stream_events():
        continue
    return streamed


class TestResponsesContract(AdapterContract):
    package = "leyden.openai_agents"
    framework = ("agents", "openai")
    model_class: Any = OpenAIResponsesModel

    def make_adapter(self) -> OpenAIAgentsAdapter:
        return OpenAIAgentsAdapter()

    def make_agent(self, base_url: str, retries: int = 0, **given: Any) -> Agent[Any]:
        # Each call has an event loop of its own here, which no connection may outlive.
        headers = {"connection": "close"}
        client = AsyncOpenAI(base_url=base_url, api_key=API_KEY, max_retries=retries, default_headers=headers)
        model = self.model_class("gpt-4.1-mini", openai_client=client)
        return Agent(model=model, model_settings=ModelSettings(temperature=0), **given)

    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        agent = self.make_agent(base_url, retries, name="solver", tools=[function_tool(double)])
        return functools.partial(Runner.run_streamed, agent) if stream else agent

    def make_team(self, base_url: str, *, stream: bool) -> Any:
        """Two agents, of which the first hands over to the second: the SDK lets no two speak at once."""
        right = self.make_agent(base_url, name="right", instructions="Listen.")
        left = self.make_agent(base_url, name="left", instructions="Listen, and hand over to right.", handoffs=[right])
        run = Runner.run_streamed if stream else Runner.run
        return functools.partial(run, left, run_config=RunConfig(call_model_input_filter=asked_by_name))

    def call(self, agent: Any, text: str) -> Any:
        """As `Runner.run_sync` does, but for the event loop, which that leaves open."""

        async def work() -> Any:
            if isinstance(agent, Agent):
                return await Runner.run(cast("Agent[Any]", agent), text)
            given = agent(text)
            return await (given if asyncio.iscoroutine(given) else finish(given))

        return asyncio.run(work())

    def answer(self, result: Any) -> str:
        return result.final_output

    async def stream_a_little(self, agent: Any, text: str) -> None:
        result = agent(text)
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                break
        result.cancel()

    @contextmanager
    def without_own_tracing(self) -> Generator[None]:
        set_tracing_disabled(True)
        yield
        set_tracing_disabled(False)

    async def test_agents_have_their_instructions_as_prompts(self, bench: GatewayBench, adapter: Adapter) -> None:
        found = await self.prompts_of(bench, adapter, self.make_team(PROVIDER, stream=False), "double 7", "double 8")
        assert [(one.agent, one.role, one.text) for one in found.edits.components if one.role == "system"] == [
            ("left", "system", "Listen, and hand over to right."),
            ("right", "system", "Listen."),
        ]


class TestChatCompletionsContract(TestResponsesContract):
    model_class = OpenAIChatCompletionsModel

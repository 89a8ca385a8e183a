"""Agents of the OpenAI Agents SDK see the same whether their prompts are replaced or not."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunHooks,
    Runner,
    SQLiteSession,
    function_tool,
)
from openai import AsyncOpenAI

from leyden.core.testing.adapter_contract import API_KEY, ReplacedPromptsContract
from leyden.core.testing.adapter_contract.shared import PROVIDER
from leyden.openai_agents import OpenAIAgentsAdapter

pytestmark = pytest.mark.integration


def double(number: int) -> int:
    """Double a number."""
    if number == 13:
        raise ValueError("13 is unlucky")
    return 2 * number


def hooks(seen: list[Any]) -> RunHooks[Any]:
    """Return run hooks that keep every event with what it says, without the agents and tools themselves."""

    def keeper(name: str) -> Any:
        async def keep(_self: Any, *given: Any, **named: Any) -> None:
            values = [*given[1:], *(value for key, value in named.items() if key != "context")]
            seen.append((name, [getattr(value, "name", value) for value in values]))

        return keep

    class Hooks(RunHooks[Any]):
        pass

    for name in dir(Hooks):
        if name.startswith("on_"):
            setattr(Hooks, name, keeper(name))
    return Hooks()


class TestResponses(ReplacedPromptsContract):
    """A team of two: the first solves or hands over; each run is continued by a second turn."""

    roles = frozenset({"system", "tool"})
    model_class: ClassVar[Any] = OpenAIResponsesModel
    continued: ClassVar[bool] = False

    @contextmanager
    def instrumented(self) -> Generator[None]:
        adapter = OpenAIAgentsAdapter()
        adapter.instrument()
        yield
        adapter.uninstrument()

    def make(self) -> Agent[Any]:
        client = AsyncOpenAI(base_url=PROVIDER, api_key=API_KEY, max_retries=0)
        model = self.model_class("gpt", openai_client=client)
        how: Any = {"model": model, "model_settings": ModelSettings(temperature=0)}
        solver = Agent(name="solver", instructions="You solve {sums}.", tools=[function_tool(double)], **how)
        return Agent(name="first", instructions="You choose who answers.", handoffs=[solver], **how)

    async def observe(self, question: str, seen: list[Any], *, stream: bool) -> None:
        agent = self.make()
        session = None if self.continued else SQLiteSession("one")
        previous: str | None = None
        for asked in (question, "And again, please."):
            how: Any = {"session": session, "hooks": hooks(seen), "previous_response_id": previous}
            if stream:
                result: Any = Runner.run_streamed(agent, asked, **how)
                async for event in result.stream_events():
                    seen.append(self.plain(event))
            else:
                result = await Runner.run(agent, asked, **how)
            items = [self.plain(item) for item in result.new_items]
            seen += [result.final_output, result.to_input_list(), items, result.raw_responses, result.last_agent.name]
            previous = result.last_response_id if self.continued else None
        if session is not None:
            seen.append(await session.get_items())
            session.close()

    def plain(self, event: Any) -> Any:
        """Return an event or an item without the agents in it."""
        item = getattr(event, "item", event)
        data = getattr(event, "data", None) or getattr(item, "raw_item", None)
        name = getattr(getattr(item, "agent", None), "name", None)
        return [event.type, getattr(event, "name", None), getattr(item, "type", None), name, data]


class TestContinuedResponses(TestResponses):
    """The second turn continues with `previous_response_id`."""

    continued = True


class TestChatCompletions(TestResponses):
    model_class = OpenAIChatCompletionsModel

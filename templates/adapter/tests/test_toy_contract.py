"""The contract's promises, kept by toy agents."""

import asyncio
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any

import toy_agents
from leyden.core.testing.adapter_contract import API_KEY, AdapterContract
from leyden_toy import ToyAdapter


def double(number: int) -> int:
    """Double a number."""
    if number == 13:
        raise ValueError("13 is unlucky")
    return 2 * number


class TestToyContract(AdapterContract):
    """Only hooks: an adapter overrides no test."""

    package = "leyden_toy"
    framework = ("toy_agents",)

    def make_adapter(self) -> ToyAdapter:
        """Return the adapter."""
        return ToyAdapter()

    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        """An agent with a tool."""
        return toy_agents.Agent("solver", base_url, API_KEY, [double], stream=stream, retries=retries)

    def make_team(self, base_url: str, *, stream: bool) -> Any:
        """Two agents side by side."""
        members = [toy_agents.Agent(name, base_url, API_KEY, stream=stream) for name in ("left", "right")]
        return toy_agents.Team("team", members)

    def call(self, agent: Any, text: str) -> Any:
        """As an author would, in a script."""
        return asyncio.run(agent.run(text))

    def answer(self, result: Any) -> str:
        """Toy agents return their answer."""
        return result

    async def stream_a_little(self, agent: Any, text: str) -> None:
        """Take one piece."""
        async with aclosing(agent.stream_answer(text)) as stream:
            async for _ in stream:
                break

    def without_own_tracing(self) -> AbstractContextManager[None]:
        """The framework has no tracing of its own that could be switched off."""
        return nullcontext()

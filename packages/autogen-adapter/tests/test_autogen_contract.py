import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, SelectorGroupChat
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import LLMMessage, ModelInfo, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from opentelemetry import trace

from leyden.autogen import AutoGenAdapter
from leyden.core.data.reasons import NOT_SELECTED
from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.adapter_contract import API_KEY, AdapterContract
from leyden.core.testing.adapter_contract.shared import PROVIDER
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.tracing.spans.export import Recorder
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector

# AutoGen expects an answer from a dated model; the gateway answers as the model that was asked for.
pytestmark = pytest.mark.filterwarnings("ignore:Resolved model mismatch:UserWarning")


def double(number: int) -> int:
    """Double a number."""
    if number == 13:
        raise ValueError("13 is unlucky")
    return 2 * number


class Addressed(UnboundedChatCompletionContext):
    """Puts a member's name before what it is asked."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    async def get_messages(self) -> list[LLMMessage]:
        """Return the messages as this member reads them."""
        return [
            UserMessage(content=f"{self._name} {message.content}", source=message.source)
            if isinstance(message, UserMessage)
            else message
            for message in await super().get_messages()
        ]


def client(base_url: str, retries: int = 0) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(
        model="gpt-4.1-mini",
        base_url=base_url,
        api_key=API_KEY,
        temperature=0,
        max_retries=retries,
        default_headers={
            "connection": "close"
        },  # each `call` has a loop of its own, which a connection must not outlive
    )


class TestAutoGenContract(AdapterContract):
    package = "leyden.autogen"
    framework = ("autogen_agentchat", "autogen_core", "autogen_ext")

    def make_adapter(self) -> AutoGenAdapter:
        return AutoGenAdapter()

    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        return AssistantAgent(
            "solver",
            client(base_url, retries),
            tools=[double],
            system_message="You solve.",
            model_client_stream=stream,
            reflect_on_tool_use=True,
        )

    def make_team(self, base_url: str, *, stream: bool) -> Any:
        """Two members side by side; a graph's nodes without an edge into them all begin at once."""
        llm = client(base_url)
        members = [
            AssistantAgent(
                name,
                llm,
                system_message="You listen.",
                model_client_stream=stream,
                model_context=Addressed(name),
            )
            for name in ("left", "right")
        ]
        graph = DiGraphBuilder().add_node(members[0]).add_node(members[1]).build()
        return GraphFlow([*members], graph)

    def call(self, agent: Any, text: str) -> Any:
        return asyncio.run(agent.run(task=text))

    def answer(self, result: Any) -> str:
        return result.messages[-1].content

    async def stream_a_little(self, agent: Any, text: str) -> None:
        stream = agent.run_stream(task=text)
        async for event in stream:
            if event.source == "solver":
                break
        await stream.aclose()

    @contextmanager
    def without_own_tracing(self) -> Generator[None]:
        """AutoGen traces to the global provider; its runtime looks at a variable of its own."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AUTOGEN_DISABLE_RUNTIME_TRACING", "true")
            patch.setattr(trace, "_TRACER_PROVIDER", trace.NoOpTracerProvider())
            yield

    async def test_agents_have_their_system_messages_as_prompts(self, bench: GatewayBench, adapter: Adapter) -> None:
        found = await self.prompts_of(bench, adapter, self.make_team(PROVIDER, stream=False), "double 7", "double 8")
        assert [(one.agent, one.role, one.text) for one in found.edits.components] == [
            ("left", "system", "You listen."),
            ("right", "system", "You listen."),
        ]

    async def test_what_a_teams_manager_asks_is_its_own_at_the_gateway_too(
        self, bench: GatewayBench, adapter: Adapter, recorder: Recorder
    ) -> None:
        """It names nobody, so the first member is next."""
        info = ModelInfo(
            vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False
        )
        chooser = OpenAIChatCompletionClient(model="gpt-4.1-mini", base_url=PROVIDER, api_key=API_KEY, model_info=info)
        members = [AssistantAgent(name, client(PROVIDER), model_context=Addressed(name)) for name in ("left", "right")]
        team = SelectorGroupChat([*members], chooser, max_turns=1, max_selector_attempts=1)
        _, attempt = await self.run(bench, adapter, team, "double 7")
        await recorder.flush()
        rollout, spans = await bench.rollout(attempt), await bench.spans(attempt)
        for name in ("SelectorGroupChatManager", "left"):
            trajectory = assemble(rollout, rollout.attempt, spans, Selector(agent_match=f"^{name}$"))
            assert [(one.agent or one.node) for one in trajectory.transitions] == [name]
            assert trajectory.excluded == {NOT_SELECTED: 1}

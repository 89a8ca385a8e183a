"""Agents of AutoGen's core, without AgentChat: messages between them are one run, in training and in production."""

import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from autogen_core import (
    AgentId,
    ClosureAgent,
    ClosureContext,
    DefaultInterventionHandler,
    DefaultSubscription,
    DefaultTopicId,
    DropMessage,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TopicId,
    default_subscription,
    message_handler,
)
from autogen_core.models import ChatCompletionClient, SystemMessage, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from leyden.autogen import AutoGenAdapter, AutoGenInstrumentor
from leyden.core.data import semconv
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.testing.adapter_contract.shared import PROVIDER, is_served
from leyden.core.testing.capturing import captures, capturing_bench
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.testing.span_tape import SpanTape
from leyden.core.tracing.context import current_attempt, open_attempt

# AutoGen expects an answer from a dated model; the bench answers as the model that was asked for.
pytestmark = pytest.mark.filterwarnings("ignore:Resolved model mismatch:UserWarning")

CHAT = "chat gpt-4.1-mini"


@dataclass
class Question:
    text: str


@dataclass
class Topic:
    text: str


@dataclass
class Draft:
    text: str


def client() -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(model="gpt-4.1-mini", base_url=PROVIDER, api_key="sk-agents", max_retries=0)


async def shout(text: str) -> str:
    """Say it loudly."""
    return text.upper()


class Asking(RoutedAgent):
    def __init__(self, llm: ChatCompletionClient) -> None:
        super().__init__("Asks a model.")
        self._llm = llm

    async def ask(self, text: str) -> str:
        messages = [SystemMessage(content="You answer."), UserMessage(content=text, source="user")]
        return str((await self._llm.create(messages)).content)


class Worker(Asking):
    @message_handler
    async def on_question(self, message: Question, ctx: MessageContext) -> Draft:
        if message.text == "unlucky":
            raise ValueError("it is unlucky")
        tool = FunctionTool(shout, description="Say it loudly.")
        loud = await tool.run_json({"text": message.text}, ctx.cancellation_token)
        return Draft(await self.ask(loud))


class Boss(Asking):
    """Asks two workers at once, and then a model."""

    @message_handler
    async def on_question(self, message: Question, ctx: MessageContext) -> Draft:
        parts = [self.send_message(Question(f"{message.text} {n}"), AgentId("worker", str(n))) for n in (1, 2)]
        drafts = await asyncio.gather(*parts)
        return Draft(await self.ask(" ".join(draft.text for draft in drafts)))


@default_subscription
class Writer(Asking):
    @message_handler
    async def on_topic(self, message: Topic, ctx: MessageContext) -> None:
        if message.text == "unlucky":
            raise ValueError("it is unlucky")
        await self.publish_message(Draft(await self.ask(message.text)), DefaultTopicId())


@default_subscription
class Editor(Asking):
    @message_handler
    async def on_draft(self, message: Draft, ctx: MessageContext) -> None:
        await self.ask(f"better: {message.text}")


async def runtime_of(llm: ChatCompletionClient, **more: Any) -> SingleThreadedAgentRuntime:
    runtime = SingleThreadedAgentRuntime(**more)
    await Boss.register(runtime, "boss", lambda: Boss(llm))
    await Worker.register(runtime, "worker", lambda: Worker(llm))
    await Writer.register(runtime, "writer", lambda: Writer(llm))
    await Editor.register(runtime, "editor", lambda: Editor(llm))
    return runtime


def lines(spans: list[Span]) -> list[str]:
    """Names of spans as a tree; what has no parent among them is a root, siblings stand by name."""
    known = {span.span_id: span for span in spans}
    depth: dict[str, int] = {}

    def level(span: Span) -> int:
        if span.span_id not in depth:
            above = known.get(span.parent_id or "")
            depth[span.span_id] = 0 if above is None else level(above) + 1
        return depth[span.span_id]

    def path(span: Span) -> list[tuple[str, str]]:
        above = known.get(span.parent_id or "")
        return [*([] if above is None else path(above)), (span.name, span.span_id)]

    return ["  " * level(span) + span.name for span in sorted(spans, key=path)]


BOSS = [
    "invoke_workflow boss",
    "  invoke_agent boss",
    f"    {CHAT}",
    f"      {CHAT}",
    *(["    invoke_agent worker", f"      {CHAT}", f"        {CHAT}", "      execute_tool shout"] * 2),
]
WRITERS = [
    "invoke_workflow default",
    "  invoke_agent editor",
    f"    {CHAT}",
    f"      {CHAT}",
    "  invoke_agent writer",
    f"    {CHAT}",
    f"      {CHAT}",
    *(["    invoke_agent editor"]),
]


@pytest.fixture
def bench() -> Iterator[GatewayBench]:
    bench = GatewayBench(lambda turns: f"about {turns[-1].text}")
    bench.start()
    yield bench
    bench.stop()


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayBench]:
    """A gateway that captures, as the environment says, and AutoGen instrumented."""
    with capturing_bench(lambda turns: f"about {turns[-1].text}", monkeypatch) as bench:
        AutoGenInstrumentor().instrument()
        yield bench
        AutoGenInstrumentor().uninstrument()


async def captured(bench: GatewayBench) -> list[tuple[AttemptedRollout, list[Span]]]:
    return sorted(await captures(bench), key=lambda found: found[0].metadata["agent"])


def agents_of_calls(spans: list[Span]) -> list[str]:
    return sorted(str(span.attributes[semconv.AGENT_NAME]) for span in spans if is_served(span))


async def test_messages_that_are_answered_are_one_tree_under_a_runner(bench: GatewayBench) -> None:
    llm = client()
    async with bench.recording() as recorder:
        adapter = AutoGenAdapter()
        adapter.instrument()
        attempt = await bench.attempt("x")
        with open_attempt(attempt):
            runtime = await runtime_of(llm)
            runtime.start()
            answer = await runtime.send_message(Question("dogs"), AgentId("boss", "default"))
            await runtime.stop_when_idle()
        adapter.uninstrument()
        await recorder.flush()
        await llm.close()
    assert answer == Draft("about about DOGS 1 about DOGS 2")
    spans = await bench.spans(attempt)
    assert lines(spans) == BOSS
    assert agents_of_calls(spans) == ["boss", "worker", "worker"]
    [boss] = [span for span in spans if span.name == "invoke_agent boss"]
    assert boss.attributes[semconv.AGENT_ID] == "boss/default"
    assert boss.attributes[semconv.AGENT_DESCRIPTION] == "Asks a model."


async def test_in_production_each_message_from_outside_is_a_rollout_whole(capturing: GatewayBench) -> None:
    """The runtime was started long before, outside of every rollout."""
    llm = client()
    runtime = await runtime_of(llm)
    runtime.start()
    asking = [runtime.send_message(Question(f"dogs{n}"), AgentId("boss", str(n))) for n in range(3)]
    publishing = [runtime.publish_message(Topic(f"cats{n}"), DefaultTopicId(source=f"s{n}")) for n in range(3)]
    await asyncio.gather(*asking, *publishing)
    assert current_attempt() is None
    await runtime.stop_when_idle()
    await llm.close()
    recorded = await captured(capturing)
    assert [rollout.metadata["agent"] for rollout, _ in recorded] == ["boss"] * 3 + ["default"] * 3
    assert len(capturing.log) == 3 * 3 + 3 * 2
    for rollout, spans in recorded:
        assert (rollout.status, rollout.attempt.metadata) == ("succeeded", {"capture": "complete"})
        by_id = {span.span_id: span for span in spans}
        calls = [span for span in spans if is_served(span)]
        assert all(by_id[str(span.parent_id)].name == CHAT for span in calls)
        if rollout.metadata["agent"] == "boss":
            assert lines(spans) == BOSS
            assert agents_of_calls(spans) == ["boss", "worker", "worker"]
        else:
            assert agents_of_calls(spans) == ["editor", "writer"]
            assert [span.name for span in spans if span.parent_id is None] == ["invoke_workflow default"]
    asked = [
        {str(span.attributes[semconv.INPUT_MESSAGES]) for span in spans if is_served(span)} for _, spans in recorded
    ]
    for number, of_one in enumerate([*asked[:3]]):
        assert any({f"DOGS{n}" in text for text in of_one} == {True} for n in range(3)), (number, of_one)


async def test_a_failure_fails_the_rollout_unless_another_agent_mends_it(capturing: GatewayBench) -> None:
    class Careful(RoutedAgent):
        @message_handler
        async def on_question(self, message: Question, ctx: MessageContext) -> Draft:
            try:
                return await self.send_message(message, AgentId("worker", "default"))
            except ValueError:
                return Draft("never mind")

    llm = client()
    runtime = await runtime_of(llm)
    await Careful.register(runtime, "careful", lambda: Careful("Mends."))
    runtime.start()
    with pytest.raises(ValueError, match="unlucky"):
        await runtime.send_message(Question("unlucky"), AgentId("worker", "default"))
    assert await runtime.send_message(Question("unlucky"), AgentId("careful", "default")) == Draft("never mind")
    await runtime.publish_message(Topic("unlucky"), DefaultTopicId())
    with pytest.raises(Exception, match="Recipient not found"):
        await runtime.send_message(Question("x"), AgentId("nobody", "default"))
    await runtime.stop_when_idle()
    statuses = {rollout.metadata["agent"]: rollout.status for rollout, _ in await captured(capturing)}
    assert statuses == {"worker": "failed", "careful": "succeeded", "default": "failed", "nobody": "failed"}


async def test_messages_that_nobody_gets_end_their_rollouts(capturing: GatewayBench) -> None:
    class Dropping(DefaultInterventionHandler):
        async def on_publish(self, message: Any, *, message_context: MessageContext) -> Any:
            return DropMessage if message.text == "dropped" else message

    llm = client()
    runtime = await runtime_of(llm, intervention_handlers=[Dropping()])
    await runtime.publish_message(Topic("dropped"), TopicId("dropped", "x"))
    await runtime.publish_message(Topic("waiting"), TopicId("waiting", "x"))
    await runtime.process_next()
    del runtime
    gc.collect()
    assert [(rollout.metadata["agent"], rollout.status) for rollout, _ in await captured(capturing)] == [
        ("dropped", "succeeded"),
        ("waiting", "succeeded"),
    ]


async def test_closure_agents_are_agents_too(capturing: GatewayBench) -> None:
    llm = client()

    async def collect(_: ClosureContext, message: Draft, ctx: MessageContext) -> None:
        await llm.create([UserMessage(content=message.text, source="user")])

    runtime = SingleThreadedAgentRuntime()
    await ClosureAgent.register_closure(runtime, "collector", collect, subscriptions=lambda: [DefaultSubscription()])
    runtime.start()
    await runtime.publish_message(Draft("dogs"), DefaultTopicId())
    await runtime.stop_when_idle()
    await llm.close()
    [(_, spans)] = await captured(capturing)
    assert lines(spans) == ["invoke_workflow default", "  invoke_agent collector", f"    {CHAT}", f"      {CHAT}"]


async def test_an_exporter_gets_our_agents_beside_autogens_own_spans(tape: SpanTape, instrumented: None) -> None:
    class Silent(RoutedAgent):
        @message_handler
        async def on_question(self, message: Question, ctx: MessageContext) -> None:
            return None

    runtime = SingleThreadedAgentRuntime()
    await Silent.register(runtime, "silent", lambda: Silent("Says nothing."))
    runtime.start()
    await runtime.send_message(Question("x"), AgentId("silent", "default"))
    await runtime.stop_when_idle()
    assert tape.tree() == ["invoke_workflow silent", "  invoke_agent silent"]


async def test_uninstrumented_the_runtime_is_what_it_was() -> None:
    before = dict(vars(SingleThreadedAgentRuntime))
    AutoGenInstrumentor().instrument()
    assert vars(SingleThreadedAgentRuntime)["send_message"] is not before["send_message"]
    AutoGenInstrumentor().uninstrument()
    assert dict(vars(SingleThreadedAgentRuntime)) == before


def test_the_core_is_recorded_where_agentchat_is_not_installed() -> None:
    script = """
import sys

sys.modules["autogen_agentchat"] = None  # as if it were not there
from leyden.autogen import AutoGenAdapter, AutoGenInstrumentor

instrumentor = AutoGenInstrumentor()
instrumentor.instrument()
assert "autogen_core" not in sys.modules
adapter = AutoGenAdapter()
assert not adapter.supports(object())
adapter.instrument()
from autogen_core import BaseAgent

assert "leyden" in BaseAgent.on_message._self_wrapper.__module__
"""
    subprocess.run([sys.executable, "-c", script], check=True)

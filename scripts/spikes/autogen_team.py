"""Who speaks at the wire in AutoGen: teams and lone agents, many at once. Needs autogen-agentchat and autogen-ext.

Run by hand: `python scripts/spikes/autogen_team.py --rollouts 64 --json out.json`.
"""

import asyncio
import importlib
import os
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import crowd_join
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from leyden.core.tracing.context import Caller, current_attempt, current_caller, set_caller
from leyden.core.tracing.spans.export import provider

ROLES = ("solver", "critic", "writer")
SELECT = "You choose for {roles}. Only return the role.\n{participants}\n{history}"
MODEL_INFO = dict.fromkeys(("json_output", "vision", "structured_output"), False) | {
    "function_calling": True,
    "family": "unknown",
}


class WhoSpeaks(SpanProcessor):
    """Takes AutoGen's own `invoke_agent` spans, which start in the context of what the agent then does."""

    def __init__(self) -> None:
        self._callers: dict[int, Caller] = {}

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        """Let the agent speak."""
        name = (span.attributes or {}).get("gen_ai.agent.name")
        context = span.get_span_context()
        if name is not None and span.name.startswith("invoke_agent") and current_attempt():
            self._callers[context.span_id] = Caller(
                agent=str(name),
                trace_id=f"{context.trace_id:032x}",
                span_id=f"{context.span_id:016x}",
                outer=current_caller(),
            )
            set_caller(self._callers[context.span_id])

    def on_end(self, span: ReadableSpan) -> None:
        """Let whoever spoke before speak again."""
        context = span.get_span_context()
        if context is not None and (caller := self._callers.pop(context.span_id, None)):
            caller.ended.set()


def otel_span() -> str | None:
    """Return the agent of the current OpenTelemetry span."""
    attributes: Mapping[str, Any] = getattr(trace.get_current_span(), "attributes", None) or {}
    return attributes.get("gen_ai.agent.name")


def message_handler() -> str | None:
    """Return the agent whose message the runtime is delivering, as `<name>_<team id>`."""
    core: Any = importlib.import_module("autogen_core")
    try:
        return core.MessageHandlerContext.agent_id().type.partition("_")[0]
    except RuntimeError:
        return None


def double(number: int, note: str) -> str:
    """Double a number."""
    if number == 13:
        raise ValueError("unlucky")
    return f"{2 * number} {note}"


def agent(name: str, *, stream: bool) -> Any:
    """Make an assistant; the solver has a tool."""
    agents: Any = importlib.import_module("autogen_agentchat.agents")
    client = importlib.import_module("autogen_ext.models.openai").OpenAIChatCompletionClient(
        model="m",
        base_url=crowd_join.PROVIDER,
        api_key=crowd_join.API_KEY,
        max_retries=1,
        model_info=MODEL_INFO,
    )
    return agents.AssistantAgent(
        name,
        client,
        tools=[double] if name == "solver" else None,
        system_message=f"You are {name}.",
        model_client_stream=stream,
        reflect_on_tool_use=True,
    )


def teams() -> Any:
    """Return AutoGen's module of teams."""
    return importlib.import_module("autogen_agentchat.teams")


def six_messages() -> Any:
    """Return what ends a team's run."""
    conditions: Any = importlib.import_module("autogen_agentchat.conditions")
    return conditions.MaxMessageTermination(6)


def round_robin(*, stream: bool) -> Any:
    """Make a team that speaks in turn."""
    members = [agent(name, stream=stream) for name in ROLES]
    return teams().RoundRobinGroupChat(members, termination_condition=six_messages())


def selector(*, stream: bool) -> Any:
    """Make a team whose manager asks its own model who is next."""
    members = [agent(name, stream=stream) for name in ROLES]
    chooser = agent("selector", stream=False)._model_client
    return teams().SelectorGroupChat(members, chooser, termination_condition=six_messages(), selector_prompt=SELECT)


async def run_one(make: Any, wish: str, number: int) -> Any:
    """Run a fresh agent or team on one task."""
    return await make().run(task=f"{wish} for rollout-{number}")


async def stream_one(make: Any, number: int) -> Any:
    """Take each event of a run's stream in a task of its own, as `asyncio.wait_for` does."""
    events = make().run_stream(task=f"answer for rollout-{number}")
    last: Any = None
    while (event := await asyncio.create_task(anext(events, None))) is not None:
        last = event
    return last


async def cancelled(make: Any, number: int) -> Any:
    """Cancel a run in flight, then run another in the same attempt."""
    task = asyncio.create_task(run_one(make, "answer", number))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return await run_one(make, "answer", number)


def check(result: Any) -> Counter[str]:
    """Hold the source of every message against the mark in it."""
    found = Counter[str]()
    for message in getattr(result, "messages", ()):
        written = message.to_text() if type(message).__name__ in ("TextMessage", "ToolCallRequestEvent") else ""
        for _, role, _ in crowd_join.MARK.findall(written):
            found["right" if role == message.source else "wrong"] += 1
    return found


async def run(rollouts: int) -> dict[str, Any]:
    """Run every mode."""
    lone, modes = partial(agent, "solver"), dict[str, tuple[Any, bool]]()
    for stream in (False, True):
        for name, make in (("round robin", round_robin), ("selector", selector), ("lone", lone)):
            modes[f"{name}, {'streamed' if stream else 'plain'}"] = (
                partial(run_one, partial(make, stream=stream), "answer"),
                False,
            )
    team = partial(round_robin, stream=True)
    modes["round robin, streamed, a loop and thread each"] = (partial(run_one, team, "answer"), True)
    modes["round robin, a tool that fails"] = (partial(run_one, team, "tool breaks"), False)
    modes["round robin, a model that fails"] = (partial(run_one, team, "model breaks"), False)
    modes["round robin, a model that fails once"] = (partial(run_one, team, "model stumbles"), False)
    modes["round robin, cancelled and run again"] = (partial(cancelled, team), False)
    modes["round robin, each event taken by another task"] = (partial(stream_one, team), False)
    modes["lone, each event taken by another task"] = (partial(stream_one, partial(lone, stream=True)), False)
    provider().add_span_processor(WhoSpeaks())
    hooks: crowd_join.Hooks = {"otel span": otel_span, "message handler": message_handler}
    return {
        name: await crowd_join.run_crowd(mode, rollouts, hooks, check, threads=threads)
        for name, (mode, threads) in modes.items()
    }


if __name__ == "__main__":
    os.environ.setdefault("AUTOGEN_DISABLE_RUNTIME_TRACING", "true")
    crowd_join.main(str(__doc__), run)

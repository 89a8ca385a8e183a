"""OpenAI Agents SDK adapter: runs agents of the SDK for a task. It handles no spans."""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from leyden.core.data.resources import Resource
from leyden.core.data.rollout import Task
from leyden.core.errors import UnknownAgent
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.instrumentor_switch import InstrumentorSwitch
from leyden.openai_agents._instrumentor import OpenAIAgentsInstrumentor
from leyden.openai_agents._parts import parts_not_copied, stateless_parts
from leyden.openai_agents._runs import Run, close_session, fresh, input_for, refusal, run_of, team_of


class OpenAIAgentsAdapter(Adapter):
    """Runs an `Agent`, or a `functools.partial` of a `Runner`'s method, as its author would."""

    name = "openai_agents"
    module = "agents.tracing"

    def __init__(self) -> None:
        self._instrumentor_switch = InstrumentorSwitch(OpenAIAgentsInstrumentor)
        self._restore_export: Callable[[], None] | None = None

    def supports(self, agent: object) -> bool:
        """Whether `agent` is an `Agent`, or runs one and lacks only the input."""
        return run_of(agent) is not None

    def fresh(self, agent: Any) -> Any:
        """Return `agent` with a session and a context of its own, where it has them."""
        return fresh(agent)

    def stateless_parts(self, thing: object) -> Iterable[object] | None:
        """Return what an agent, a tool or a model is made of."""
        return stateless_parts(thing)

    def parts_not_copied(self, agent: Any) -> Iterable[object] | None:
        """Return the agent and the options of a run."""
        return parts_not_copied(agent)

    def check(self, agent: Any, task: Task) -> None:
        """Raise TaskError when `agent` cannot take `task`, and UnknownAgent when it cannot run unattended."""
        if (reason := refusal(_run(agent).agent)) is not None:
            raise UnknownAgent(reason)
        input_for(task)

    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Return the SDK's result, of a streamed run when it is complete.

        Connects, for the run, MCP servers that are not connected. Raises UnknownAgent when the agent interrupts itself.
        """
        from agents import Runner

        from leyden.openai_agents._mcp import connected

        run, given = _run(agent), input_for(task)
        servers = [
            server for member in team_of(run.agent) for server in member.mcp_servers if hasattr(server, "session")
        ]
        try:
            async with connected(servers):
                result = await (
                    _run_streamed(run, given) if run.streamed else Runner.run(run.agent, given, **run.options)
                )
        finally:
            close_session(run)
        if result.interruptions:
            names = [getattr(item, "name", "a tool") for item in result.interruptions]
            raise UnknownAgent(
                f"the agent waits for a human to approve {names}, and Leyden runs it unattended: remove needs_approval"
            )
        return result

    async def completed(self, result: Any) -> Any:
        """Run a streamed run to its end, and return it."""
        sdk = sys.modules.get("agents")
        if sdk is None or not isinstance(result, getattr(sdk, "RunResultStreaming", ())):
            return result
        return await _read_to_end(result)

    def final_output(self, result: Any) -> Any:
        """Return the final output of the run."""
        return getattr(result, "final_output", None)

    def instrument(self) -> None:
        """Record every run of this process, and stop the export of the SDK's own traces to OpenAI."""
        from leyden.openai_agents._export import stop_export

        if self._restore_export is None:
            self._restore_export = stop_export()
        self._instrumentor_switch.on()

    def uninstrument(self) -> None:
        """Undo `instrument`; what the user had instrumented before stays."""
        if self._restore_export is not None:
            self._restore_export()
            self._restore_export = None
        self._instrumentor_switch.off()

    def callback_handler(self) -> object:
        """Return a trace processor for `agents.add_trace_processor`."""
        from leyden.openai_agents._processor import LeydenTraceProcessor

        return LeydenTraceProcessor()


async def _run_streamed(run: Run, given: Any) -> Any:
    from agents import Runner

    return await _read_to_end(Runner.run_streamed(run.agent, given, **run.options))


async def _read_to_end(result: Any) -> Any:
    try:
        async for _ in result.stream_events():
            continue
    finally:
        if not result.is_complete:
            result.cancel()
    return result


def _run(agent: Any) -> Run:
    run = run_of(agent)
    if run is None:
        raise UnknownAgent(f"a {type(agent).__name__} cannot be run by the SDK's Runner")
    return run

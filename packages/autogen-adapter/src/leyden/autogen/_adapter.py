"""AutoGen adapter: runs AutoGen agents and teams for a task. It handles no spans."""

import asyncio
import logging
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, cast
from weakref import WeakSet

from leyden.autogen._instrumentor import AutoGenInstrumentor
from leyden.core.data.resources import Resource
from leyden.core.data.rollout import Task
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.instrumentor_switch import InstrumentorSwitch
from leyden.core.runner.isolation.alone import is_alone
from leyden.core.runner.isolation.shared_state import code_held_by

log = logging.getLogger("leyden.autogen")

GRACE_SECONDS = 10.0
"""Seconds after which a cancelled agent that still runs is left alone; its calls reach no model."""


class AutoGenAdapter(Adapter):
    """Runs what AutoGen's `run` runs: assistants and other agents, teams of them, teams of teams."""

    name = "autogen"
    module = "autogen_core"

    def __init__(self) -> None:
        self._instrumentor_switch = InstrumentorSwitch(AutoGenInstrumentor)
        self._copies: WeakSet[Any] = WeakSet()
        """Copies that `fresh` made."""
        self._last_checked: Any = None
        """Last agent that was checked: thousands of tasks use one."""
        self._warning_filters: list[Any] = []
        """Leyden's filters of warnings."""

    def supports(self, agent: object) -> bool:
        """Whether `agent` is an agent or a team."""
        base = sys.modules.get("autogen_agentchat.base")
        return base is not None and isinstance(agent, (base.ChatAgent, base.Team))

    def fresh(self, agent: Any) -> Any:
        """Return a copy of `agent` without messages; raises UnknownAgent where a part cannot be copied.

        AutoGen's model clients keep no state and are shared: each new one reads all root certificates. In a process
        that runs one attempt, returns `agent` itself.
        """
        from leyden.autogen._agents import copied

        agent_copy = agent if is_alone() else copied(agent)
        self._copies.add(agent_copy)
        return agent_copy

    def stateless_parts(self, thing: object) -> Iterable[object] | None:
        """Return nothing for a model client, and the function of a tool."""
        from leyden.autogen._agents import stateless_parts

        return stateless_parts(thing)

    def parts_not_copied(self, agent: Any) -> Iterable[object] | None:
        """Return the functions of an agent or a team, which deep copies share; None where a copy differs from it."""
        from leyden.autogen._agents import has_history, shared_runtimes

        return None if shared_runtimes(agent) or has_history(agent) else code_held_by(agent)

    def check(self, agent: Any, task: Task) -> None:
        """Raise TaskError when `agent` cannot take `task`, and UnknownAgent when it cannot run unattended."""
        from leyden.autogen._agents import check_runnable
        from leyden.autogen._input import input_for

        if agent is not self._last_checked:
            check_runnable(agent)
            self._last_checked = agent
        input_for(task)

    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Await `agent.run` for `task`, and return its `TaskResult`; when cancelled, stop the agent by its token."""
        from autogen_core import CancellationToken

        from leyden.autogen._agents import close, stop
        from leyden.autogen._input import input_for

        token = CancellationToken()
        running = asyncio.ensure_future(agent.run(task=input_for(task), cancellation_token=token))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            token.cancel()  # without it, a team continues to its end
            stop(agent)
            running.cancel()
            if not (await asyncio.wait([running], timeout=GRACE_SECONDS))[0]:
                log.warning("%s was cancelled and is still running", type(agent).__name__)
            raise
        finally:
            if agent in self._copies:
                await close(agent)

    def final_output(self, result: Any) -> Any:
        """Return the content of the last message of a `TaskResult`."""
        messages = getattr(result, "messages", None)
        return getattr(messages[-1], "content", None) if messages else None

    def instrument(self) -> None:
        """Record every AutoGen run of this process.

        Hides AutoGen's warning that the policy's name is not the dated name that a provider answers with.
        """
        if not self._warning_filters:
            self._warning_filters = [
                ("ignore", re.compile("Resolved model mismatch", re.IGNORECASE), UserWarning, None, 0)
            ]
            # `filterwarnings` would make Python show again every warning that it showed before.
            cast("list[Any]", warnings.filters)[:0] = self._warning_filters
        self._instrumentor_switch.on()

    def uninstrument(self) -> None:
        """Undo `instrument`, unless the user had instrumented before."""
        self._instrumentor_switch.off()
        for warning_filter in self._warning_filters:
            if warning_filter in warnings.filters:
                cast("list[Any]", warnings.filters).remove(warning_filter)
        self._warning_filters.clear()

    def callback_handler(self) -> object:
        """Return a handler for AutoGen's event log."""
        from leyden.autogen._log_handler import LeydenLogHandler

        return LeydenLogHandler()

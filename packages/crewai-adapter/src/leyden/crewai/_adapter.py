"""CrewAI adapter: runs crews, flows and single agents for a task. It handles no spans."""

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from leyden.core.data.resources import Resource
from leyden.core.data.rollout import Task
from leyden.core.errors import UnknownAgent
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.instrumentor_switch import InstrumentorSwitch
from leyden.core.runner.attempts.threads import in_thread
from leyden.core.runner.user_code.task_input import text_for
from leyden.crewai._fresh import fresh, kind_of, makes_crew, refusals, resolved
from leyden.crewai._input import crew_inputs, flow_inputs
from leyden.crewai._instrumentor import CrewAIInstrumentor
from leyden.crewai._isolated import own_storage, parts_not_copied, stateless_parts
from leyden.crewai._runs import ends_with_block
from leyden.crewai._streams import is_stream, read, read_any

QUIET_ENVIRONMENT = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Environment variables that stop CrewAI's and LiteLLM's own telemetry and downloads."""

_importing = Lock()
_imported = False


class CrewAIAdapter(Adapter):
    """Runs objects with `kickoff`: crews, flows, agents. A `@CrewBase` class or its object runs its crew."""

    name = "crewai"
    module = "crewai"

    def __init__(self) -> None:
        self._instrumentor_switch = InstrumentorSwitch(CrewAIInstrumentor)
        self._saved_environment: dict[str, str | None] = {}
        self._caches: list[Any] = []

    def supports(self, agent: object) -> bool:
        """Whether `agent` is a crew, a flow or an agent, or a class that makes a crew or a flow."""
        if "crewai" not in sys.modules:
            return False
        return makes_crew(agent) or kind_of(agent) in (
            ("Flow",) if inspect.isclass(agent) else ("Crew", "Flow", "Agent")
        )

    def fresh(self, agent: Any) -> Any:
        """Return a copy of a crew or an agent, or a new flow of the same class, without state."""
        return fresh(agent)

    def stateless_parts(self, thing: object) -> Iterable[object] | None:
        """Return what a tool or a model is made of."""
        return stateless_parts(thing)

    def parts_not_copied(self, agent: Any) -> Iterable[object] | None:
        """Return tools, callbacks and other functions of a crew, a flow or an agent without a memory."""
        return parts_not_copied(agent)

    def forked(self, folder: Path) -> None:
        """Give the process memories, knowledge and caches of its own."""
        own_storage(folder)

    def check(self, agent: Any, task: Task) -> None:
        """Raise TaskError when `agent` cannot take `task`, and UnknownAgent when it cannot run unattended."""
        agent = resolved(agent)
        for reason in refusals(agent):
            raise UnknownAgent(reason)
        _inputs(agent, task)

    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Call `agent.kickoff` for `task` in its own thread, as it refuses to run in an event loop's thread.

        Streams are read to their end. After a cancellation the thread continues to its next model call, which fails.
        """
        agent = resolved(agent)
        inputs = _inputs(agent, task)
        if kind_of(agent) == "Flow":
            await in_thread(_import_litellm)  # a flow may make models with it; crews and agents have made theirs
        self._disable_cache()
        with ends_with_block():
            result = await in_thread(_run_to_end, agent.kickoff, inputs)
        if type(result).__name__ == "HumanFeedbackPending":
            raise UnknownAgent(
                f"the flow waits for human input ({result}), and Leyden runs it unattended: remove the step that waits"
            )
        return result

    async def completed(self, result: Any) -> Any:
        """Read a CrewAI stream to its end, and return its output."""
        return await read_any(result) if is_stream(result) else result

    def final_output(self, result: Any) -> Any:
        """Return the raw text of a crew's or an agent's output; None for the result of a flow that is none."""
        return getattr(result, "raw", None)

    def instrument(self) -> None:
        """Record every CrewAI run of this process, and turn off CrewAI's own telemetry and downloads."""
        if not self._saved_environment:
            self._saved_environment = {name: os.environ.get(name) for name in QUIET_ENVIRONMENT}
            os.environ.update(QUIET_ENVIRONMENT)
        self._disable_cache()
        self._instrumentor_switch.on()

    def uninstrument(self) -> None:
        """Undo `instrument`, unless the user had instrumented before."""
        self._instrumentor_switch.off()
        for name, previous in self._saved_environment.items():
            if previous is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = previous
        self._saved_environment = {}
        if self._caches:
            sys.modules["litellm"].__dict__["cache"] = self._caches[-1]
            self._caches.clear()

    def _disable_cache(self) -> None:
        """Turn the cache off: another policy version sampled its answers, and they bypass the gateway."""
        litellm: Any = sys.modules.get("litellm")
        if (cache := getattr(litellm, "cache", None)) is not None:
            self._caches.append(cache)
            litellm.cache = None


def _inputs(agent: Any, task: Task) -> Any:
    if kind_of(agent) == "Agent":
        return text_for(task)
    return crew_inputs(agent, task) if kind_of(agent) == "Crew" else flow_inputs(agent, task)


def _run_to_end(kickoff: Callable[[Any], Any], inputs: Any) -> Any:
    result = kickoff(inputs)
    return read(result) if is_stream(result) else result


def _import_litellm() -> None:
    """Import LiteLLM before threads do: CrewAI treats a partly imported one as missing."""
    global _imported
    with _importing:
        if not _imported and find_spec("litellm") is not None:
            from crewai import LLM

            with suppress(ImportError):  # CrewAI itself reports this to users that need it
                LLM(model="openai/gpt-4.1-mini", is_litellm=True)
        _imported = True

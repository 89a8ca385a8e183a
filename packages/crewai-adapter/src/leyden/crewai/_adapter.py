"""`CrewAIAdapter`: runs crews, flows and lone agents for a task. Knows nothing of spans."""

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
from leyden.crewai._fresh import fresh, kind_of, made, makes_crew, refusals
from leyden.crewai._input import crew_inputs, flow_inputs
from leyden.crewai._instrumentor import CrewAIInstrumentor
from leyden.crewai._isolated import own_storage, parts_not_copied, stateless_parts
from leyden.crewai._runs import whole
from leyden.crewai._streams import is_stream, read, read_any

QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Environment variables that keep CrewAI and LiteLLM from telling anybody, or looking anything up, on their own."""

_importing = Lock()
_imported = False


class CrewAIAdapter(Adapter):
    """Runs what has `kickoff`: crews, flows, agents. A `@CrewBase` class, or an object of one, stands for its crew."""

    name = "crewai"
    module = "crewai"

    def __init__(self) -> None:
        self._recording = InstrumentorSwitch(CrewAIInstrumentor)
        self._environment: dict[str, str | None] = {}
        self._caches: list[Any] = []

    def supports(self, agent: object) -> bool:
        """Whether `agent` is a crew, a flow or an agent, or a class that makes a crew or a flow."""
        if "crewai" not in sys.modules:
            return False
        return makes_crew(agent) or kind_of(agent) in (
            ("Flow",) if inspect.isclass(agent) else ("Crew", "Flow", "Agent")
        )

    def fresh(self, agent: Any) -> Any:
        """Return a copy of a crew or an agent, or another flow of the same class, that remembers nothing."""
        return fresh(agent)

    def stateless_parts(self, thing: object) -> Iterable[object] | None:
        """What a tool is made of, or a model."""
        return stateless_parts(thing)

    def parts_not_copied(self, agent: Any) -> Iterable[object] | None:
        """Tools, callbacks and other functions of a crew, a flow or an agent that has no memory."""
        return parts_not_copied(agent)

    def forked(self, folder: Path) -> None:
        """Give the process memories, knowledge and caches of its own."""
        own_storage(folder)

    def check(self, agent: Any, task: Task) -> None:
        """Raise TaskError when `task` cannot be given to `agent`, and UnknownAgent when it cannot run unattended."""
        agent = made(agent)
        for reason in refusals(agent):
            raise UnknownAgent(reason)
        _inputs(agent, task)

    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Call `agent.kickoff` for `task` in a thread of its own, for it refuses to run where an event loop does.

        What streams is taken to its end. Cancelled, the thread goes on unheard until its next model call, which fails.
        """
        agent = made(agent)
        inputs = _inputs(agent, task)
        if kind_of(agent) == "Flow":
            await in_thread(_import_litellm)  # which it may make models with; others have made theirs
        self._disable_cache()
        with whole():
            result = await in_thread(_to_the_end, agent.kickoff, inputs)
        if type(result).__name__ == "HumanFeedbackPending":
            raise UnknownAgent(f"the flow waits for a human ({result}): it cannot run unattended")
        return result

    async def completed(self, result: Any) -> Any:
        """Read a stream of CrewAI's to its end, and return its output."""
        return await read_any(result) if is_stream(result) else result

    def instrument(self) -> None:
        """Record every CrewAI run of this process, and let nothing be told or looked up on CrewAI's own account."""
        if not self._environment:
            self._environment = {name: os.environ.get(name) for name in QUIET}
            os.environ.update(QUIET)
        self._disable_cache()
        self._recording.on()

    def uninstrument(self) -> None:
        """Undo `instrument`, unless the user had instrumented before us."""
        self._recording.off()
        for name, before in self._environment.items():
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before
        self._environment = {}
        if self._caches:
            sys.modules["litellm"].__dict__["cache"] = self._caches[-1]
            self._caches.clear()

    def _disable_cache(self) -> None:
        """A cached answer was drawn by another version of the policy, and never reaches the gateway."""
        litellm: Any = sys.modules.get("litellm")
        if (cache := getattr(litellm, "cache", None)) is not None:
            self._caches.append(cache)
            litellm.cache = None


def _inputs(agent: Any, task: Task) -> Any:
    if kind_of(agent) == "Agent":
        return text_for(task)
    return crew_inputs(agent, task) if kind_of(agent) == "Crew" else flow_inputs(agent, task)


def _to_the_end(kickoff: Callable[[Any], Any], inputs: Any) -> Any:
    result = kickoff(inputs)
    return read(result) if is_stream(result) else result


def _import_litellm() -> None:
    """Import LiteLLM before a crowd does: CrewAI takes a half imported one for none at all."""
    global _imported
    with _importing:
        if not _imported and find_spec("litellm") is not None:
            from crewai import LLM

            with suppress(ImportError):  # CrewAI will say so itself, to those who need it
                LLM(model="openai/gpt-4.1-mini", is_litellm=True)
        _imported = True

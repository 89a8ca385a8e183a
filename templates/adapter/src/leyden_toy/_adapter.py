"""`ToyAdapter`: runs toy agents and teams for a task. Knows nothing of spans."""

import copy
import sys
from collections.abc import Mapping
from typing import Any

from leyden.core.data.resources import Resource
from leyden.core.data.rollout import Task
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.instrumentor_switch import InstrumentorSwitch
from leyden.core.runner.user_code.task_input import text_for
from leyden_toy._instrumentor import ToyInstrumentor


class ToyAdapter(Adapter):
    """Runs what the framework's own `run` runs."""

    name = "toy"

    def __init__(self) -> None:
        self._recording = InstrumentorSwitch(ToyInstrumentor)

    def supports(self, agent: object) -> bool:
        """Whether `agent` is an agent or a team; who has none has not imported the framework either."""
        toy = sys.modules.get("toy_agents")
        return toy is not None and isinstance(agent, (toy.Agent, toy.Team))

    def fresh(self, agent: Any) -> Any:
        """Return a copy of `agent` that remembers nothing, neither of this attempt nor of its author's own runs."""
        ours = copy.deepcopy(agent)
        for member in getattr(ours, "members", [ours]):
            member.memory.clear()
        return ours

    def check(self, agent: Any, task: Task) -> None:
        """Raise TaskError when `task` has no text."""
        text_for(task)

    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Await `agent.run` for `task`."""
        return await agent.run(text_for(task))

    def instrument(self) -> None:
        """Record every run of this process, unless the user does so already."""
        self._recording.on()

    def uninstrument(self) -> None:
        """Undo `instrument`."""
        self._recording.off()

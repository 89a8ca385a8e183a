"""`Adapter`: base class of the framework packages' adapters."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from leyden.core.data.resources import Resource
from leyden.core.data.rollout import Attempt, Task
from leyden.core.data.transition import Trajectory
from leyden.core.errors import NotFound
from leyden.core.store.base import LightningStore
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector


class Adapter(ABC):
    """Adapter of one framework: recognises its agents, runs them for a task, and records which agent makes a call."""

    name: str
    """Short name, as in the entry point: `langchain`."""
    module: str | None = None
    """Module of the framework. `instrument` works once it is loaded. None where there is no framework."""

    @abstractmethod
    def supports(self, agent: object) -> bool:
        """Return whether `agent` is one of this framework's own objects."""

    @abstractmethod
    def fresh(self, agent: Any) -> Any:
        """Return an agent for one attempt, without state from other attempts.

        Must be cheap and must never change `agent` itself.
        """

    def stateless_parts(self, thing: object) -> Iterable[object] | None:
        """Return the parts of `thing`, an object of the framework that keeps nothing of one run for another.

        None: it may keep something, or does not belong to the framework. Called for agents and for the objects that
        their code uses. The parts are inspected for shared state in turn.
        """
        return None

    def parts_not_copied(self, agent: Any) -> Iterable[object] | None:
        """Return what the agents that `fresh` makes from `agent` have in common. None: they may share state.

        The parts are mainly functions, whose code is then inspected.
        """
        return self.stateless_parts(agent)

    @abstractmethod
    def check(self, agent: Any, task: Task) -> None:
        """Raise TaskError, which names the keys found, when `agent` cannot take `task`."""

    @abstractmethod
    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Run `agent` on `task` and return its result. Its errors pass through unchanged."""

    @abstractmethod
    def instrument(self) -> None:
        """Start recording structure. A second call has no effect."""

    @abstractmethod
    def uninstrument(self) -> None:
        """Undo `instrument` completely."""

    def forked(self, folder: Path) -> None:
        """Prepare the framework in a process that was forked for one attempt, before its agent runs.

        What the framework writes to disk by default must go to `folder`, which is removed after the attempt.
        """
        return

    async def completed(self, result: Any) -> Any:
        """Return a user function's result completed: a stream of this framework is run to its end.

        Any other result is returned unchanged. Plain iterators need no adapter.
        """
        return result

    def callback_handler(self) -> object | None:
        """Return a callback handler of the framework, for agents that pass a handler explicitly. None: it has none."""
        return None

    def returned_reward(self, result: Any) -> Any:
        """Return the reward in a result of `run`, for agents that score themselves. None when there is no reward."""
        return None

    def final_output(self, result: Any) -> Any:
        """Return the part of a result of `run` that users of the framework read, for display.

        None: the whole result is shown.
        """
        return None

    async def collect_trajectory(
        self, store: LightningStore, attempt: Attempt, select: Selector | None = None
    ) -> Trajectory:
        """Return an attempt's reward and its transitions in order, of all agents or of those that `select` names.

        All spans of the attempt must be stored. That is so once a runner has marked it or calls `on_rollout_end`.
        Raises NotFound when the store does not have the attempt.
        """
        found = await store.find_attempt(attempt.rollout_id, attempt.attempt_id)
        if found is None:
            raise NotFound(f"there is no attempt {attempt.attempt_id} of rollout {attempt.rollout_id}")
        spans = await store.query_spans(attempt.rollout_id, attempt.attempt_id)
        return assemble(*found, spans.items, select or Selector())

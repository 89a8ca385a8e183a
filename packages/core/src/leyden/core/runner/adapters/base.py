"""`Adapter`: the seam each framework package implements."""

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
    """Recognises one framework's agents, runs them for a task, and says who speaks."""

    name: str
    """Short name, as in the entry point: `langchain`."""
    module: str | None = None
    """The framework's own module, once which is loaded `instrument` works; None where there is no framework."""

    @abstractmethod
    def supports(self, agent: object) -> bool:
        """Whether `agent` is one of this framework's own objects."""

    @abstractmethod
    def fresh(self, agent: Any) -> Any:
        """Return an agent for one attempt that remembers nothing of another; cheap, never changes `agent` itself."""

    def stateless_parts(self, thing: object) -> Iterable[object] | None:
        """What is inside of `thing`, an object of the framework that keeps nothing of one run for another.

        None: it may keep something, or is none of the framework's. Called for agents and for whatever their code uses.
        """
        return None

    def parts_not_copied(self, agent: Any) -> Iterable[object] | None:
        """What the agents that `fresh` returns for `agent` have in common; None: they may keep something of each other.

        Functions are meant above all: what they use is looked at.
        """
        return self.stateless_parts(agent)

    @abstractmethod
    def check(self, agent: Any, task: Task) -> None:
        """Raise TaskError, naming the keys it found, when `task` cannot be given to `agent`."""

    @abstractmethod
    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Run `agent` on `task` and return what it returned; its errors pass through unchanged."""

    @abstractmethod
    def instrument(self) -> None:
        """Start recording structure. Calling it twice does nothing more."""

    @abstractmethod
    def uninstrument(self) -> None:
        """Undo `instrument` exactly."""

    def forked(self, folder: Path) -> None:
        """Called in a process that was forked for one attempt, where the framework is loaded, before its agent runs.

        What the framework keeps on disk by default is to be kept in `folder`, which is removed after the attempt.
        """
        return

    async def completed(self, result: Any) -> Any:
        """What a user's function returned, complete: a stream of this framework's is run to its end.

        Anything else is returned as it is. Iterators that are nothing but iterators need no adapter.
        """
        return result

    def callback_handler(self) -> object | None:
        """A callback handler of the framework's own kind, for agents that pass one explicitly; None: there is none."""
        return None

    def returned_reward(self, result: Any) -> Any:
        """The reward inside what `run` returned, for agents that score themselves; None when there is none."""
        return None

    async def collect_trajectory(
        self, store: LightningStore, attempt: Attempt, select: Selector | None = None
    ) -> Trajectory:
        """The transitions of an attempt, in order, of all agents or of those that `select` names, and its reward.

        Everything the attempt left must be stored, as it is when a runner has marked it or calls `on_rollout_end`.
        Raises NotFound when the store does not know the attempt.
        """
        found = await store.find_attempt(attempt.rollout_id, attempt.attempt_id)
        if found is None:
            raise NotFound(f"there is no attempt {attempt.attempt_id} of a rollout {attempt.rollout_id}")
        spans = await store.query_spans(attempt.rollout_id, attempt.attempt_id)
        return assemble(*found, spans.items, select or Selector())

"""Vote: an agent that runs another agent several times on a task and returns what most of the runs answered.

It is the baseline for agents that spend as many tokens in another way (self-consistency, arXiv 2203.11171).
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from leyden.core.data.resources import Resource
from leyden.core.data.rollout import Task
from leyden.core.errors import LeydenError, UsageError
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.builtin import PlainAdapter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """An agent that runs `agent` on each task `samples` times, one run after the other.

    Its result is the first result with the answer that most runs gave. Of answers that were given equally often, the
    one that was given first wins. A run that raises, or has the answer None, does not vote. If no run votes, the result
    is that of the last run, or its error. Raises UsageError for fewer than one sample.
    """

    agent: Any
    """Agent of any framework; each run gets a fresh one."""
    samples: int
    answer: Callable[[Any], Hashable]
    """Function from a result of `agent` to the answer that is counted, such as a number or the rows of a query."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UsageError(f"a vote needs at least 1 sample, got {self.samples}")


class VoteAdapter(PlainAdapter):
    """Adapter that runs `Vote` agents with the adapter of the agent that they run."""

    name = "vote"

    def __init__(self, find: Callable[[object], Adapter]) -> None:
        self._find = find

    def supports(self, agent: object) -> bool:
        """Return whether `agent` is a `Vote`."""
        return isinstance(agent, Vote)

    def fresh(self, agent: Vote) -> Vote:
        """Return the vote itself: each of its runs makes a fresh agent."""
        return agent

    def stateless_parts(self, thing: object) -> Iterable[object] | None:
        """Return the parts of a vote's agent, if it is stateless, and the function that reads answers."""
        if not isinstance(thing, Vote):
            return None
        parts = self._find(thing.agent).stateless_parts(thing.agent)
        return None if parts is None else chain(parts, [thing.answer])

    def parts_not_copied(self, agent: Vote) -> Iterable[object] | None:
        """Return what the agents of all runs have in common, and the function that reads answers."""
        parts = self._find(agent.agent).parts_not_copied(agent.agent)
        return None if parts is None else chain(parts, [agent.answer])

    def check(self, agent: Vote, task: Task) -> None:
        """Raise TaskError when the agent that is run cannot take `task`."""
        self._find(agent.agent).check(agent.agent, task)

    async def run(self, agent: Vote, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Run the agent `samples` times and return the result that the vote chooses."""
        adapter = self._find(agent.agent)
        first: dict[Hashable, Any] = {}
        votes = Counter[Hashable]()
        last: Any = None
        error: Exception | None = None
        for number in range(1, agent.samples + 1):
            try:
                last, error = await adapter.run(adapter.fresh(agent.agent), task, resources), None
            except LeydenError:
                raise
            except Exception as raised:
                error = raised
                log.warning("run %d of %d does not vote: %s: %s", number, agent.samples, type(raised).__name__, raised)
                continue
            answer = agent.answer(last)
            if answer is not None:
                first.setdefault(answer, last)
                votes[answer] += 1
        if votes:
            return first[votes.most_common(1)[0][0]]
        if error is not None:
            raise error
        return last

"""`PromptSearch`: what a run that trains prompts has tried so far, as its checkpoints and `leyden prompts` read it."""

from typing import Any, Literal

import msgspec

from leyden.core.algorithm.prompts.components import Texts

Origin = Literal["start", "reflection", "edit", "merge"]
"""Where a candidate comes from: the run's first prompts, a text by the reflection model, an edit after a textual
gradient, or the components of two candidates."""


class Candidate(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Texts that were tried in place of the prompts of an agent."""

    number: int
    """Number among the candidates of the run, from 0."""
    texts: Texts
    resources_id: str = ""
    """Version of the resources with these texts; empty if it was rejected before it ran."""
    origin: Origin = "start"
    parents: tuple[int, ...] = ()
    changed: tuple[str, ...] = ()
    """Names of the components that differ from the first parent."""
    step: int = 0
    """Step in which it was made."""
    reason: str = ""
    """What the model gave as the reason for the change, such as a textual gradient; empty if it gave none."""
    rollouts: tuple[str, ...] = ()
    """Ids of the rollouts that the change was made from."""
    before: float | None = None
    """Mean score of the first parent on those tasks; None if they were not run again."""
    after: float | None = None
    """Mean score of this candidate on the same tasks."""
    scores: dict[str, float] = {}
    """Score on each validation task, by the task's row; empty if it was not evaluated on all of them."""
    scored_in: int = 0
    """Step in which it was evaluated on them."""
    rejected: str = ""
    """Why it was not kept; empty if it was."""

    @property
    def score(self) -> float | None:
        """Mean score on the validation tasks; None if it was not evaluated on them."""
        return sum(self.scores.values()) / len(self.scores) if self.scores else None


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A rollout that was evaluated, without what it recorded."""

    row: int
    held_out: str | None
    resources_id: str
    repeat: int
    step: int
    score: float
    rollout_id: str
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    """Cost of the agent's calls in US dollars; None if it is unknown."""
    dimensions: dict[str, float] = {}


class Reflection(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """An answer of the reflection model."""

    text: str | None
    """None if the call failed."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None


class PromptSearch(msgspec.Struct, kw_only=True):
    """State of the search. It is saved as the algorithm's state, so that a resumed run repeats nothing."""

    candidates: list[Candidate] = []
    evaluations: list[Evaluation] = []
    reflections: dict[str, Reflection] = {}
    """Answers of the reflection model, by the step and the number of the call in it."""
    unused: dict[str, Reflection] = {}
    """Answers that an earlier session got in a step that it did not finish. Each counts once the step is repeated."""
    best: int = 0
    """Number of the candidate that is published."""
    ended: str = ""
    """Why the search is over; empty while it continues."""
    ended_in: int = 0
    """Step in which it ended."""
    limits: dict[str, float] = {}
    """Limits of what may be spent: `rollouts`, `tokens` and `dollars`, where there is one."""
    own: dict[str, Any] = {}
    """State of the algorithm itself."""

    def spent(self) -> dict[str, float]:
        """Return what was spent: `rollouts`, `tokens`, and `dollars` if all prices are known."""
        spent: dict[str, float] = {
            "rollouts": len(self.evaluations),
            "tokens": self.input_tokens() + self.output_tokens(),
        }
        dollars = self.dollars()
        return spent if dollars is None else {**spent, "dollars": dollars}

    def left(self) -> dict[str, float]:
        """Return what is left of each limit; not below 0. A cost that is unknown leaves the whole limit."""
        spent = self.spent()
        return {name: max(0, limit - spent.get(name, 0)) for name, limit in self.limits.items()}

    def dollars(self) -> float | None:
        """Return the cost of all rollouts and reflections in US dollars; None if a part of it is unknown."""
        costs = [one.cost for one in (*self.evaluations, *self.reflections.values())]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None

    def input_tokens(self) -> int:
        """Return the number of input tokens of all rollouts and reflections."""
        return sum(one.input_tokens for one in self.evaluations) + sum(
            one.input_tokens for one in self.reflections.values()
        )

    def output_tokens(self) -> int:
        """Return the number of output tokens of all rollouts and reflections."""
        return sum(one.output_tokens for one in self.evaluations) + sum(
            one.output_tokens for one in self.reflections.values()
        )


def read_search(state: Any) -> PromptSearch:
    """Return the search in an algorithm's state; an empty one for None."""
    return PromptSearch() if state is None else msgspec.convert(state, PromptSearch)

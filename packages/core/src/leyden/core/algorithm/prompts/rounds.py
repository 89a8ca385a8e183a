"""`RoundContext`: one search for prompts as one step of a run that also trains weights.

The search sees a run of its own: its steps are iterations of the search, and what it publishes is the result of the
round. Nothing is published to the run's agents before the round ends, so all candidates of a round run with the same
weights. A rollout belongs to the run's step and the iteration, so a resumed round reads the finished ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from leyden.core.algorithm.base import NO_POLICY, Context
from leyden.core.algorithm.language_model import LanguageModel, ModelOptions
from leyden.core.algorithm.prompts.budget import Budget, BudgetOptions, BudgetSpent, Price
from leyden.core.algorithm.prompts.components import Texts
from leyden.core.algorithm.prompts.search import Candidate, PromptSearch, read_search
from leyden.core.algorithm.task_rollouts import RolloutRequest, RolloutResult
from leyden.core.data.resources import NamedResources
from leyden.core.data.route import POLICY
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.updater import Updater

P = ParamSpec("P")
R = TypeVar("R")

REPEATS = 1_000_000
"""Repeats of a rollout that one iteration can distinguish."""


class Round(msgspec.Struct, kw_only=True):
    """Record of a search."""

    step: int
    """Step of the run that the round is."""
    iterations: int = 0
    """Iterations of the search that are finished."""
    search: Any = None
    """State of the search, see `PromptSearch`; None before it was saved."""
    front: list[Texts] = []
    """Prompts of the Pareto front, the published ones first; empty before the round has ended."""

    def read(self) -> PromptSearch:
        """Return the state of the search."""
        return read_search(self.search)


class RoundContext(Context):
    """Context of the search of `own`, the round that the run `real` takes as its next step.

    `save` writes the record of all rounds to disk. Collecting batches, evaluations on held-out sets and policies belong
    to the run, and raise UsageError here.
    """

    def __init__(self, real: Context, own: Round, iterations: int, save: Callable[[], None]) -> None:
        self._real, self._round, self._save = real, own, save
        self.policies = real.policies
        self.step, self.steps = own.iterations, iterations
        self.seed = real.seed
        self.tasks, self.held_out, self.resources = real.tasks, real.held_out, real.resources
        self.endpoint_price = real.endpoint_price
        self.state = own.search
        self.logged: list[Mapping[str, Any]] = []
        """Metrics of the iterations of this session."""

    async def add_resources(self, changes: NamedResources) -> str:
        """Add a version of the resources to the run's store."""
        return await self._real.add_resources(changes)

    async def run_tasks(self, requests: Sequence[RolloutRequest]) -> list[RolloutResult]:
        """Run the rollouts as rollouts of this iteration."""
        first = self.step * REPEATS
        own = [msgspec.structs.replace(one, repeat=first + one.repeat) for one in requests]
        results = await self._real.run_tasks(own)
        return [replace(result, request=request) for request, result in zip(requests, results, strict=True)]

    def language_model(self, options: ModelOptions) -> LanguageModel:
        """Return the run's model."""
        return self._real.language_model(options)

    def show(self, line: str) -> None:
        """Show a line."""
        self._real.show(line)

    def save_state(self, state: Any) -> None:
        """Write the state of the search to disk."""
        self.state = self._round.search = state
        self._save()

    async def publish(
        self, models: "Mapping[str, PolicyModel]" = NO_POLICY, *, resources: NamedResources | None = None
    ) -> dict[str, float]:
        """Count the iteration. The run publishes the result of the round."""
        del models, resources
        self.step += 1
        return {}

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Remember the metrics of the iteration."""
        self.logged.append(metrics)

    async def checkpoint(self, updaters: "Mapping[str, Updater]" = NO_POLICY) -> None:
        """Write down that the iteration has ended."""
        del updaters
        self._round.iterations = self.step
        self._save()

    def count_dropped(self, reasons: Mapping[str, int]) -> None:
        """Count groups that were left out."""
        self._real.count_dropped(reasons)

    async def compute(self, phase: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` in a thread."""
        return await self._real.compute(phase, function, *args, **kwargs)

    def load_policy(self, name: str = POLICY) -> "PolicyModel":
        """Raise UsageError."""
        raise UsageError(f"a prompt round loads no policy, and {name} was requested")

    async def restore(self, updaters: "Mapping[str, Updater]" = NO_POLICY) -> None:
        """Raise UsageError."""
        raise UsageError("a prompt round restores no checkpoint; the run does")

    async def collect(self) -> list[TrajectoryGroup]:
        """Raise UsageError."""
        raise UsageError("a prompt round collects no batches; it requests rollouts one by one")

    async def evaluate(self, label: str) -> None:
        """Raise UsageError."""
        raise UsageError(f"a prompt round evaluates no held-out sets ({label}); the run does")


def budget_left(given: BudgetOptions, rounds: Sequence[Round], price: Price | None) -> BudgetOptions:
    """Return what earlier rounds have left of the run's budget; raises BudgetSpent if that is nothing."""
    counting = BudgetOptions(agent_price=given.agent_price)
    spent = [Budget(counting, one.read(), price, reflection_is_priced=True) for one in rounds]
    left: dict[str, Any] = {}
    for name in ("rollouts", "tokens", "dollars"):
        limit: float | None = getattr(given, name)
        if limit is None:
            continue
        left[name] = limit - sum(getattr(one, name) or 0 for one in spent)
        if left[name] <= 0:
            raise BudgetSpent(f"{limit:,} {name} are spent")
    return msgspec.structs.replace(given, **left)


def pareto_front(search: PromptSearch) -> list[Candidate]:
    """Return the published candidate, and then those that no other one exceeds on some validation task, best first."""
    scored = [one for one in search.candidates if one.scores and not one.rejected]
    highest: dict[str, float] = {}
    for one in scored:
        for task, score in one.scores.items():
            highest[task] = max(score, highest.get(task, score))
    front = [one for one in scored if any(score == highest[task] for task, score in one.scores.items())]
    ordered = sorted(front, key=lambda one: (one.number != search.best, -(one.score or 0.0), one.number))
    if not any(one.number == search.best for one in ordered):
        ordered.insert(0, search.candidates[search.best])
    return [one for at, one in enumerate(ordered) if all(one.texts != other.texts for other in ordered[:at])]

"""`PromptRunner`: runs the agent with candidates on tasks, within the budget, and evaluates nothing twice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from leyden.core.algorithm.base import Context
from leyden.core.algorithm.prompts.budget import Budget
from leyden.core.algorithm.prompts.components import PromptComponents
from leyden.core.algorithm.prompts.search import Evaluation, PromptSearch
from leyden.core.algorithm.task_rollouts import RolloutRequest, RolloutResult
from leyden.core.data import semconv
from leyden.core.errors import TrainingError


class TaskRow(msgspec.Struct, frozen=True):
    """A task of the run."""

    row: int
    held_out: str | None = None
    """Name of its held-out set; None: the training tasks."""

    @property
    def key(self) -> str:
        """Text that identifies the task in the whole run: `train/3`."""
        return f"{self.held_out or 'train'}/{self.row}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Score of a candidate on one task."""

    score: float
    """A failed rollout has 0."""
    rollout_id: str
    dimensions: Mapping[str, float]
    result: RolloutResult | None
    """What the rollout recorded; None for a rollout of a step that an earlier session finished."""


Work = tuple[Mapping[str, str], Sequence[TaskRow]]
"""A candidate, and the tasks on which it is evaluated."""


class PromptRunner:
    """Evaluates candidates. `step` is the step that the next rollouts belong to.

    A step before the context's own was finished by an earlier session. Its evaluations come from the record. `save`
    writes the search to disk after each batch of rollouts.
    """

    def __init__(
        self,
        context: Context,
        components: PromptComponents,
        search: PromptSearch,
        budget: Budget,
        save: Callable[[], None],
    ) -> None:
        self._context, self._components, self._budget, self._search = context, components, budget, search
        self._save = save
        self.step = 1
        search.evaluations = [one for one in search.evaluations if one.step <= context.step]
        self._known = {(one.step, _request_of(one)): one for one in search.evaluations}
        self._results: dict[tuple[int, RolloutRequest], RolloutResult] = {}

    async def version(self, texts: Mapping[str, str]) -> str:
        """Store the resources with these texts, and return their id."""
        return await self._context.add_resources(self._components.resources(texts))

    async def evaluate(self, work: Sequence[Work], repeat: int = 0) -> list[list[Scored]]:
        """Run the agent with each candidate on each of its tasks, all at once, and return the scores in this order.

        Equal rollouts of a step run once. Raises BudgetSpent, before anything runs, if the rollouts do not fit the
        budget, and TrainingError for a rollout without a reward.
        """
        requests = [await self._requests(texts, rows, repeat) for texts, rows in work]
        flat = list(dict.fromkeys(request for one in requests for request in one))
        new = [request for request in flat if (self.step, request) not in self._known]
        if new:
            if self.step <= self._context.step:
                raise TrainingError(
                    f"step {self.step} of the search ran differently when it was repeated, so the run cannot be "
                    "resumed; start a new run"
                )
            self._budget.check(len(new))
            for request, result in zip(new, await self._context.run_tasks(new), strict=True):
                self._note(request, result)
            self._save()
        return [[self._scored(request) for request in one] for one in requests]

    def forget_results(self) -> None:
        """Free what the rollouts recorded; their scores stay."""
        self._results.clear()

    async def _requests(self, texts: Mapping[str, str], rows: Sequence[TaskRow], repeat: int) -> list[RolloutRequest]:
        version = await self.version(texts)
        return [RolloutRequest(row=one.row, held_out=one.held_out, resources_id=version, repeat=repeat) for one in rows]

    def _note(self, request: RolloutRequest, result: RolloutResult) -> None:
        if result.score is None:
            reason = "it has no reward" if result.failure is None else result.failure.text
            raise TrainingError(f"rollout {result.rollout.rollout_id} cannot be scored: {reason}")
        usage = [
            sum(int(span.attributes.get(name) or 0) for span in result.calls)  # pyright: ignore[reportArgumentType]
            for name in (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS)
        ]
        evaluation = Evaluation(
            row=request.row,
            held_out=request.held_out,
            resources_id=request.resources_id or "",
            repeat=request.repeat,
            step=self.step,
            score=result.score,
            rollout_id=result.rollout.rollout_id,
            input_tokens=usage[0],
            output_tokens=usage[1],
            cost=self._budget.agent_cost(usage[0], usage[1], self._listed_cost(result)),
            dimensions=dict(result.dimensions),
        )
        self._search.evaluations.append(evaluation)
        self._known[self.step, request] = evaluation
        self._results[self.step, request] = result

    def _listed_cost(self, result: RolloutResult) -> float | None:
        costs = [self._context.call_cost(call) for call in result.calls if call.status.code != "error"]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if len(known) == len(costs) else None

    def _scored(self, request: RolloutRequest) -> Scored:
        found = self._known[self.step, request]
        return Scored(
            score=found.score,
            rollout_id=found.rollout_id,
            dimensions=found.dimensions,
            result=self._results.get((self.step, request)),
        )


def _request_of(one: Evaluation) -> RolloutRequest:
    return RolloutRequest(row=one.row, held_out=one.held_out, resources_id=one.resources_id, repeat=one.repeat)

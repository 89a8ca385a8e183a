"""`PromptAlgorithm`: what algorithms that train prompts share, such as the tasks, the record and the budget."""

import logging
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any, ClassVar

import msgspec

from leyden.core.algorithm.base import Algorithm, Context
from leyden.core.algorithm.language_model import LanguageModel, ModelOptions
from leyden.core.algorithm.prompts.budget import Budget, BudgetOptions, BudgetSpent
from leyden.core.algorithm.prompts.components import PromptComponents, Texts
from leyden.core.algorithm.prompts.evaluation import PromptRunner, Scored, TaskRow
from leyden.core.algorithm.prompts.reflection import Reflector
from leyden.core.algorithm.prompts.search import Candidate, Origin, PromptSearch, read_search
from leyden.core.data.run import CANDIDATE_NOTE, PROMPT_NOTE
from leyden.core.errors import PromptError, UsageError

log = logging.getLogger(__name__)

FINALISTS = 2
"""Number of best candidates that are compared again with what is left of the budget."""


class PromptAlgorithmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of every algorithm that trains prompts."""

    components: list[str] = []
    """Names of the prompts that may change, or patterns such as `writer.*`; empty: all."""
    reflection: ModelOptions = ModelOptions()
    """The model that reads rollouts and writes new texts."""
    budget: BudgetOptions = BudgetOptions()
    validation: str | None = None
    """Held-out set by which candidates are selected; None: a part of the training tasks, so that the held-out sets
    measure the result on tasks that the search has not seen."""
    validation_share: float = 0.5
    """Part of the training tasks by which candidates are selected; not used with `validation`."""

    def __post_init__(self) -> None:
        if not 0 < self.validation_share < 1:
            raise UsageError(f"validation_share must be between 0 and 1, not {self.validation_share}")

    def models(self) -> tuple[ModelOptions, ...]:
        """Return the models that the algorithm calls, the reflection model first."""
        return (self.reflection,)


class PromptSession:
    """A session of a search: its tasks, its record, and the operations that end a step."""

    def __init__(self, context: Context, options: PromptAlgorithmOptions, models: Sequence[LanguageModel]) -> None:
        self.context, self.options = context, options
        self.components = PromptComponents(context.resources, options.components)
        self.search: PromptSearch = read_search(context.state)
        self.budget = Budget(options.budget, self.search, reflection_is_priced=all(model.is_priced for model in models))
        self.runner = PromptRunner(context, self.components, self.search, self.budget, self.save)
        self.reflector = Reflector(models, self.search, self.budget, self.save, context.step)
        self.training, self.validation = split_tasks(context, options)
        if not self.search.candidates:
            self.search.candidates.append(Candidate(number=0, texts=self.components.texts))
        if self.search.ended_in > context.step:
            self.search.ended = ""
        # A candidate of a step that was not finished is made again, and what was evaluated there is evaluated again.
        self.search.candidates = [one for one in self.search.candidates if one.step <= context.step]
        for candidate in self.search.candidates:
            if candidate.scored_in > context.step:
                candidate.scores, candidate.scored_in = {}, 0
        if self.search.best >= len(self.search.candidates):
            self.search.best = self.best().number
        self._notes: dict[str, str] = {}
        """Notes of the search that this session logged."""

    @property
    def start(self) -> Candidate:
        """The candidate that the run began with."""
        return self.search.candidates[0]

    @property
    def step(self) -> int:
        """The step that is under way."""
        return self.runner.step

    @step.setter
    def step(self, step: int) -> None:
        self.runner.step = self.reflector.step = step

    @property
    def is_repeated(self) -> bool:
        """Whether an earlier session finished the step that is under way."""
        return self.step <= self.context.step

    def save(self) -> None:
        """Write the search to disk."""
        self.context.save_state(msgspec.to_builtins(self.search))

    async def add(
        self,
        texts: Texts,
        *,
        origin: Origin,
        parents: Sequence[int],
        reason: str = "",
        rollouts: Sequence[str] = (),
        before: float | None = None,
        after: float | None = None,
        rejected: str = "",
    ) -> Candidate:
        """Record a candidate, and return it. In a step that is repeated, the recorded one is returned."""
        known = next((one for one in self._of_step() if one.texts == texts and one.parents == tuple(parents)), None)
        if known is not None:
            return known
        first = self.search.candidates[parents[0]].texts
        candidate = Candidate(
            number=len(self.search.candidates),
            texts=dict(texts),
            resources_id="" if self.problem(texts, first) else await self.runner.version(texts),
            origin=origin,
            parents=tuple(parents),
            changed=tuple(name for name, text in texts.items() if first.get(name) != text),
            step=self.step,
            reason=reason,
            rollouts=tuple(rollouts),
            before=before,
            after=after,
            rejected=rejected,
        )
        self.search.candidates.append(candidate)
        self.context.show(described(candidate))
        return candidate

    def problem(self, texts: Mapping[str, str], parent: Mapping[str, str]) -> str:
        """Return why a candidate cannot run: a text that is empty, or lost or invented a variable; empty if it can."""
        for name, text in texts.items():
            if parent.get(name) == text:
                continue
            if not text.strip():
                return f"{name}: the new text is empty"
            try:
                self.components.check(name, text)
            except PromptError as error:
                return f"{name}: {error}"
        return ""

    def note_scores(self, candidate: Candidate, scored: Sequence[Scored]) -> None:
        """Record the candidate's scores on the validation tasks."""
        candidate.scores = {row.key: one.score for row, one in zip(self.validation, scored, strict=True)}
        candidate.scored_in = self.step

    async def end_step(self, best: Candidate, metrics: Mapping[str, Any]) -> None:
        """Publish the best candidate so far, log the step, and save a checkpoint."""
        self.search.best = best.number
        score = best.score
        spent = self.budget.metrics()
        self.save()
        await self.context.publish(resources=self.components.resources(best.texts))
        reward = {} if score is None else {"reward": score}
        self.context.log({**reward, "best": best.number, **metrics, **spent, "notes": self._new_notes()})
        if self.search.ended:
            self.context.steps = self.context.step
        await self.context.checkpoint()
        self.runner.forget_results()

    async def end_early(self, reason: str, metrics: Mapping[str, Any]) -> None:
        """End the search: compare the best candidates with what is left of the budget, and publish the winner.

        Raises UsageError if the budget does not suffice for the first rollouts.
        """
        if not self.search.evaluations:
            raise UsageError(f"the budget is too small to begin: {reason}")
        self.step = self.context.step + 1
        self.search.ended, self.search.ended_in = reason, self.step
        best = await self._final_comparison()
        self.context.show(f"the search ends: {reason}")
        await self.end_step(best, metrics)

    def best(self) -> Candidate:
        """Return the candidate with the best mean score on the validation tasks; the earliest of several."""
        return next(iter(self._ranked()), self.start)

    async def _final_comparison(self) -> Candidate:
        """Spend the rollouts that are left on the best candidates, in pairs, and return the better one."""
        ranked = self._ranked()[:FINALISTS]
        if not self.budget.rollouts_left or not ranked:
            return self.best()
        totals: dict[int, list[float]] = {one.number: list(one.scores.values()) for one in ranked}
        repeat = 0
        with suppress(BudgetSpent):
            while left := self.budget.rollouts_left:
                repeat += 1
                pairs = [(row, one) for row in self.validation for one in ranked][:left]
                rows = {one.number: [row for row, other in pairs if other is one] for one in ranked}
                work = [(one.texts, rows[one.number]) for one in ranked]
                found = await self.runner.evaluate(work, repeat)
                for one, scored in zip(ranked, found, strict=True):
                    totals[one.number] += [single.score for single in scored]
        return max(ranked, key=lambda one: (fmean(totals[one.number]), -one.number))

    def _ranked(self) -> list[Candidate]:
        """Return the kept candidates with a score on the validation tasks, the best first."""
        scored = [one for one in self.search.candidates if one.score is not None and not one.rejected]
        return sorted(scored, key=lambda one: (-(one.score or 0.0), one.number))

    def _new_notes(self) -> dict[str, str]:
        """Return the notes that changed since the last step: candidates, the best texts, and why the search ended."""
        notes = self._all_notes()
        changed = {name: text for name, text in notes.items() if self._notes.get(name) != text}
        self._notes = notes
        return changed

    def _all_notes(self) -> dict[str, str]:
        candidates = {f"{CANDIDATE_NOTE}{one.number}": to_json(one) for one in self.search.candidates}
        texts = self.search.candidates[self.search.best].texts
        ended = {"ended": self.search.ended} if self.search.ended else {}
        return {**candidates, **{f"{PROMPT_NOTE}{name}": text for name, text in texts.items()}, **ended}

    def _of_step(self) -> list[Candidate]:
        return [one for one in self.search.candidates if one.step == self.step]


class PromptAlgorithm(Algorithm):
    """An algorithm that trains the prompts of an agent, and no weights."""

    needs_policy: ClassVar[bool] = False
    takes_batches: ClassVar[bool] = False
    trains_prompts: ClassVar[bool] = True

    def __init__(self, config: PromptAlgorithmOptions) -> None:
        super().__init__(config)
        self.options = config

    def check_steps(self, steps: int) -> None:
        """Raise UsageError if a library is missing."""
        del steps
        self.check_installed()

    def check_installed(self) -> None:
        """Raise UsageError if a library that the algorithm needs is not installed."""

    def without_held_out(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings without `validation`: a check selects by a part of the training tasks."""
        return {name: value for name, value in given.items() if name != "validation"}

    async def run(self, context: Context) -> None:
        """Search for better prompts until the steps are taken or the budget is spent."""
        await context.restore()
        models: list[LanguageModel] = []
        try:
            models.extend(context.language_model(options) for options in self.options.models())
            session = PromptSession(context, self.options, models)
            if context.step == 0:
                await context.evaluate("before")
            if not session.search.ended and context.step < context.steps:
                await self.search(session)
        finally:
            for model in models:
                await model.close()
        await context.evaluate("after")

    @abstractmethod
    async def search(self, session: PromptSession) -> None:
        """Take the steps of the search, each with `PromptSession.end_step`."""


def split_tasks(context: Context, options: PromptAlgorithmOptions) -> tuple[list[TaskRow], list[TaskRow]]:
    """Return the tasks to learn from, and those by which candidates are selected. No task is in both.

    Raises UsageError if one of them would be empty.
    """
    if options.validation is not None:
        if options.validation not in context.held_out:
            known = ", ".join(context.held_out) or "none"
            raise UsageError(f"validation={options.validation}: the run has no such held-out set; it has {known}")
        tasks = context.held_out[options.validation]
        return (
            [TaskRow(row) for row in range(len(context.tasks))],
            [TaskRow(row, options.validation) for row in range(len(tasks))],
        )
    count = len(context.tasks)
    if count < 2:
        raise UsageError(
            f"{count} training task cannot be divided into tasks to learn from and tasks to select by: give more "
            "tasks, or validation=NAME of a held-out set"
        )
    rows = list(range(count))
    random.Random(context.seed).shuffle(rows)
    share = min(count - 1, max(1, round(count * options.validation_share)))
    return [TaskRow(row) for row in sorted(rows[share:])], [TaskRow(row) for row in sorted(rows[:share])]


def to_json(candidate: Candidate) -> str:
    """Return a candidate as JSON."""
    return msgspec.json.encode(candidate).decode()


def described(candidate: Candidate) -> str:
    """Return one line about a candidate."""
    parents = " and ".join(str(parent) for parent in candidate.parents)
    what = f"candidate {candidate.number} (from {parents}, {', '.join(candidate.changed) or 'unchanged'})"
    scores = ""
    if candidate.before is not None and candidate.after is not None:
        scores = f": {candidate.before:.3f} → {candidate.after:.3f} on the tasks it was made from"
    return f"{what}{scores}" + (f"; rejected: {candidate.rejected}" if candidate.rejected else "")

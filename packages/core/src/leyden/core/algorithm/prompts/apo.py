"""APO: textual gradients and beam search, as in the original Agent Lightning.

The method is that of Pryzant et al., "Automatic Prompt Optimization with 'Gradient Descent' and Beam Search", EMNLP
2023. A step of the run is a round of the beam search.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Unpack

from leyden.core.algorithm.prompts.apo_options import TEMPLATES, APOConfig
from leyden.core.algorithm.prompts.apo_original import OpenAIClient, OriginalOptions, read_original
from leyden.core.algorithm.prompts.apo_templates import FORM, GRADIENT, PROMPT, ROLLOUTS, extracted, filled
from leyden.core.algorithm.prompts.base import PromptAlgorithm, PromptSession
from leyden.core.algorithm.prompts.budget import BudgetSpent
from leyden.core.algorithm.prompts.evaluation import Scored, TaskRow
from leyden.core.algorithm.prompts.examples import make_example, rendered
from leyden.core.algorithm.prompts.proposals import Draft, propose
from leyden.core.algorithm.prompts.search import Candidate
from leyden.core.data.order import rows_of_batch
from leyden.core.data.resources import PromptTemplate
from leyden.core.errors import UsageError

EDIT_MODEL = -1
"""Number of the model that applies edits: the last of those that the algorithm calls."""
BEAMS = "beams"
"""Key of the beams in the algorithm's state: numbers of candidates by the step after which they were the beam."""


class APO(PromptAlgorithm):
    """Improves the prompts of an agent by textual gradients and beam search.

    It takes an `APOConfig`, or what the original Agent Lightning's APO takes: an `AsyncOpenAI` client, whose endpoint
    and key become those of the reflection model, and keywords such as `gradient_model`. The validation dataset of
    `Trainer.fit` then selects the candidates, and `beam_rounds` is the number of steps.
    """

    name = "apo"
    Config = APOConfig

    def __init__(self, given: APOConfig | OpenAIClient | None = None, /, **original: Unpack[OriginalOptions]) -> None:
        if isinstance(given, APOConfig):
            if original:
                raise UsageError(f"APO takes an APOConfig alone, or keywords of the original: {', '.join(original)}")
            super().__init__(given)
        elif given is None and not original:
            super().__init__(APOConfig())
        else:
            found = read_original(given, original)
            super().__init__(found.config)
            self.run_defaults, self.keys = found.run_defaults, found.keys
        assert isinstance(self.config, APOConfig)
        self._config = self.config

    def __class_getitem__(cls, _item: Any) -> "type[APO]":
        """Return the class itself: `APO[TaskType](...)` of the original names the type of its tasks."""
        return cls

    def get_best_prompt(self) -> PromptTemplate:
        """Return the prompt of the kept version, as the original's APO does after `Trainer.fit`.

        Raises UsageError before that, and for a run with several prompts, which are in `kept_prompts`.
        """
        if not self.kept_prompts:
            raise UsageError("there is no best prompt yet: Trainer.fit finds it, and writes it to the run's prompts/")
        if len(self.kept_prompts) > 1:
            raise UsageError(f"the run has several prompts: take one of kept_prompts, {', '.join(self.kept_prompts)}")
        return next(iter(self.kept_prompts.values()))

    def recorded(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with the templates themselves in place of their files."""
        return {**given, **{name: getattr(self._config, name) for name in TEMPLATES if name in given}}

    async def search(self, session: PromptSession) -> None:
        """Search until the rounds are over or the budget is spent."""
        rounds = _Rounds(session, self._config)
        try:
            while session.context.step < session.context.steps:
                await rounds.take()
        except BudgetSpent as spent:
            await session.end_early(str(spent), rounds.metrics())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """A parent and the minibatch from which one new candidate is made."""

    parent: Candidate
    name: str
    """The component that changes."""
    rows: list[TaskRow]


class _Rounds:
    """The rounds of a session."""

    def __init__(self, session: PromptSession, config: APOConfig) -> None:
        self._session, self._config = session, config
        self._gradient_templates, self._edit_templates = config.gradient_templates(), config.edit_templates()

    def metrics(self) -> dict[str, float]:
        """Return the numbers of the step for the run's log."""
        candidates = self._session.search.candidates
        accepted = [one for one in candidates if one.step == self._session.step and not one.rejected]
        return {"candidates": len(candidates), "accepted": len(accepted)}

    async def take(self) -> None:
        """Take the next step: new candidates from the beam, a comparison, and the next beam."""
        session = self._session
        session.step = session.context.step + 1
        if session.step == 1:
            session.start.resources_id = await session.runner.version(session.start.texts)
            if self._config.initial_validation:
                await self._validate(session.start)
        beam = self._beam()
        new = await self._new_candidates(self._branches(beam))
        beam = await self._compared([*beam, *new])
        await self._validate(beam[0])
        beams = {**session.search.own.get(BEAMS, {}), str(session.step): [one.number for one in beam]}
        session.search.own = {BEAMS: beams}
        await session.end_step(session.best(), self.metrics())

    def _beam(self) -> list[Candidate]:
        """Return the beam after the last finished step."""
        known = self._session.search.own.get(BEAMS, {}).get(str(self._session.context.step), [0])
        return [self._session.search.candidates[number] for number in known]

    def _branches(self, beam: Sequence[Candidate]) -> list[_Branch]:
        """Return what the new candidates of the step are made from. It depends on the run's seed and the step alone."""
        session, config = self._session, self._config
        names, training = session.components.names, session.training
        each = config.branch_factor
        branches: list[_Branch] = []
        for index in range(config.beam_width * each):
            before = (session.step - 1) * config.beam_width * each + index
            rows = rows_of_batch(len(training), before, min(config.minibatch, len(training)), session.context.seed)
            branches.append(
                _Branch(
                    parent=beam[index // each % len(beam)],
                    name=names[((session.step - 1) * each + index % each) % len(names)],
                    rows=[training[row] for row in sorted(set(rows))],
                )
            )
        return branches

    # --- New candidates

    async def _new_candidates(self, branches: Sequence[_Branch]) -> list[Candidate]:
        """Run the parents, request a textual gradient and an edit for each branch, and record the candidates."""
        session = self._session
        ran = await session.runner.evaluate([(one.parent.texts, one.rows) for one in branches])
        shown = [self._shown(scored) for scored in ran]
        gradients = await self._gradients(branches, shown)
        drafts = [
            Draft(name=branch.name, texts=branch.parent.texts, request=self._edit_request(number, branch, gradient))
            for number, (branch, gradient) in enumerate(zip(branches, gradients, strict=True))
        ]
        proposals = await propose(session, drafts, extracted, form=FORM, model=EDIT_MODEL)
        found: list[Candidate] = []
        for branch, scored, examples, gradient, proposal in zip(
            branches, ran, shown, gradients, proposals, strict=True
        ):
            if proposal is None:
                continue
            texts = {**branch.parent.texts, branch.name: proposal.text}
            candidate = await session.add(
                texts,
                origin="edit",
                parents=[branch.parent.number],
                reason=gradient or "",
                rollouts=[one.rollout_id for one in examples],
                before=fmean(one.score for one in scored),
                rejected=proposal.problem or self._known(texts, branch.parent),
            )
            if not candidate.rejected and candidate not in found:
                found.append(candidate)
        return found

    def _known(self, texts: dict[str, str], parent: Candidate) -> str:
        """Return which earlier candidate has the same texts; empty if there is none, except this step's of `parent`."""
        for one in self._session.search.candidates:
            is_same_edit = one.step == self._session.step and one.parents == (parent.number,)
            if one.texts == texts and one.resources_id and not is_same_edit:
                return f"its texts are those of candidate {one.number}"
        return ""

    def _shown(self, scored: Sequence[Scored]) -> list[Scored]:
        """Return the rollouts that the reflection model reads: the worst, then the best of the others."""
        ranked = sorted(scored, key=lambda one: one.score)
        worst, others = ranked[: self._config.worst], ranked[self._config.worst :]
        return [*worst, *others[len(others) - min(self._config.best, len(others)) :]]

    async def _gradients(self, branches: Sequence[_Branch], shown: Sequence[Sequence[Scored]]) -> list[str | None]:
        """Return the textual gradient of each branch; None where there is nothing to improve, or no answer."""
        perfect = self._config.perfect_score
        requests = [
            None
            if perfect is not None and all(one.score >= perfect for one in examples)
            else [{"role": "user", "content": self._gradient_request(number, branch, examples)}]
            for number, (branch, examples) in enumerate(zip(branches, shown, strict=True))
        ]
        return await self._session.reflector.complete(requests)

    def _gradient_request(self, number: int, branch: _Branch, shown: Sequence[Scored]) -> str:
        component = self._session.components.component(branch.name)
        examples = [
            f"### Rollout {index}\n\n{rendered(make_example(one.result, branch.name, component), level=4)}"
            for index, one in enumerate(shown, 1)
            if one.result is not None
        ]
        template = self._gradient_templates[number % len(self._gradient_templates)]
        return self._request(template, branch, {ROLLOUTS: "\n\n".join(examples)})

    def _edit_request(self, number: int, branch: _Branch, gradient: str | None) -> str | None:
        if gradient is None:
            return None
        return self._request(self._edit_templates[number % len(self._edit_templates)], branch, {GRADIENT: gradient})

    def _request(self, template: str, branch: _Branch, values: dict[str, str]) -> str:
        text = filled(template, {PROMPT: branch.parent.texts[branch.name], **values})
        return f"{text}\n\nAbout the text: {self._session.components.description(branch.name)}"

    # --- Comparison

    async def _compared(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Compare the candidates on the same validation tasks, and return the next beam, the best one first.

        A candidate that ran on all validation tasks in an earlier step keeps those scores.
        """
        session, config = self._session, self._config
        count = len(session.validation)
        rows = session.validation
        if config.validation_batch < count:
            numbers = rows_of_batch(count, session.step - 1, config.validation_batch, session.context.seed)
            rows = [session.validation[number] for number in sorted(set(numbers))]
        todo = [one for one in candidates if one.score is None]
        if len(todo) == len(candidates) == 1:
            return list(candidates)
        found = await session.runner.evaluate([(one.texts, rows) for one in todo])
        scores = {one.number: fmean(one.scores[row.key] for row in rows) for one in candidates if one.score is not None}
        for candidate, scored in zip(todo, found, strict=True):
            scores[candidate.number] = fmean(one.score for one in scored)
            if len(rows) == count:
                session.note_scores(candidate, scored)
        ranked = sorted(candidates, key=lambda one: (-scores[one.number], one.number))
        for one in ranked[config.beam_width :]:
            if one.step == session.step:
                one.rejected = f"it is not among the {config.beam_width} best of its round"
        beam = ranked[: config.beam_width]
        described = ", ".join(f"candidate {one.number} ({scores[one.number]:.3f})" for one in beam)
        session.context.show(f"round {session.step}: {described}")
        return beam

    async def _validate(self, candidate: Candidate) -> None:
        """Run a candidate on all validation tasks, unless it has been."""
        if candidate.score is None:
            session = self._session
            (scored,) = await session.runner.evaluate([(candidate.texts, session.validation)])
            session.note_scores(candidate, scored)

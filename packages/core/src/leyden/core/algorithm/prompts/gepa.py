"""GEPA: reflective evolution of prompts with a Pareto front, by the library `gepa`.

The library selects parents, minibatches and merges, and accepts candidates (Agrawal et al., "GEPA: Reflective Prompt
Evolution Can Outperform Reinforcement Learning", 2025). Leyden runs the agents, all of a batch at once, calls the
reflection model, counts the budget and keeps the record. A resumed run repeats the library's search from its beginning,
with the recorded evaluations and answers, so it makes the same decisions and runs nothing again.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

import msgspec

from leyden.core.algorithm.prompts.base import PromptAlgorithm, PromptAlgorithmOptions, PromptSession
from leyden.core.algorithm.prompts.budget import BudgetSpent
from leyden.core.algorithm.prompts.evaluation import Scored, TaskRow
from leyden.core.algorithm.prompts.examples import make_example
from leyden.core.algorithm.prompts.proposals import Draft, Proposal, propose
from leyden.core.errors import UsageError

R = TypeVar("R")

log = logging.getLogger(__name__)

EXTRA = "pip install 'leyden-core[gepa]'"
"""Command that installs the extra."""
CURRENT, EXAMPLES = "<curr_param>", "<side_info>"
"""Places of the current text and of the examples in a reflection template, as in the library's own."""


class GEPAConfig(PromptAlgorithmOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of GEPA. A step of the run is an iteration of the search."""

    minibatch: int = 3
    """Training tasks on which a candidate's parent and the candidate are compared."""
    proposals: int = 1
    """Candidates of an iteration, each from a parent and a minibatch of its own; all of them run at once."""
    selection: Literal["pareto", "current_best", "epsilon_greedy", "top_k_pareto"] = "pareto"
    """How parents are selected."""
    frontier: Literal["instance", "objective", "hybrid", "cartesian"] = "instance"
    """Of what the Pareto front is the best: of each validation task, of each reward dimension, of both, or of each pair
    of them."""
    component_selection: Literal["round_robin", "all"] = "round_robin"
    """Whether a candidate changes one component, each in turn, or all of them."""
    merges: int = 5
    """Largest number of candidates that are merged from two others; 0: none."""
    acceptance: Literal["strict_improvement", "improvement_or_equal"] = "strict_improvement"
    """When a candidate is evaluated on the validation tasks, by its score on the minibatch."""
    perfect_score: float = 1.0
    """Score that cannot be exceeded. A parent whose minibatch has it throughout is not changed."""
    reflection_template: str | None = None
    """Request to the reflection model, with `<curr_param>` for the current text and `<side_info>` for the examples;
    None: the library's own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, lowest in (("minibatch", 1), ("proposals", 1), ("merges", 0)):
            if getattr(self, name) < lowest:
                raise UsageError(f"{name} must be at least {lowest}, not {getattr(self, name)}")
        template = self.reflection_template
        if template is not None and not (CURRENT in template and EXAMPLES in template):
            raise UsageError(f"reflection_template must have {CURRENT} and {EXAMPLES}")


class GEPA(PromptAlgorithm):
    """Evolves the prompts of an agent by reflection on its rollouts."""

    name = "gepa"
    Config = GEPAConfig

    def __init__(self, config: GEPAConfig) -> None:
        super().__init__(config)
        self._config = config

    def check_installed(self) -> None:
        """Raise UsageError if the library is not installed."""
        if find_spec("gepa") is None:
            raise UsageError(f"the algorithm gepa needs the library gepa, which is not installed: {EXTRA}")

    async def search(self, session: PromptSession) -> None:
        """Run the library in a thread, which requests rollouts and reflections from this event loop."""
        optimizer = _Optimizer(session, self._config)
        running = asyncio.ensure_future(asyncio.to_thread(optimizer.run))
        try:
            await asyncio.shield(running)
        finally:
            optimizer.close()
            await asyncio.wait([running])
        if isinstance(optimizer.failure, BudgetSpent):
            await session.end_early(str(optimizer.failure), {})
        elif optimizer.failure is not None:
            raise optimizer.failure


class _Optimizer:
    """One call of the library's `optimize`, with its callbacks. All methods but `close` run in the library's thread."""

    propose_new_texts = None  # read by the library: the reflection strategy proposes texts

    def __init__(self, session: PromptSession, config: GEPAConfig) -> None:
        self._session, self._config = session, config
        self._loop = asyncio.get_running_loop()
        self._pending: Any = None
        self._closed = False
        self._numbers: dict[int, int] = {}
        """Number of the candidate in the record, by the library's index."""
        self._merged: Mapping[str, str] = {}
        self._warned = False
        self.failure: Exception | None = None
        """Why the search stopped before its steps were taken."""

    def run(self) -> None:
        """Search until the steps are taken or something fails; `failure` then has the reason."""
        session, config = self._session, self._config
        sampling: Any = import_module("gepa.strategies.proposal_sampling")
        optimize: Any = import_module("gepa.api").optimize
        try:
            optimize(
                seed_candidate=dict(session.start.texts),
                trainset=_Tasks(session.training),
                valset=_Tasks(session.validation),
                adapter=self,
                reflection_strategy=_Reflection(self),
                candidate_selection_strategy=config.selection,
                frontier_type=config.frontier,
                perfect_score=config.perfect_score,
                reflection_minibatch_size=min(config.minibatch, len(session.training)),
                module_selector=config.component_selection,
                sampling_strategy=sampling.IndependentSampling(config.proposals) if config.proposals > 1 else None,
                acceptance_criterion=_Acceptance(self, strict=config.acceptance == "strict_improvement"),
                use_merge=config.merges > 0,
                max_merge_invocations=config.merges,
                stop_callbacks=self._must_stop,
                callbacks=[self],
                logger=_Log(),
                cache_evaluation=True,  # tasks have ids of their own in both sets, so no entry is shared
                seed=session.context.seed,
                track_best_outputs=False,
                raise_on_exception=True,
            )
        except Exception as error:
            if self.failure is None:
                self.failure = error

    def close(self) -> None:
        """Stop the search: the operation that the thread waits for is cancelled, and further ones are refused."""
        self._closed = True
        if self._pending is not None:
            self._pending.cancel()

    def wait(self, operation: Coroutine[Any, Any, R]) -> R:
        """Return the result of an operation on the event loop. Its exception is also kept as `failure`."""
        if self._closed or self.failure is not None:
            operation.close()
            raise self.failure or RuntimeError("the search was stopped")
        self._pending = asyncio.run_coroutine_threadsafe(operation, self._loop)
        try:
            return self._pending.result()
        except BaseException as error:
            if isinstance(error, Exception) and self.failure is None:
                self.failure = error
            raise
        finally:
            self._pending = None

    def _must_stop(self, state: Any) -> bool:
        context = self._session.context
        return self.failure is not None or self._closed or max(state.i + 1, context.step) >= context.steps

    # --- Adapter: evaluates candidates

    def evaluate(self, batch: Sequence[TaskRow], candidate: Mapping[str, str], capture_traces: bool = False) -> Any:
        """Return the library's evaluation of one candidate."""
        del capture_traces
        return self.batch_evaluate([(candidate, batch)])[0]

    def batch_evaluate(self, items: Sequence[tuple[Mapping[str, str], Sequence[TaskRow]]]) -> list[Any]:
        """Run all candidates on their tasks at once, and return the library's evaluations."""
        found = self.wait(self._session.runner.evaluate(items))
        return [self._batch(scored) for scored in found]

    def make_reflective_dataset(
        self, candidate: Mapping[str, str], eval_batch: Any, components_to_update: Sequence[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the examples of each component; empty ones in a step that is repeated from the record."""
        del candidate
        components = self._session.components
        return {
            name: [
                {} if one.result is None else make_example(one.result, name, components.component(name))
                for one in eval_batch.trajectories
            ]
            for name in components_to_update
        }

    def _batch(self, scored: Sequence[Scored]) -> Any:
        adapter: Any = import_module("gepa.core.adapter")
        dimensions = [dict(one.dimensions) for one in scored]
        if self._config.frontier != "instance" and not all(dimensions):
            raise UsageError(f"frontier={self._config.frontier} needs rewards that are dicts of named dimensions")
        best = max((one.score for one in scored), default=0.0)
        if best > self._config.perfect_score and not self._warned:
            self._warned = True
            limit = self._config.perfect_score
            log.warning(
                "a rollout scored %g, above perfect_score=%g: parents with that score are not changed", best, limit
            )
        return adapter.EvaluationBatch(
            outputs=[one.rollout_id for one in scored],
            scores=[one.score for one in scored],
            trajectories=list(scored),
            objective_scores=dimensions if all(dimensions) else None,
        )

    # --- Reflection

    async def propose(self, jobs: Sequence["_Job"]) -> list[tuple[dict[str, str], dict[str, str], dict[str, str]]]:
        """Return for each job the new texts, the requests and the answers, by component."""
        asked = [(number, name) for number, job in enumerate(jobs) for name in job.examples]
        drafts = [
            Draft(name=name, texts=jobs[number].candidate, request=self._request(jobs[number], name))
            for number, name in asked
        ]
        proposals = await propose(self._session, drafts, _extracted, form="within ``` blocks")
        found: list[tuple[dict[str, str], dict[str, str], dict[str, str]]] = [({}, {}, {}) for _ in jobs]
        for (number, name), draft, proposal in zip(asked, drafts, proposals, strict=True):
            if proposal is None:
                continue
            if proposal.problem:
                await self._reject(jobs[number], name, proposal)
                continue
            texts, prompts, raw = found[number]
            texts[name], prompts[name], raw[name] = proposal.text, draft.request or "", proposal.answer
        return found

    def _request(self, job: "_Job", name: str) -> str:
        proposal: Any = import_module("gepa.strategies.instruction_proposal")
        signature = proposal.InstructionProposalSignature
        text: str = signature.prompt_renderer(
            {
                "current_instruction_doc": job.candidate[name],
                "dataset_with_feedback": job.examples[name],
                "prompt_template": self._config.reflection_template,
            }
        )
        return f"{text}\n\n{self._session.components.description(name)}"

    async def _reject(self, job: "_Job", name: str, proposal: Proposal) -> None:
        texts = {**job.candidate, name: proposal.text}
        parent = next(
            (one for one in self._session.search.candidates if one.texts == job.candidate), self._session.start
        )
        await self._session.add(texts, origin="reflection", parents=[parent.number], rejected=proposal.problem)

    # --- Callbacks of the library

    def on_iteration_start(self, event: Mapping[str, Any]) -> None:
        """Note which step is under way."""
        self._session.step = event["iteration"]

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        """Record the scores of a candidate on the validation tasks."""
        self.wait(self._note_validation(event))

    def on_merge_attempted(self, event: Mapping[str, Any]) -> None:
        """Remember the texts of a merged candidate."""
        self._merged = event["merged_candidate"]

    def on_merge_rejected(self, event: Mapping[str, Any]) -> None:
        """Record a merged candidate that is worse than its parents."""
        self.wait(
            self._session.add(
                dict(self._merged),
                origin="merge",
                parents=[self._numbers[parent] for parent in event["parent_ids"]],
                rejected=str(event["reason"]),
            )
        )

    def on_iteration_end(self, event: Mapping[str, Any]) -> None:
        """End the step, unless an earlier session did, or the iteration failed."""
        if self.failure is None and not self._session.is_repeated:
            metrics = {"candidates": len(self._session.search.candidates), "accepted": int(event["proposal_accepted"])}
            self.wait(self._session.end_step(self._session.best(), metrics))

    async def _note_validation(self, event: Mapping[str, Any]) -> None:
        session, index = self._session, int(event["candidate_idx"])
        texts: dict[str, str] = dict(event["candidate"])
        if index == 0:
            candidate = session.start
            candidate.resources_id = await session.runner.version(texts)
        else:
            parents = [self._numbers[parent] for parent in event["parent_ids"]]
            origin = "merge" if len(parents) > 1 else "reflection"
            candidate = await session.add(texts, origin=origin, parents=parents)
        self._numbers[index] = candidate.number
        candidate.scores, candidate.scored_in = dict(event["scores_by_val_id"]), session.step

    def note_proposal(self, proposal: Any, *, accepted: bool) -> None:
        """Record a candidate that was compared with its parent."""
        before, after = list(proposal.subsample_scores_before), list(proposal.subsample_scores_after)
        parents = [self._numbers[parent] for parent in proposal.parent_program_ids]
        trajectories: Sequence[Scored] = (proposal.eval_before and proposal.eval_before.trajectories) or ()
        self.wait(
            self._session.add(
                dict(proposal.candidate),
                origin="reflection",
                parents=parents,
                rollouts=[one.rollout_id for one in trajectories],
                before=sum(before) / len(before),
                after=sum(after) / len(after),
                rejected="" if accepted else "it is not better than its parent on the tasks it was made from",
            )
        )


class _Job(msgspec.Struct, frozen=True):
    """A candidate that the reflection model changes, with the examples of each component."""

    candidate: dict[str, str]
    examples: dict[str, list[dict[str, Any]]]


class _Reflection:
    """Reflection strategy of the library: requests go to the run's reflection model, all at once."""

    def __init__(self, optimizer: _Optimizer) -> None:
        self._optimizer = optimizer

    def reflect(self, candidate: Any, reflective_dataset: Any, components_to_update: Any) -> tuple[Any, Any]:
        """Propose new texts for one candidate."""
        return self.reflect_many([(candidate, reflective_dataset, components_to_update)])[0]

    def reflect_many(self, jobs: Sequence[tuple[Any, Any, Any]]) -> list[tuple[Any, Any]]:
        """Propose new texts for several candidates."""
        module: Any = import_module("gepa.proposer.reflective_mutation.reflection_lm")
        own = [
            _Job(dict(candidate), {name: list(dataset[name]) for name in names}) for candidate, dataset, names in jobs
        ]
        found = self._optimizer.wait(self._optimizer.propose(own))
        return [(module.ReflectionProposal(texts, prompts, raw), self) for texts, prompts, raw in found]


class _Acceptance:
    """Acceptance criterion of the library, which also records every proposal."""

    def __init__(self, optimizer: _Optimizer, *, strict: bool) -> None:
        self._optimizer, self._strict = optimizer, strict

    def should_accept(self, proposal: Any, state: Any) -> bool:
        """Whether the candidate is better than its parent on the minibatch, or with `strict` false as good."""
        del state
        before, after = sum(proposal.subsample_scores_before), sum(proposal.subsample_scores_after)
        accepted = after > before or (not self._strict and after == before)
        self._optimizer.note_proposal(proposal, accepted=accepted)
        return accepted


class _Tasks:
    """Data loader of the library. Its ids name the set and the row, so that no two tasks share one."""

    def __init__(self, rows: Sequence[TaskRow]) -> None:
        self._rows = {row.key: row for row in rows}

    def all_ids(self) -> list[str]:
        """Return the ids of the tasks."""
        return list(self._rows)

    def fetch(self, ids: Sequence[str]) -> list[TaskRow]:
        """Return the tasks with these ids."""
        return [self._rows[one] for one in ids]

    def __len__(self) -> int:
        return len(self._rows)


class _Log:
    """Logger of the library."""

    def log(self, message: str) -> None:
        """Write a line to Leyden's log."""
        log.debug("%s", message)


def _extracted(answer: str) -> str:
    """Return the new text in an answer of the reflection model."""
    proposal: Any = import_module("gepa.strategies.instruction_proposal")
    return proposal.InstructionProposalSignature.output_extractor(answer.strip())["new_instruction"]

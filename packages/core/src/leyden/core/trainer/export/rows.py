"""Export rows: converts rollouts, spans, transitions and run records into flat rows.

Data without a fixed structure is JSON text: tasks, metadata, remaining span attributes. All rows of a table therefore
have the same columns. Token ids and log-probabilities are lists of numbers.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import msgspec

from leyden.core.algorithm.prompts.search import Candidate
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import LogProbs, TokenIds, unpack_ids, unpack_log_probs
from leyden.core.data.production import CAPTURE, COMPLETE, INCOMPLETE
from leyden.core.data.reasons import NOT_RECORDED_WHY
from leyden.core.data.rollout import Attempt, AttemptedRollout, Rollout
from leyden.core.data.run import CANDIDATE_NOTE, Run
from leyden.core.data.span import Attributes, Span
from leyden.core.data.transition import Trajectory
from leyden.core.store.base import LightningStore
from leyden.core.trainer.why.trained_or_reason import CallExplanation, RolloutExplanation
from leyden.core.trajectory.assemble import assemble, last_reward
from leyden.core.trajectory.select import Selector

Row = Mapping[str, Any]
Kind = Literal["text", "integer", "number", "ids", "numbers"]
"""Type of a column. `ids` are lists of 32-bit integers, `numbers` lists of 32-bit floats."""
Table = Literal["rollouts", "spans", "transitions", "candidates", "runs", "metrics", "policy_versions"]

COLUMNS: dict[Table, dict[str, Kind]] = {
    "rollouts": {
        "rollout_id": "text",
        "status": "text",
        "mode": "text",
        "input": "text",
        "metadata": "text",
        "queue": "text",
        "start_time": "number",
        "end_time": "number",
        "resources_id": "text",
        "resources_version": "integer",
        "attempts": "integer",
        "attempt_id": "text",
        "attempt_status": "text",
        "worker_id": "text",
        "capture": "text",
        "reward": "number",
        "reward_dimensions": "text",
        "trained_in": "ids",
        "not_trained": "text",
        "not_trained_detail": "text",
        "remarks": "text",
    },
    "spans": {
        "rollout_id": "text",
        "attempt_id": "text",
        "attempt": "integer",
        "attempt_status": "text",
        "capture": "text",
        "sequence_id": "integer",
        "trace_id": "text",
        "span_id": "text",
        "parent_id": "text",
        "name": "text",
        "start_time": "number",
        "end_time": "number",
        "status": "text",
        "status_description": "text",
        "agent": "text",
        "node": "text",
        "policy": "text",
        "policy_version": "integer",
        "prompt_ids": "ids",
        "response_ids": "ids",
        "logprobs": "numbers",
        "sampling_logprobs": "numbers",
        "reward": "number",
        "trained_in": "ids",
        "not_trained": "text",
        "attributes": "text",
        "events": "text",
        "links": "text",
        "resource": "text",
    },
    "transitions": {
        "rollout_id": "text",
        "rollout_status": "text",
        "mode": "text",
        "input": "text",
        "attempt_id": "text",
        "attempt": "integer",
        "attempt_status": "text",
        "capture": "text",
        "turn": "integer",
        "span_id": "text",
        "call_id": "text",
        "agent": "text",
        "node": "text",
        "policy": "text",
        "policy_version": "integer",
        "policy_versions": "ids",
        "temperature": "number",
        "prompt_ids": "ids",
        "response_ids": "ids",
        "logprobs": "numbers",
        "finish_reason": "text",
        "input_messages": "text",
        "output_messages": "text",
        "reward": "number",
        "reward_dimensions": "text",
        "trained_in": "ids",
        "not_trained": "text",
    },
    "candidates": {
        "run_id": "text",
        "number": "integer",
        "resources_id": "text",
        "origin": "text",
        "parents": "ids",
        "step": "integer",
        "changed": "text",
        "texts": "text",
        "reason": "text",
        "rollouts": "text",
        "before": "number",
        "after": "number",
        "score": "number",
        "scores": "text",
        "rejected": "text",
        "best": "integer",
    },
    "runs": {
        "run_id": "text",
        "name": "text",
        "experiment": "text",
        "status": "text",
        "config": "text",
        "metadata": "text",
        "start_time": "number",
        "end_time": "number",
        "update_time": "number",
    },
    "metrics": {
        "run_id": "text",
        "step": "integer",
        "time": "number",
        "name": "text",
        "value": "number",
        "note": "text",
    },
    "policy_versions": {
        "run_id": "text",
        "policy": "text",
        "version": "integer",
        "parent": "integer",
        "path": "text",
        "note": "text",
        "metrics": "text",
        "metadata": "text",
        "create_time": "number",
        "update_time": "number",
    },
}
"""Columns of every table, with their types. Any value except an id may be missing."""

_OWN_COLUMNS = frozenset(
    {
        semconv.AGENT_NAME,
        semconv.NODE,
        semconv.POLICY,
        semconv.POLICY_VERSION,
        semconv.PROMPT_IDS,
        semconv.RESPONSE_IDS,
        semconv.RESPONSE_LOGPROBS,
        semconv.SAMPLING_LOGPROBS,
        semconv.REWARD_VALUE,
    }
)
"""Attributes that the column `attributes` omits, because they have columns of their own."""
_ALL = Selector()


@dataclass(frozen=True, kw_only=True)
class RolloutOutcome:
    """Rollout with its attempts, spans and outcome."""

    rollout: Rollout
    attempts: Sequence[Attempt]
    spans: Sequence[Span] = field(default_factory=list[Span])
    """Spans in order: all of them, or only the rewards if only the table `rollouts` is exported."""
    explanation: RolloutExplanation | None = None
    """Outcome of the rollout and its calls; None if unknown."""

    def spans_of(self, attempt: Attempt) -> list[Span]:
        """Return the spans of one attempt."""
        return [span for span in self.spans if span.attempt_id == attempt.attempt_id]

    def explain(self, span: Span) -> Row:
        """Return the columns with the outcome of a call; their values are None for other spans."""
        found = self.calls.get(span.span_id)
        return {"trained_in": _steps(found), "not_trained": None if found is None else found.reason}

    @cached_property
    def trajectories(self) -> Sequence[tuple[Attempt, Trajectory]]:
        """Each attempt with its trajectory, in order."""
        return [(one, assemble(self.rollout, one, self.spans_of(one), _ALL)) for one in self.attempts]

    @property
    def left_out(self) -> Iterable[str]:
        """The reason of each recorded call that is no transition."""
        return chain.from_iterable(trajectory.untrained.values() for _, trajectory in self.trajectories)

    @cached_property
    def calls(self) -> Mapping[str, CallExplanation]:
        """Outcome of each call, by the id of its span."""
        return {} if self.explanation is None else {call.span_id: call for call in self.explanation.calls}


def rollout_rows(outcome: RolloutOutcome) -> Iterable[Row]:
    """Yield one row: the rollout with its latest attempt and that attempt's reward."""
    rollout = outcome.rollout
    latest = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    reward, dimensions = last_reward(outcome.spans_of(latest)) if latest is not None else (None, {})
    yield {
        "rollout_id": rollout.rollout_id,
        "status": rollout.status,
        "mode": rollout.mode,
        "input": _json(rollout.input),
        "metadata": _json(rollout.metadata),
        "queue": rollout.queue,
        "start_time": rollout.start_time,
        "end_time": rollout.end_time,
        "resources_id": rollout.resources_id,
        "resources_version": rollout.resources_version,
        "attempts": len(outcome.attempts),
        "attempt_id": None if latest is None else latest.attempt_id,
        "attempt_status": None if latest is None else latest.status,
        "worker_id": None if latest is None else latest.worker_id,
        "capture": None if latest is None else captured(latest),
        "reward": reward,
        "reward_dimensions": _json(dimensions),
        "trained_in": _steps(outcome.explanation),
        "not_trained": None if outcome.explanation is None else outcome.explanation.reason,
        "not_trained_detail": None if outcome.explanation is None else outcome.explanation.detail or None,
        "remarks": _json([] if outcome.explanation is None else outcome.explanation.all_remarks()),
    }


def span_rows(outcome: RolloutOutcome) -> Iterable[Row]:
    """Yield a row for each span of every attempt."""
    attempts = {attempt.attempt_id: attempt for attempt in outcome.attempts}
    for span in outcome.spans:
        attempt, attributes = attempts[span.attempt_id], span.attributes
        left = {name: value for name, value in attributes.items() if name not in _OWN_COLUMNS}
        yield {
            "rollout_id": span.rollout_id,
            "attempt_id": span.attempt_id,
            "attempt": attempt.sequence_id,
            "attempt_status": attempt.status,
            "capture": captured(attempt),
            "sequence_id": span.sequence_id,
            "trace_id": span.trace_id,
            "span_id": span.span_id,
            "parent_id": span.parent_id,
            "name": span.name,
            "start_time": span.start_time,
            "end_time": span.end_time,
            "status": span.status.code,
            "status_description": span.status.description,
            "agent": span.text(semconv.AGENT_NAME),
            "node": span.text(semconv.NODE),
            "policy": span.text(semconv.POLICY),
            "policy_version": _number(attributes, semconv.POLICY_VERSION, int),
            "prompt_ids": _ids(attributes, semconv.PROMPT_IDS),
            "response_ids": _ids(attributes, semconv.RESPONSE_IDS),
            "logprobs": _log_probs(attributes, semconv.RESPONSE_LOGPROBS),
            "sampling_logprobs": _log_probs(attributes, semconv.SAMPLING_LOGPROBS),
            "reward": _number(attributes, semconv.REWARD_VALUE, float),
            **outcome.explain(span),
            "attributes": _json(left),
            "events": _json(span.events),
            "links": _json(span.links),
            "resource": _json(span.resource),
        }


def transition_rows(outcome: RolloutOutcome) -> Iterable[Row]:
    """Yield a row for each trainable call of every attempt, in the order they were made."""
    rollout = outcome.rollout
    for attempt, trajectory in outcome.trajectories:
        by_id = {span.span_id: span for span in outcome.spans_of(attempt)}
        for turn, call in enumerate(trajectory.transitions):
            span = by_id[call.span_id]
            yield {
                "rollout_id": rollout.rollout_id,
                "rollout_status": rollout.status,
                "mode": rollout.mode,
                "input": _json(rollout.input),
                "attempt_id": attempt.attempt_id,
                "attempt": attempt.sequence_id,
                "attempt_status": attempt.status,
                "capture": captured(attempt),
                "turn": turn,
                "span_id": call.span_id,
                "call_id": call.call_id,
                "agent": call.agent,
                "node": call.node,
                "policy": call.policy,
                "policy_version": call.version,
                "policy_versions": [number for pair in call.versions for number in pair],
                "temperature": call.temperature,
                "prompt_ids": call.prompt_ids,
                "response_ids": call.response_ids,
                "logprobs": call.logprobs,
                "finish_reason": call.finish_reason,
                "input_messages": span.text(semconv.INPUT_MESSAGES),
                "output_messages": span.text(semconv.OUTPUT_MESSAGES),
                "reward": trajectory.reward,
                "reward_dimensions": _json(trajectory.dimensions),
                **outcome.explain(span),
            }


ROWS: Mapping[Table, Callable[[RolloutOutcome], Iterable[Row]]] = {
    "rollouts": rollout_rows,
    "spans": span_rows,
    "transitions": transition_rows,
}
"""Functions that make the rows of the tables about rollouts."""


def captured(attempt: Attempt) -> str | None:
    """Return whether production capture recorded every model call of `attempt`: complete or incomplete.

    None for an attempt of another kind, or if its process ended before it could report.
    """
    mark = attempt.metadata.get(CAPTURE)
    return mark if mark in (COMPLETE, INCOMPLETE) else None


def _steps(found: RolloutExplanation | CallExplanation | None) -> list[int] | None:
    """Return the steps that learned from a rollout or call; None if that is not recorded, or the span is no call."""
    if found is None or found.reason == NOT_RECORDED_WHY:
        return None
    return list(dict.fromkeys(step.step for step in found.steps))


def _json(value: object) -> str:
    """Encode `value` as JSON text; bytes become base64."""
    return msgspec.json.encode(value).decode()


def _number(attributes: Attributes, name: str, kind: type[int] | type[float]) -> int | float | None:
    value = attributes.get(name)
    return kind(value) if isinstance(value, int | float) else None


def _ids(attributes: Attributes, name: str) -> "TokenIds | None":
    """Return the packed ids without a copy; None if they are missing or not packed."""
    value = attributes.get(name)
    return unpack_ids(value) if isinstance(value, bytes) and len(value) % 4 == 0 else None


def _log_probs(attributes: Attributes, name: str) -> "LogProbs | None":
    value = attributes.get(name)
    return unpack_log_probs(value) if isinstance(value, bytes) and len(value) % 4 == 0 else None


RECORDS: tuple[Table, ...] = ("runs", "metrics", "policy_versions", "candidates")
"""Tables about the runs in a store, as opposed to its rollouts."""
PAGE = 1000
"""Number of rows per query."""


async def record_rows(store: LightningStore, table: Table, run_id: str | None = None) -> AsyncGenerator[Row]:
    """Yield every row of one table of `RECORDS`, of all runs or of one: runs in the order they were added."""
    if table == "policy_versions":
        async for row in _version_rows(store, run_id):
            yield row
        return
    if table == "candidates":
        async for row in _candidate_rows(store, run_id):
            yield row
        return
    async for run in _runs(store, run_id):
        if table == "runs":
            yield {**msgspec.structs.asdict(run), "config": _json(run.config), "metadata": _json(run.metadata)}
        else:
            async for row in _metrics_rows(store, run):
                yield row


async def has_candidates(store: LightningStore, run_id: str | None = None) -> bool:
    """Whether a run in the store, or this one, searched for prompts."""
    async for _ in _candidate_rows(store, run_id):
        return True
    return False


async def _runs(store: LightningStore, run_id: str | None) -> AsyncGenerator[Run]:
    """Yield the runs of a store, or one of them."""
    only, offset = None if run_id is None else [run_id], 0
    while page := (await store.query_runs(run_id_in=only, limit=PAGE, offset=offset)).complete().items:
        for run in page:
            yield run
        offset += len(page)


async def _candidate_rows(store: LightningStore, run_id: str | None) -> AsyncGenerator[Row]:
    """Yield a row for each candidate of each search for prompts, from the last note about it."""
    async for run in _runs(store, run_id):
        if run.config.get("endpoint") is not None:  # only runs without a policy search for prompts
            for row in await _candidates_of(store, run):
                yield row


async def _candidates_of(store: LightningStore, run: Run) -> list[Row]:
    found: dict[int, Candidate] = {}
    best, offset = 0, 0
    while page := (await store.query_metrics(run.run_id, limit=PAGE, offset=offset)).items:
        for step in page:
            best = int(step.values.get("best", best))
            for name, note in step.notes.items():
                if name.startswith(CANDIDATE_NOTE):
                    candidate = msgspec.json.decode(note, type=Candidate)
                    found[candidate.number] = candidate
        offset += len(page)
    return [_candidate_row(run, one, is_best=one.number == best) for _, one in sorted(found.items())]


def _candidate_row(run: Run, one: Candidate, *, is_best: bool) -> Row:
    return {
        "run_id": run.run_id,
        "number": one.number,
        "resources_id": one.resources_id or None,
        "origin": one.origin,
        "parents": list(one.parents),
        "step": one.step,
        "changed": _json(one.changed),
        "texts": _json(one.texts),
        "reason": one.reason or None,
        "rollouts": _json(one.rollouts),
        "before": one.before,
        "after": one.after,
        "score": one.score,
        "scores": _json(one.scores),
        "rejected": one.rejected or None,
        "best": int(is_best),
    }


async def _metrics_rows(store: LightningStore, run: Run) -> AsyncGenerator[Row]:
    """Yield a row for each number and each note of each step."""
    offset = 0
    while page := (await store.query_metrics(run.run_id, limit=PAGE, offset=offset)).items:
        for found in page:
            at = {"run_id": run.run_id, "step": found.step, "time": found.time}
            for name, value in found.values.items():
                yield {**at, "name": name, "value": value, "note": None}
            for name, note in found.notes.items():
                yield {**at, "name": name, "value": None, "note": note}
        offset += len(page)


async def _version_rows(store: LightningStore, run_id: str | None) -> AsyncGenerator[Row]:
    offset = 0
    while page := (await store.query_policy_versions(run_id=run_id, limit=PAGE, offset=offset)).complete().items:
        for version in page:
            fields = msgspec.structs.asdict(version)
            yield {**fields, "metrics": _json(version.metrics), "metadata": _json(version.metadata)}
        offset += len(page)

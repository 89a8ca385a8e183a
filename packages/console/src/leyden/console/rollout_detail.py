"""One rollout in full: its attempts as trees of agents, model calls, tools and rewards, and what became of it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from leyden.console.plain import plain
from leyden.console.rollout_index import shown_status
from leyden.core.data import semconv
from leyden.core.data.failure import failure_of
from leyden.core.data.reasons import reason_of
from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.span import Span
from leyden.core.trainer.rollouts.recorded import RecordedRollout
from leyden.core.trainer.why.trained_or_reason import CallExplanation, RolloutExplanation
from leyden.core.trajectory.assemble import last_reward
from leyden.core.trajectory.calls import finish_reason, is_recorded_call
from leyden.core.trajectory.messages import read_messages, text_of, tool_requests

Kind = Literal[
    "agent",
    "node",
    "model",
    "tool",
    "handoff",
    "guardrail",
    "reward",
    "result",
    "observation",
    "message",
    "exception",
    "other",
]
_OPERATIONS: Mapping[str, Kind] = {
    "invoke_agent": "agent",
    "invoke_workflow": "agent",
    "execute_tool": "tool",
    semconv.HANDOFF: "handoff",
    semconv.GUARDRAIL: "guardrail",
}
_NAMES: Mapping[str, Kind] = {
    semconv.REWARD: "reward",
    semconv.RESULT: "result",
    semconv.OBSERVATION: "observation",
    semconv.OBJECT: "observation",
    semconv.MESSAGE: "message",
    semconv.EXCEPTION: "exception",
}
_TEXTS = (semconv.CONTENT, semconv.FINAL_OUTPUT, semconv.RESULT, semconv.STACK_TRACE)
_SHOWN_ELSEWHERE = frozenset(
    {
        *(semconv.PROMPT_IDS, semconv.RESPONSE_IDS, semconv.RESPONSE_LOGPROBS, semconv.SAMPLING_LOGPROBS),
        *(semconv.SAMPLING_KEPT, semconv.PROMPT_LOGPROBS, semconv.IMAGE_DATA, semconv.INPUT_MESSAGES),
        *(semconv.OUTPUT_MESSAGES, semconv.TOOL_DEFINITIONS, semconv.SAMPLING_GRAMMAR, semconv.TOP_LOGPROBS),
        *(semconv.TOOL_ARGUMENTS, semconv.TOOL_RESULT, semconv.ROLLOUT_ID, semconv.ATTEMPT_ID, *_TEXTS),
    }
)
"""Attributes that have a place of their own on the page, or are too large for a list."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call as the model wrote it."""

    name: str
    arguments: str


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway recorded of a model call, without its tokens."""

    policy: str | None
    versions: list[tuple[int, int]]
    """(version, tokens that it generated)."""
    model: str | None
    prompt_tokens: int | None
    response_tokens: int | None
    finish: str | None
    latency: float | None
    answer: str
    tool_calls: list[ToolCall]
    messages: int
    trained: bool
    steps: list[str]
    reason: str | None
    moves: bool
    has_tokens: bool


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that ran."""

    name: str
    arguments: str
    result: str


class Reward(msgspec.Struct, frozen=True, kw_only=True):
    """A reward."""

    value: float | None
    dimensions: dict[str, float]
    feedback: str | None


class SpanView(msgspec.Struct, frozen=True, kw_only=True):
    """One span of the tree; `parent` is None if the parent is not recorded."""

    id: str
    parent: str | None
    kind: Kind
    title: str
    agent: str | None
    node: str | None
    start: float
    end: float | None
    error: str | None
    model: ModelCall | None = None
    tool: Tool | None = None
    reward: Reward | None = None
    text: str | None = None
    attributes: dict[str, Any] = {}


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt with its spans in the order of their start."""

    id: str
    number: int
    status: str
    started: float
    ended: float | None
    worker: str | None
    failure: dict[str, str] | None
    spans: list[SpanView]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a rollout."""

    trained: bool
    steps: list[str]
    reason: str | None
    means: str | None
    change: str | None
    detail: str
    remarks: list[str]


def outcome_of(found: RolloutExplanation) -> Outcome:
    """Return what became of a rollout."""
    reason = None if found.reason is None else reason_of(found.reason)
    return Outcome(
        trained=bool(found.steps),
        steps=[str(step) for step in found.steps],
        reason=found.reason,
        means=None if reason is None else reason.means,
        change=(reason.change or None) if reason is not None else None,
        detail=found.detail,
        remarks=found.all_remarks(),
    )


def attempts_of(recorded: RecordedRollout, found: RolloutExplanation, *, is_gone: bool) -> list[AttemptView]:
    """Return the attempts of a rollout with their spans; `is_gone` is whether the process that ran them is."""
    outcomes = {call.span_id: call for call in found.calls}
    return [_attempt(attempt, spans, outcomes, is_gone=is_gone) for attempt, spans in recorded.attempts]


def rollout_view(rollout: Rollout, *, is_gone: bool) -> dict[str, Any]:
    """Return the rollout itself."""
    return {
        "id": rollout.rollout_id,
        "status": shown_status(rollout.status, is_gone=is_gone),
        "mode": rollout.mode,
        "input": plain(rollout.input),
        "started": rollout.start_time,
        "ended": rollout.end_time,
        "metadata": plain(rollout.metadata),
    }


def _attempt(
    attempt: Attempt, spans: Sequence[Span], outcomes: Mapping[str, CallExplanation], *, is_gone: bool
) -> AttemptView:
    failure = failure_of(attempt)
    return AttemptView(
        id=attempt.attempt_id,
        number=attempt.sequence_id,
        status=shown_status(attempt.status, is_gone=is_gone),
        started=attempt.start_time,
        ended=attempt.end_time,
        worker=attempt.worker_id,
        failure=None if failure is None else {"kind": failure.kind, "type": failure.type, "message": failure.text},
        spans=[span_view(span, parent, outcomes.get(span.span_id)) for span, parent in joined(spans)],
    )


def joined(spans: Sequence[Span]) -> list[tuple[Span, str | None]]:
    """Return the spans with their parents, in the order of their start.

    A framework's span of a model call with exactly one record of the gateway below it adds nothing, so the record takes
    its place. A parent that is not recorded is None.
    """
    by_id = {span.span_id: span for span in spans}
    below: dict[str, list[Span]] = {}
    for span in spans:
        if span.parent_id in by_id:
            below.setdefault(str(span.parent_id), []).append(span)
    replaced = {
        span.span_id
        for span in spans
        if span.attributes.get(semconv.OPERATION) in semconv.MODEL_CALLS
        and not is_recorded_call(span)
        and len(own := below.get(span.span_id, [])) == 1
        and is_recorded_call(own[0])
    }

    def parent(span: Span) -> str | None:
        above = span.parent_id
        while above in replaced:
            above = by_id[above].parent_id
        return above if above in by_id else None

    kept = [span for span in spans if span.span_id not in replaced]
    kept.sort(key=lambda span: (span.name in (semconv.RESULT, semconv.REWARD), span.start_time, span.sequence_id))
    return [(span, parent(span)) for span in kept]


def span_view(span: Span, parent: str | None, found: CallExplanation | None) -> SpanView:
    """Return a span for display."""
    kind = _kind(span)
    attributes = span.attributes
    return SpanView(
        id=span.span_id,
        parent=parent,
        kind=kind,
        title=_title(span, kind),
        agent=span.text(semconv.AGENT_NAME),
        node=span.text(semconv.NODE),
        start=span.start_time,
        end=span.end_time,
        error=_error(span),
        model=_model(span, found) if kind == "model" else None,
        tool=_tool(span) if kind == "tool" else None,
        reward=_reward(span) if kind == "reward" else None,
        text=next((str(attributes[name]) for name in _TEXTS if name in attributes), None),
        attributes={name: plain(value) for name, value in attributes.items() if name not in _SHOWN_ELSEWHERE},
    )


def _kind(span: Span) -> Kind:
    operation = span.attributes.get(semconv.OPERATION)
    if is_recorded_call(span) or operation in semconv.MODEL_CALLS:
        return "model"
    if span.name in _NAMES:
        return _NAMES[span.name]
    if isinstance(operation, str) and operation in _OPERATIONS:
        return _OPERATIONS[operation]
    return "node" if semconv.NODE in span.attributes or span.name.startswith("node ") else "other"


def _title(span: Span, kind: Kind) -> str:
    if kind == "tool":
        return span.text(semconv.TOOL_NAME) or span.name
    if kind == "agent":
        return span.text(semconv.AGENT_NAME) or span.text(semconv.WORKFLOW_NAME) or span.name
    if kind == "handoff":
        ends = [span.text(semconv.HANDOFF_FROM), span.text(semconv.HANDOFF_TO)]
        return " → ".join(end or "?" for end in ends) if any(ends) else span.name
    if kind in _NAMES.values():
        return kind
    return span.name.removeprefix("node ") if kind == "node" else span.name


def _error(span: Span) -> str | None:
    if span.status.code != "error":
        return None
    return span.status.description or span.text(semconv.ERROR_TYPE) or "failed"


def _model(span: Span, found: CallExplanation | None) -> ModelCall:
    attributes = span.attributes
    messages = read_messages(attributes.get(semconv.OUTPUT_MESSAGES))
    latency = attributes.get(semconv.LATENCY)
    return ModelCall(
        policy=span.text(semconv.POLICY),
        versions=versions_of(span, _count(attributes, semconv.OUTPUT_TOKENS) or 0),
        model=span.text(semconv.RESPONSE_MODEL) or span.text(semconv.REQUEST_MODEL),
        prompt_tokens=_count(attributes, semconv.INPUT_TOKENS),
        response_tokens=_count(attributes, semconv.OUTPUT_TOKENS),
        finish=finish_reason(span),
        latency=latency if isinstance(latency, float) else None,
        answer="\n".join(text for message in messages if (text := text_of(message.get("content")))),
        tool_calls=[ToolCall(name=one.tool, arguments=one.arguments or "") for one in tool_requests(messages)],
        messages=len(read_messages(attributes.get(semconv.INPUT_MESSAGES))),
        trained=found is not None and bool(found.steps),
        steps=[] if found is None else [str(step) for step in found.steps],
        reason=span.text(semconv.NOT_TRAINED) if found is None else found.reason,
        moves=found is None or found.moves,
        has_tokens=semconv.RESPONSE_IDS in attributes,
    )


def _tool(span: Span) -> Tool:
    attributes = span.attributes
    return Tool(
        name=span.text(semconv.TOOL_NAME) or span.name,
        arguments=str(attributes.get(semconv.TOOL_ARGUMENTS, "")),
        result=str(attributes.get(semconv.TOOL_RESULT, "")),
    )


def _reward(span: Span) -> Reward:
    value, dimensions = last_reward([span])
    return Reward(value=value, dimensions=dimensions, feedback=span.text(semconv.REWARD_FEEDBACK))


def versions_of(span: Span, tokens: int) -> list[tuple[int, int]]:
    """Return the policy versions that generated a call's `tokens`, in order, each with its number of them."""
    recorded: list[int] | None = span.attributes.get(semconv.POLICY_VERSIONS)  # type: ignore[assignment]  # a list of int
    if isinstance(recorded, list) and recorded:
        return list(zip(recorded[::2], recorded[1::2], strict=False))
    version = span.attributes.get(semconv.POLICY_VERSION)
    return [(version, tokens)] if isinstance(version, int) else []


def _count(attributes: Mapping[str, Any], name: str) -> int | None:
    value = attributes.get(name)
    return value if isinstance(value, int) else None

"""Outcomes of calls: the requested tools, the operations that followed, and the answer of each call of an attempt.

Success or failure is given only if the record contains it. See `credit.rules` for the rewards of outcomes.

Invariant: every tool span of the attempt is in the outcomes of exactly one call, or among those that no call requested.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.data.transition import Outcome
from leyden.core.trajectory.calls import RecordedCall, innermost_shared, is_recorded_call, read_calls
from leyden.core.trajectory.messages import ToolRequest, read_messages, text_of, tool_results
from leyden.core.trajectory.select import spans_above

_OURS = "leyden."
"""Prefix of the names of the runner's own spans and of emitted notes."""
_STATUS = {"returned": True, "failed": False, "unknown": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """One run of a tool."""

    tool: str
    status: Literal["returned", "failed", "unknown"]
    """`unknown`: no span records how it ended, but a later call shows the model its result."""
    result: str | None = None
    """Result as text; for a failed tool, what its caller got instead; None if not recorded."""
    error: str | None = None
    """Why it failed, as far as recorded; empty if not recorded."""
    arguments: str | None = None
    """JSON, as far as recorded."""
    call_id: str | None = None
    """The model's id of the tool call."""
    span_id: str | None = None
    """Id of the tool's span; None without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The tools of one attempt."""

    by_call: Mapping[str, tuple[ToolOutcome, ...]]
    """Span id of every recorded call (`Transition.span_id`) to the tools that it caused, in order of their start."""
    unrequested: tuple[ToolOutcome, ...] = ()
    """Tools that no recorded call requested."""


def tool_outcomes(spans: Sequence[Span], calls: Sequence[RecordedCall] | None = None) -> Outcomes:
    """Return the outcomes of the tools in the `spans` of one attempt; `calls` are its recorded calls, if already read.

    A tool belongs to the call that wrote its call id; if ids repeat, to the latest before it. Without a known id, it
    belongs to a call that began before it and shares the innermost span with it. A call that requested it by name is
    preferred to one that requested no tool in the provider's format, as with text protocols. Of several, the latest is
    taken. The result of a requested tool without a span is read from the conversation of later calls.
    """
    by_id = {span.span_id: span for span in spans}
    calls = read_calls(spans, by_id) if calls is None else calls
    tools = sorted((span for span in spans if _is_tool(span)), key=lambda span: (span.start_time, span.span_id))
    found: dict[str, list[ToolOutcome]] = {call.span.span_id: [] for call in calls}
    unrequested: list[ToolOutcome] = []
    for tool in tools:
        call = _requesting_call(tool, calls, spans_above(tool, by_id))
        (unrequested if call is None else found[call.span.span_id]).append(_outcome(tool))
    _add_unseen(found, calls)
    return Outcomes(by_call={span_id: tuple(own) for span_id, own in found.items()}, unrequested=tuple(unrequested))


def _is_tool(span: Span) -> bool:
    return span.attributes.get(semconv.OPERATION) == "execute_tool"


def _requesting_call(tool: Span, calls: Sequence[RecordedCall], above: Sequence[Span]) -> RecordedCall | None:
    call_id, name = tool.attributes.get(semconv.TOOL_CALL_ID), _name(tool)
    by_call_id = [call for call in calls if call_id is not None and call_id in {one.call_id for one in call.requests}]
    if by_call_id:
        earlier = [call for call in by_call_id if call.began <= tool.start_time]
        return earlier[-1] if earlier else by_call_id[0]

    def fit(call: RecordedCall) -> tuple[int, bool, float, str]:
        return innermost_shared(call, above), name in {one.tool for one in call.requests}, call.began, call.span.span_id

    possible = [call for call in calls if call.began <= tool.start_time and _may_have_requested(call, name)]
    return max(possible, key=fit, default=None)


def _may_have_requested(call: RecordedCall, name: str) -> bool:
    return call.span.status.code != "error" and (not call.requests or name in {one.tool for one in call.requests})


def _name(tool: Span) -> str:
    return str(tool.attributes.get(semconv.TOOL_NAME, tool.name.removeprefix("execute_tool ")))


def _outcome(tool: Span) -> ToolOutcome:
    error = tool.attributes.get(semconv.ERROR_TYPE)
    failed = tool.status.code == "error" or error is not None
    return ToolOutcome(
        tool=_name(tool),
        status="failed" if failed else "returned",
        result=tool.text(semconv.TOOL_RESULT),
        error=(tool.status.description or str(error or "")) if failed else None,
        arguments=tool.text(semconv.TOOL_ARGUMENTS),
        call_id=tool.text(semconv.TOOL_CALL_ID),
        span_id=tool.span_id,
    )


def _without_span(requests: Sequence[ToolRequest], own: Sequence[ToolOutcome]) -> list[ToolRequest]:
    """Return the requests that no tool span belongs to: matched by call id, else by name, each once."""
    ids = {outcome.call_id for outcome in own} - {None}
    names = [outcome.tool for outcome in own if outcome.call_id is None]
    left: list[ToolRequest] = []
    for request in requests:
        if request.call_id in ids:
            continue
        if request.tool in names:
            names.remove(request.tool)
            continue
        left.append(request)
    return left


def _add_unseen(found: Mapping[str, list[ToolOutcome]], calls: Sequence[RecordedCall]) -> None:
    """Add outcomes without a span: for each request, its result in the first later call that contains one."""
    unseen = [_without_span(call.requests, found[call.span.span_id]) for call in calls]
    if not any(unseen):
        return
    shown = [tool_results(read_messages(call.span.attributes.get(semconv.INPUT_MESSAGES))) for call in calls]
    for index, (call, requests) in enumerate(zip(calls, unseen, strict=True)):
        for request in requests:
            result = next((seen[request.call_id] for seen in shown[index + 1 :] if request.call_id in seen), None)
            if result is not None:
                found[call.span.span_id].append(_unseen_outcome(request, result))


def _unseen_outcome(request: ToolRequest, result: str) -> ToolOutcome:
    return ToolOutcome(
        tool=request.tool, status="unknown", result=result, arguments=request.arguments, call_id=request.call_id
    )


def outcomes_by_call(spans: Sequence[Span]) -> dict[str, tuple[Outcome, ...]]:
    """Return the outcomes of every recorded call among the `spans` of one attempt, by the call's span id.

    The answer comes first, then the tools, then the operations, each in order of their start. An operation is a span
    that is neither an agent, a workflow, a model call, a tool nor a note. Examples are a span that `agl.operation` or
    the framework opened around code, a graph node, a guardrail, or a query that another instrumentation recorded.

    An operation belongs to the last call made within it. Without one, it belongs to a call that had ended when it
    began: of those that share the innermost span with it, the last. An operation that follows no call is not an
    outcome.
    """
    by_id = {span.span_id: span for span in spans}
    calls = read_calls(spans, by_id)
    tools = tool_outcomes(spans, calls).by_call
    found = {call.span.span_id: [*_answers(call), *map(_from_tool, tools[call.span.span_id])] for call in calls}
    for span in sorted(filter(_is_operation, spans), key=lambda span: (span.start_time, span.span_id)):
        call = _followed(span, calls, spans_above(span, by_id))
        if call is not None:
            found[call.span.span_id].append(_from_operation(span))
    return {span_id: tuple(outcomes) for span_id, outcomes in found.items()}


def _answers(call: RecordedCall) -> list[Outcome]:
    """Return the text that the call wrote; empty if it only requested tools, or wrote nothing readable."""
    texts = [text_of(message.get("content")) for message in call.messages if message.get("role") == "assistant"]
    text = "".join(texts)
    if not texts or (call.requests and not text.strip()):
        return []
    names = (call.span.attributes.get(key) for key in (semconv.NODE, semconv.AGENT_NAME))
    name = next((name for name in names if isinstance(name, str)), "")
    return [Outcome(kind="answer", name=name, succeeded=None, text=text)]


def _from_tool(outcome: ToolOutcome) -> Outcome:
    text = outcome.error if outcome.result is None else outcome.result
    return Outcome(kind="tool", name=outcome.tool, succeeded=_STATUS[outcome.status], text=text)


def _is_operation(span: Span) -> bool:
    kind = span.attributes.get(semconv.OPERATION)
    return kind in (None, semconv.GUARDRAIL) and not span.name.startswith(_OURS) and not is_recorded_call(span)


def _followed(span: Span, calls: Sequence[RecordedCall], above: Sequence[Span]) -> RecordedCall | None:
    within = [call for call in calls if span.span_id in call.above]
    if within:
        return within[-1]
    before = [call for call in calls if call.ended <= span.start_time]
    return max(before, key=lambda call: (innermost_shared(call, above), call.ended, call.span.span_id), default=None)


def _from_operation(span: Span) -> Outcome:
    failed = span.status.code == "error" or bool(span.attributes.get(semconv.GUARDRAIL_TRIGGERED))
    return Outcome(kind="operation", name=span.name, succeeded=not failed, text=span.status.description)

"""Outcomes of calls: the requested tools, the operations that followed, and the answer of each call of an attempt.

Success or failure is given only if the record contains it. See `credit.rules` for the rewards of outcomes.
"""

from collections.abc import Sequence

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.data.transition import Outcome
from leyden.core.trajectory.calls import RecordedCall, innermost_shared, is_recorded_call, read_calls
from leyden.core.trajectory.messages import text_of
from leyden.core.trajectory.outcomes import ToolOutcome, tool_outcomes
from leyden.core.trajectory.select import spans_above

_OURS = "leyden."
"""Prefix of the names of the runner's own spans and of emitted notes."""
_STATUS = {"returned": True, "failed": False, "unknown": None}


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
    found = {call.span.span_id: [*_answers(call), *map(_tool, tools[call.span.span_id])] for call in calls}
    for span in sorted(filter(_is_operation, spans), key=lambda span: (span.start_time, span.span_id)):
        call = _followed(span, calls, spans_above(span, by_id))
        if call is not None:
            found[call.span.span_id].append(_operation(span))
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


def _tool(outcome: ToolOutcome) -> Outcome:
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


def _operation(span: Span) -> Outcome:
    failed = span.status.code == "error" or bool(span.attributes.get(semconv.GUARDRAIL_TRIGGERED))
    return Outcome(kind="operation", name=span.name, succeeded=not failed, text=span.status.description)

"""Recorded model calls: finds them among an attempt's spans, with their times and the spans that contain them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.trajectory.messages import ToolRequest, read_messages, tool_requests
from leyden.core.trajectory.select import spans_above

_CALL_MARKS = (semconv.PROMPT_IDS, semconv.NOT_TRAINED, semconv.CALL_ID)


def is_recorded_call(span: Span) -> bool:
    """Return whether `span` is the gateway's own record of a model call, not a framework's span or a forgery."""
    return any(mark in span.attributes for mark in _CALL_MARKS) and semconv.FORGED not in span.attributes


def finish_reason(span: Span) -> str | None:
    """Return why the call that `span` records ended; None if not recorded."""
    reasons = span.attributes.get(semconv.FINISH_REASONS)
    return str(reasons[0]) if isinstance(reasons, list) and reasons else None


def newest_version(span: Span) -> int:
    """Return the newest version that generated tokens of the call that `span` records; -1 if not recorded."""
    versions = span.attributes.get(semconv.POLICY_VERSIONS)
    generated_by = versions[::2] if isinstance(versions, list) else [span.attributes.get(semconv.POLICY_VERSION)]
    return max((version for version in generated_by if isinstance(version, int)), default=-1)


class RecordedCall(NamedTuple):
    """A recorded call."""

    span: Span
    began: float
    """Start and, in the next field, end: by the agent's clock, if its framework has a span for the call."""
    ended: float
    above: frozenset[str]
    """Ids of the spans that contain it."""
    messages: list[dict[str, object]]
    """Messages that it wrote, as far as they can be read."""
    requests: list[ToolRequest]


def read_calls(spans: Sequence[Span], by_id: Mapping[str, Span]) -> list[RecordedCall]:
    """Return the recorded calls among `spans`, in order of their start; `by_id` has the spans of the attempt."""
    calls = [_call(span, by_id) for span in spans if is_recorded_call(span)]
    return sorted(calls, key=lambda call: (call.began, call.span.span_id))


def innermost_shared(call: RecordedCall, above: Sequence[Span]) -> int:
    """Return the depth of the innermost span that contains both `call` and something with the spans `above` it.

    `above` has the nearest span first. The depth is 0 if no span contains both.
    """
    depth = {span.span_id: len(above) - index for index, span in enumerate(above)}
    return max((depth.get(span_id, 0) for span_id in call.above), default=0)


def _call(span: Span, by_id: Mapping[str, Span]) -> RecordedCall:
    above = spans_above(span, by_id)
    view = above[0] if above and above[0].attributes.get(semconv.OPERATION) in semconv.MODEL_CALLS else span
    ended = view.start_time if view.end_time is None else view.end_time
    messages = read_messages(span.attributes.get(semconv.OUTPUT_MESSAGES))
    return RecordedCall(
        span, view.start_time, ended, frozenset(one.span_id for one in above), messages, tool_requests(messages)
    )

"""Recorded model calls among an attempt's spans: when each began and ended, and what it is part of.

Knows nothing of tokens, nor of what became of a call.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.trajectory.messages import ToolRequest, read_messages, tool_requests
from leyden.core.trajectory.select import spans_above

_CALL_MARKS = (semconv.PROMPT_IDS, semconv.NOT_TRAINED, semconv.CALL_ID)


def is_recorded_call(span: Span) -> bool:
    """Whether `span` is the gateway's own record of a model call, rather than a framework's view of it or a forgery."""
    return any(mark in span.attributes for mark in _CALL_MARKS) and semconv.FORGED not in span.attributes


def finish_reason(span: Span) -> str | None:
    """Why the call that `span` records ended, if it says."""
    reasons = span.attributes.get(semconv.FINISH_REASONS)
    return str(reasons[0]) if isinstance(reasons, list) and reasons else None


def newest_version(span: Span) -> int:
    """The newest version that drew something of the call that `span` records; -1 where it does not say."""
    versions = span.attributes.get(semconv.POLICY_VERSIONS)
    drawn_by = versions[::2] if isinstance(versions, list) else [span.attributes.get(semconv.POLICY_VERSION)]
    return max((version for version in drawn_by if isinstance(version, int)), default=-1)


class Call(NamedTuple):
    """A recorded call."""

    span: Span
    began: float
    """This and the next by the agent's clock, where its framework has a span for the call."""
    ended: float
    above: frozenset[str]
    """Ids of the spans that it is part of."""
    wrote: list[dict[str, object]]
    """Its messages, as far as they can be read."""
    asked: list[ToolRequest]


def read_calls(spans: Sequence[Span], by_id: Mapping[str, Span]) -> list[Call]:
    """Return the recorded calls among `spans`, in the order they began; `by_id` has the spans of the attempt."""
    calls = [_call(span, by_id) for span in spans if is_recorded_call(span)]
    return sorted(calls, key=lambda call: (call.began, call.span.span_id))


def innermost_shared(call: Call, above: Sequence[Span]) -> int:
    """How deep the innermost span is that `call` and something with the spans `above` it, nearest first, share."""
    depth = {span.span_id: len(above) - place for place, span in enumerate(above)}
    return max((depth.get(span_id, 0) for span_id in call.above), default=0)


def _call(span: Span, by_id: Mapping[str, Span]) -> Call:
    above = spans_above(span, by_id)
    view = above[0] if above and above[0].attributes.get(semconv.OPERATION) == "chat" else span
    ended = view.start_time if view.end_time is None else view.end_time
    wrote = read_messages(span.attributes.get(semconv.OUTPUT_MESSAGES))
    return Call(span, view.start_time, ended, frozenset(one.span_id for one in above), wrote, tool_requests(wrote))

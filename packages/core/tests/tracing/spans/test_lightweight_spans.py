import json
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from leyden.core.data.plain.spans import plain_span
from leyden.core.data.span import Span
from leyden.core.store.sdk_spans import span_from_otel
from leyden.core.testing import factories
from leyden.core.tracing.context import OpenAttempt, open_attempt
from leyden.core.tracing.spans.lightweight_spans import RESOURCE, LightweightTracer

SECOND = 1_000_000_000


def attempt() -> OpenAttempt:
    return factories.attempt()


class _Keeping(SpanProcessor):
    def __init__(self) -> None:
        self.ended: list[Span] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span_from_otel(span, "ro", "at"))


def sdk() -> tuple[trace.Tracer, list[Span]]:
    """What OpenTelemetry's own SDK makes of the same calls."""
    keeping, provider = _Keeping(), TracerProvider(ALWAYS_ON, Resource(RESOURCE), shutdown_on_exit=False)
    provider.add_span_processor(keeping)
    return provider.get_tracer("t"), keeping.ended


def ours() -> tuple[trace.Tracer, list[Span]]:
    ended: list[Span] = []
    return LightweightTracer(ended.append), ended


def fails_twice(span: trace.Span) -> None:
    span.set_status(trace.StatusCode.ERROR, "first")
    span.set_status(trace.Status(trace.StatusCode.ERROR, "second"))
    span.set_status(trace.StatusCode.UNSET)


def is_well_after_all(span: trace.Span) -> None:
    span.set_status(trace.StatusCode.ERROR, "first")
    span.set_status(trace.StatusCode.OK)
    span.set_status(trace.StatusCode.ERROR, "too late")


def holds_all_kinds(span: trace.Span) -> None:
    values: dict[str, Any] = {"text": "é", "whole": 3, "real": 0.5, "truth": True, "bytes": b"\x00\xff"}
    values |= {"texts": ["a", "b"], "numbers": (1, 2), "nothing": [], "nested": {"a": [1, {"b": None}]}}
    span.set_attributes(values)
    span.set_attribute("text", "later")


def has_events_and_links(span: trace.Span) -> None:
    span.add_event("said", {"word": "tea", "list": ["x"]}, 7 * SECOND)
    span.add_event("bare", timestamp=8 * SECOND)
    span.add_link(trace.SpanContext(5, 6, True), {"why": "because"})


def changes_its_name(span: trace.Span) -> None:
    span.update_name("another")


def hears_nothing_more(span: trace.Span) -> None:
    span.end(9 * SECOND)
    holds_all_kinds(span)
    has_events_and_links(span)
    changes_its_name(span)
    fails_twice(span)


WAYS = [fails_twice, is_well_after_all, holds_all_kinds, has_events_and_links, changes_its_name, hears_nothing_more]


@pytest.mark.parametrize("do", WAYS, ids=lambda do: do.__name__)
def test_a_span_is_what_the_sdk_would_have_made_of_it(do: Callable[[trace.Span], None]) -> None:
    made: list[Span] = []
    for tracer, ended in (sdk(), ours()):
        with open_attempt(attempt()):
            parent = trace.set_span_in_context(trace.NonRecordingSpan(trace.SpanContext(1, 2, False)), Context())
            span = tracer.start_span("some", parent, attributes={"first": 1}, start_time=SECOND)
            assert span.is_recording()
            do(span)
            if span.is_recording():
                span.end(9 * SECOND)
        assert not span.is_recording()
        made += ended
    theirs, own = made
    assert own.trace_id == theirs.trace_id == f"{1:032x}"
    same = {"trace_id", "parent_id", "name", "status", "attributes", "events", "links", "start_time", "end_time"}
    assert {name: getattr(own, name) for name in same} == {name: getattr(theirs, name) for name in same}
    assert own.resource.items() <= theirs.resource.items()
    assert (own.rollout_id, own.attempt_id, own.sequence_id) == ("ro", "at", 0)


def test_an_exception_in_a_block_is_noted_as_the_sdk_would() -> None:
    made: list[Span] = []
    for tracer, ended in (sdk(), ours()):
        with open_attempt(attempt()), pytest.raises(ValueError, match="wrong"):  # noqa: SIM117 -- raised inside the span
            with tracer.start_as_current_span("some"):
                raise ValueError("wrong")
        made += ended
    theirs, own = made
    assert own.status == theirs.status
    (event,), (other) = own.events, theirs.events[0]
    assert event.attributes.keys() == other.attributes.keys()
    for name in ("exception.type", "exception.message", "exception.escaped"):
        assert event.attributes[name] == other.attributes[name]
    assert "raise ValueError" in str(event.attributes["exception.stacktrace"])


def test_a_span_without_a_parent_is_in_its_attempts_trace_and_one_below_it_hangs_from_it() -> None:
    tracer, ended = ours()
    with open_attempt(attempt()), tracer.start_as_current_span("above") as above:
        tracer.start_span("below").end()
    below, root = ended
    assert (root.trace_id, root.parent_id) == ("ab" * 16, None)
    assert (below.trace_id, below.parent_id) == (root.trace_id, root.span_id)
    assert root.span_id == f"{above.get_span_context().span_id:016x}" != below.span_id


def test_what_works_for_no_attempt_is_not_kept() -> None:
    tracer, ended = ours()
    tracer.start_span("nobody's").end()
    assert ended == []


def test_a_span_ends_once_and_works_for_the_attempt_it_began_in() -> None:
    tracer, ended = ours()
    with open_attempt(attempt()):
        span = tracer.start_span("late")
    span.end()
    span.end()
    assert [one.attempt_id for one in ended] == ["at"]


def test_a_value_of_no_known_type_is_told_as_text() -> None:
    class Strange:
        def __str__(self) -> str:
            return "strange"

    value: Any = Strange()
    made: list[Span] = []
    for tracer, ended in (sdk(), ours()):
        with open_attempt(attempt()):
            span = tracer.start_span("some")
            span.set_attributes({"odd": value, "list": [1, None]})
            span.end()
        made += ended
    theirs, own = (plain_span(one).attributes for one in made)
    assert theirs["list"] == own["list"]
    assert (theirs["odd"], own["odd"]) == ("strange", "strange")
    assert json.dumps(own)

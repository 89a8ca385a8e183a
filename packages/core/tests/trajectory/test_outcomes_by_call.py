"""What came of each call, from spans as the adapters, the emitters and other instrumentation leave them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data import semconv
from leyden.core.data.span import Attributes, Span, SpanStatus
from leyden.core.data.transition import Outcome
from leyden.core.testing import factories
from leyden.core.trajectory.outcomes import outcomes_by_call

ERROR = SpanStatus(code="error", description="no such table")


def span(span_id: str, start: float, end: float, parent: str | None = None, **more: Any) -> Span:
    more.setdefault("name", span_id)
    return factories.span(span_id=span_id, parent_id=parent, start_time=start, end_time=end, **more)


def call(span_id: str, start: float, parent: str | None = None, says: str = "", asks: str | None = None) -> Span:
    """A recorded call, one second long."""
    asked = [{"id": f"id of {span_id}", "type": "function", "function": {"name": asks, "arguments": "{}"}}]
    message = {"role": "assistant", "content": says, **({"tool_calls": asked} if asks else {})}
    attributes: Attributes = {
        semconv.OPERATION: "chat",
        semconv.CALL_ID: span_id,
        semconv.OUTPUT_MESSAGES: json.dumps([message]),
        semconv.AGENT_NAME: "writer",
    }
    return span(span_id, start, start + 1, parent, attributes=attributes)


def framework(span_id: str, kind: str, start: float, end: float, parent: str | None = None) -> Span:
    return span(span_id, start, end, parent, attributes={semconv.OPERATION: kind})


def operations(spans: list[Span]) -> dict[str, list[str]]:
    """Call to the operations that are its outcomes."""
    found = outcomes_by_call(spans)
    return {call: [one.name for one in own if one.kind == "operation"] for call, own in found.items()}


def test_an_answer_is_an_outcome_that_nobody_has_judged() -> None:
    node = call("two", 2, says="SELECT 1")
    node.attributes[semconv.NODE] = "write"
    found = outcomes_by_call([call("one", 0, says="Hello."), node, call("three", 4, asks="sql"), call("four", 6)])
    assert found == {
        "one": (Outcome(kind="answer", name="writer", succeeded=None, text="Hello."),),
        "two": (Outcome(kind="answer", name="write", succeeded=None, text="SELECT 1"),),
        "three": (),
        "four": (Outcome(kind="answer", name="writer", succeeded=None, text=""),),
    }


@pytest.mark.parametrize(
    ("attributes", "status", "expected"),
    [
        ({semconv.TOOL_RESULT: "3 rows"}, SpanStatus(), (True, "3 rows")),
        ({}, ERROR, (False, "no such table")),
        ({semconv.TOOL_RESULT: "sorry"}, ERROR, (False, "sorry")),
    ],
)
def test_a_tool_tells_whether_it_returned_and_what(
    attributes: Attributes, status: SpanStatus, expected: tuple[bool, str]
) -> None:
    known: Attributes = {semconv.OPERATION: "execute_tool", semconv.TOOL_NAME: "sql", semconv.TOOL_CALL_ID: "id of one"}
    tool = span("t", 2, 3, attributes=known | attributes, status=status)
    (outcome,) = outcomes_by_call([call("one", 0, asks="sql"), tool])["one"]
    assert (outcome.kind, outcome.name, outcome.succeeded, outcome.text) == ("tool", "sql", *expected)


def test_a_tool_that_only_the_conversation_shows_has_a_text_and_no_judgement() -> None:
    read = [{"role": "tool", "tool_call_id": "id of one", "content": "3 rows"}]
    later = call("two", 5, says="Done.")
    later.attributes[semconv.INPUT_MESSAGES] = json.dumps(read)
    (outcome,) = outcomes_by_call([call("one", 0, asks="sql"), later])["one"]
    assert outcome == Outcome(kind="tool", name="sql", succeeded=None, text="3 rows")


def test_a_graphs_nodes_belong_to_the_call_within_them_or_to_the_one_before() -> None:
    spans = [
        framework("graph", "invoke_agent", 0, 20),
        span("node write", 0, 2, "graph"),
        framework("view of one", "chat", 0.1, 1.4, "node write"),
        call("one", 0.2, "view of one"),
        span("node execute", 3, 4, "graph", status=ERROR),
        span("node rewrite", 5, 7, "graph"),
        call("two", 5.5, "node rewrite"),
        span("node execute again", 8, 9, "graph"),
    ]
    assert operations(spans) == {
        "one": ["node write", "node execute"],
        "two": ["node rewrite", "node execute again"],
    }
    failed = [one for one in outcomes_by_call(spans)["one"] if one.name == "node execute"]
    assert failed == [Outcome(kind="operation", name="node execute", succeeded=False, text="no such table")]


def test_of_calls_made_at_once_the_one_in_the_same_branch_is_followed() -> None:
    spans = [
        framework("team", "invoke_workflow", 0, 20),
        framework("left", "invoke_agent", 0, 20, "team"),
        framework("right", "invoke_agent", 0, 20, "team"),
        call("in left", 1, "left"),
        call("in right", 2, "right"),
        span("parse", 4, 5, "left"),
        span("before all", 0.5, 0.6, "left"),
        span("while it speaks", 1.5, 1.6, "left"),
        span("SELECT spider", 6, 7),
    ]
    assert operations(spans) == {"in left": ["parse"], "in right": ["SELECT spider"]}


def test_a_guardrail_that_objects_has_failed() -> None:
    def guardrail(span_id: str, start: float, triggered: bool) -> Span:
        known: Attributes = {semconv.OPERATION: semconv.GUARDRAIL, semconv.GUARDRAIL_TRIGGERED: triggered}
        return span(span_id, start, start + 1, attributes=known)

    found = outcomes_by_call([call("one", 0), guardrail("polite", 2, False), guardrail("short", 3, True)])["one"]
    assert [(one.name, one.succeeded) for one in found if one.kind == "operation"] == [
        ("polite", True),
        ("short", False),
    ]


def test_agents_handoffs_notes_and_views_are_no_operations() -> None:
    kinds = ["invoke_agent", "invoke_workflow", "chat", semconv.HANDOFF]
    others = [framework(kind, kind, 2, 3) for kind in kinds]
    notes = [span(name, 2, 3) for name in (semconv.REWARD, semconv.MESSAGE, semconv.RESULT, semconv.EXCEPTION)]
    assert operations([call("one", 0), *others, *notes]) == {"one": []}


KINDS = st.sampled_from(["operation", "call", "agent"])
SPANS = st.lists(st.tuples(KINDS, st.integers(0, 6), st.integers(0, 3), st.integers(0, 12)), max_size=10)


@given(SPANS, st.randoms())
def test_an_operation_is_the_outcome_of_one_call_at_most_in_whatever_order_spans_are_given(
    drawn: list[tuple[str, int, int, int]], random: Any
) -> None:
    names = [f"{kind} {place}" for place, (kind, *_) in enumerate(drawn)]
    spans: list[Span] = []
    for name, (kind, start, length, parent) in zip(names, drawn, strict=True):
        above = names[parent] if parent < len(names) and drawn[parent][0] != "call" else None
        if kind == "call":
            spans.append(call(name, start, above))
        elif kind == "agent":
            spans.append(framework(name, "invoke_agent", start, start + length, above))
        else:
            spans.append(span(name, start, start + length, above))
    found = operations(spans)
    told = [name for own in found.values() for name in own]
    assert len(told) == len(set(told))
    ended = min((start + 1 for kind, start, *_ in drawn if kind == "call"), default=99)
    after = {n for n, (kind, start, *_) in zip(names, drawn, strict=True) if kind == "operation" and start >= ended}
    assert after <= set(told)
    random.shuffle(spans)
    assert operations(spans) == {name: found[name] for name in found}

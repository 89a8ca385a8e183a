from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data import semconv
from leyden.core.data.span import Attributes, Span
from leyden.core.errors import UsageError
from leyden.core.testing import factories
from leyden.core.trajectory.select import Selector, spans_above


def named(span_id: str, name: str, parent: str | None = None, attributes: Attributes | None = None) -> Span:
    return factories.span(name, attributes, span_id=span_id, parent_id=parent)


def spoken_by(agent: str | None, node: str | None = None) -> Span:
    attributes: Attributes = {}
    if agent is not None:
        attributes[semconv.AGENT_NAME] = agent
    if node is not None:
        attributes[semconv.NODE] = node
    return named("0" * 16, "chat", attributes=attributes)


def tree(*spans: Span) -> dict[str, Span]:
    return {span.span_id: span for span in spans}


TREE = tree(
    named("crew", "invoke_workflow research", attributes={semconv.WORKFLOW_NAME: "research"}),
    named("node", "node write", "crew", {semconv.NODE: "write"}),
    named("view", "chat gpt-4.1", "node", {"app.try": 2, "app.tags": ["draft", "long"], "app.raw": b"draft"}),
    named("call", "chat policy", "view", {"app.final": True}),
    named("other", "chat policy", "crew"),
    named("orphan", "chat policy", "never exported"),
)


@pytest.mark.parametrize(
    ("agent", "node", "selected"),
    [
        ("write_sql", None, True),
        ("graph", "rewrite", True),
        ("graph", "check", False),
        (None, "write", True),
        (None, None, False),
    ],
)
def test_agent_match_is_searched_for_in_agent_and_node(agent: str | None, node: str | None, selected: bool) -> None:
    assert Selector(agent_match="write|rewrite").selects(spoken_by(agent, node), {}) is selected


def test_none_selects_every_call() -> None:
    assert Selector().selects(spoken_by(None), {})


@pytest.mark.parametrize(
    ("pattern", "selected"),
    [
        ("^node write$", {"call"}),
        ("workflow res", {"call", "other"}),
        ("^chat policy$", {"call", "other", "orphan"}),
        ("gpt", {"call"}),
        ("nobody", set[str]()),
    ],
)
def test_span_match_looks_at_the_call_and_at_all_that_is_above_it(pattern: str, selected: set[str]) -> None:
    select = Selector(span_match=pattern)
    assert {name for name in ("call", "other", "orphan") if select.selects(TREE[name], TREE)} == selected


@pytest.mark.parametrize(
    ("attributes", "selected"),
    [
        ({semconv.WORKFLOW_NAME: "^research$"}, {"call", "other"}),
        ({semconv.WORKFLOW_NAME: "research", semconv.NODE: "write"}, {"call"}),
        ({semconv.WORKFLOW_NAME: "research", semconv.NODE: "check"}, set[str]()),
        ({"app.final": "True"}, {"call"}),
        ({"app.try": "2"}, {"call"}),
        ({"app.tags": "^long$"}, {"call"}),
        ({"app.raw": "draft"}, set[str]()),
        ({"app.missing": ""}, set[str]()),
    ],
)
def test_every_attribute_must_be_found_on_the_call_or_above_it(attributes: dict[str, str], selected: set[str]) -> None:
    select = Selector(attribute_match=attributes)
    assert {name for name in ("call", "other", "orphan") if select.selects(TREE[name], TREE)} == selected


def test_the_predicate_narrows_what_all_else_lets_through_and_sees_what_is_above() -> None:
    seen: list[tuple[str, list[str]]] = []

    def predicate(span: Span, above: Sequence[Span]) -> bool:
        seen.append((span.span_id, [one.span_id for one in above]))
        return span.span_id == "call"

    select = Selector(span_match="research", predicate=predicate)
    assert [name for name in ("call", "other", "orphan") if select.selects(TREE[name], TREE)] == ["call"]
    assert seen == [("call", ["view", "node", "crew"]), ("other", ["crew"])]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_what_is_above_is_found_once_each_whatever_the_parents_are(links: list[tuple[int, int]]) -> None:
    spans = tree(*(named(str(child), "span", str(parent)) for child, parent in links))
    for span in spans.values():
        found = [one.span_id for one in spans_above(span, spans)]
        assert len(set(found)) == len(found) and span.span_id not in found
        line = [span, *(spans[one] for one in found)]
        assert all(below.parent_id == above.span_id for below, above in pairwise(line))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"agent_match": "("}, r"agent_match '\(' is not a regular expression"),
        ({"span_match": "["}, r"span_match '\[' is not a regular expression"),
        ({"attribute_match": {"app.x": "*"}}, r"attribute_match app.x '\*' is not a regular expression"),
    ],
)
def test_a_bad_pattern_is_one_clear_line(changes: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        Selector(**changes)  # pyright: ignore[reportArgumentType]  (one set of changes for each field)
    assert "\n" not in str(caught.value)

"""Spans of any values become spans of plain data, within a size; those of plain data stay as they are."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from leyden.core.data import semconv
from leyden.core.data.plain.span_sizes import LARGEST, shortened
from leyden.core.data.plain.spans import is_plain_span, marked, plain_span
from leyden.core.data.span import MOST_BYTES, Span, SpanEvent, SpanLink, SpanStatus
from leyden.core.errors import UsageError
from leyden.core.testing import factories
from leyden.core.testing.any_values import RELEASE, AnySpan, any_spans
from leyden.core.testing.any_values.checks import small_attributes_lost
from leyden.core.testing.any_values.hostile import SPOILED, OfHostileClass

HALF, OTHER_HALF = "a\ud800", "a\udfff"
MIXED: Any = ["a", 1]
FULL = Span(
    rollout_id="ro",
    attempt_id="at",
    sequence_id=1,
    trace_id="a" * 32,
    span_id="b" * 16,
    parent_id="c" * 16,
    name="chat",
    status=SpanStatus(code="error", description="no"),
    attributes={"text": "x", "n": 1, "x": 0.5, "flag": True, "ids": b"\0", "list": MIXED},
    events=[SpanEvent(name="e", time=1.0, attributes={"k": 1})],
    links=[SpanLink(trace_id="d" * 32, span_id="e" * 16)],
    start_time=1.0,
    end_time=2.0,
    resource={"service.name": "s"},
)


def test_a_plain_span_is_known_by_its_classes() -> None:
    assert is_plain_span(FULL) and is_plain_span(factories.span())
    assert plain_span(FULL) == FULL


@pytest.mark.parametrize("field", Span.__struct_fields__)
def test_a_span_of_which_one_field_is_odd_is_not_plain(field: str) -> None:
    for odd in (SPOILED[str]("x"), SPOILED[dict](), SPOILED[list](), OfHostileClass(), b"x"):
        assert not is_plain_span(msgspec.structs.replace(FULL, **{field: odd})), field


def test_a_parent_id_with_half_of_a_surrogate_pair_is_left_out() -> None:
    span = plain_span(msgspec.structs.replace(FULL, parent_id="a\ud800b"))
    assert span.parent_id is None
    (reason,) = msgspec.convert(span.attributes[semconv.REDUCED], list[str])
    assert reason.startswith("parent_id: ")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(span), type=Span) == span


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(any_spans())
def test_any_span_becomes_plain_and_stays_so(recipe: AnySpan) -> None:
    RELEASE.set()
    given = recipe.made(rollout_id="ro", attempt_id="at", span_id="b" * 16)
    span = plain_span(given)
    assert is_plain_span(span)
    assert not small_attributes_lost(given, span)
    assert msgspec.msgpack.encode(plain_span(span)) == msgspec.msgpack.encode(span)
    short = shortened(span)
    assert short is not None and short.bytes() <= LARGEST + (1 << 20)


@pytest.mark.parametrize("field", ["name", "status"])
def test_text_that_was_shortened_is_not_shortened_again(field: str) -> None:
    text = "x" * (2 << 20)
    odd: Any = SpanStatus(code="unset", description=text) if field == "status" else text
    span = plain_span(msgspec.structs.replace(FULL, **{field: odd}))
    assert str(span.attributes[semconv.REDUCED]).count(f"of {2 << 20} characters are kept") == 1
    assert (span.events, span.links, span.resource) == (FULL.events, FULL.links, FULL.resource)
    assert plain_span(span) == span


@pytest.mark.parametrize("large", ["x" * (4 << 20), [["x"] * 100 for _ in range(500)]])
def test_what_comes_after_large_attributes_is_kept_whole(large: Any) -> None:
    small = {f"small {n}": f"value {n}" for n in range(300)}
    events = [SpanEvent(name=f"event {n}", time=1.0, attributes=dict(small)) for n in range(20)]
    odd: Any = {"large": large, "odd": SPOILED[str]("x"), **small, "large too": large}
    span = plain_span(msgspec.structs.replace(FULL, attributes=odd, events=events))
    assert span.events == events and span.links == FULL.links and span.resource == FULL.resource
    assert {name: span.attributes[name] for name in small} == small
    assert semconv.REDUCED not in span.attributes or "left out" not in str(span.attributes[semconv.REDUCED])


def bomb() -> Any:
    held: Any = "lol"
    for _ in range(25):
        held = [held, held]
    return held


@pytest.mark.parametrize("field", ["name", "start_time", "parent_id", "events", "resource"])
def test_what_is_enormous_in_one_field_leaves_the_others_room(field: str) -> None:
    ids, large = list(range(300_000)), bomb()
    attributes: Any = {"bomb": large, "more": large, "mixed": ["a", *ids], "ids": b"\0" * 9, "one": SPOILED[str]("x")}
    odd: Any = [large] if field == "events" else {"a": large} if field == "resource" else large
    given = msgspec.structs.replace(FULL, **{"attributes": attributes, "sequence_id": SPOILED[int](7), field: odd})
    span = plain_span(given)
    assert (span.sequence_id, span.status.code, span.attributes["ids"]) == (7, "error", b"\0" * 9)
    assert span.attributes["mixed"] == ["a", *ids]
    assert {"bomb", "more", "one"} < span.attributes.keys()
    assert is_plain_span(span)


def test_bytes_in_a_list_are_text_in_it() -> None:
    odd: Any = {"list": [b"\xff", "a"], "odd": SPOILED[str]("x")}
    assert plain_span(msgspec.structs.replace(FULL, attributes=odd)).attributes["list"] == ["/w==", "a"]


def test_names_of_attributes_that_are_read_alike_are_all_kept() -> None:
    attributes: Any = {HALF: 1, OTHER_HALF: 2, 1: 3, "1": 4}
    kept = plain_span(msgspec.structs.replace(FULL, attributes=attributes)).attributes
    reasons = kept.pop(semconv.REDUCED)
    assert kept == {"a\ufffd": 1, "a\ufffd (2)": 2, "1": 3, "1 (2)": 4}
    assert isinstance(reasons, list) and len(reasons) == 5


def test_what_no_span_is_and_what_has_no_identity_is_refused() -> None:
    odd_ones: list[Any] = [None, 5, {}, OfHostileClass()]
    for odd in (*odd_ones, msgspec.structs.replace(FULL, span_id=SPOILED[int](5))):
        with pytest.raises(UsageError):
            plain_span(odd)


def test_reasons_add_up() -> None:
    once = marked(FULL, ["one"])
    assert marked(once, ["two"]).attributes[semconv.REDUCED] == ["one", "two"]
    assert marked(FULL, []) is FULL


def test_of_several_large_attributes_the_largest_are_shortened_alike() -> None:
    sizes = {"a": 900, "b": 5000, "c": 5000, "d": 10}
    attributes: Any = {name: "x" * size for name, size in sizes.items()}
    span = msgspec.structs.replace(FULL, attributes=attributes, events=[], links=[])
    short = shortened(span, 5000)
    assert short is not None and short.bytes() <= 5500
    kept = {name: len(str(short.attributes[name])) for name in sizes}
    assert (kept["a"], kept["d"]) == (900, 10) and kept["b"] == kept["c"] > 1000
    assert short.attributes[semconv.REDUCED] == [
        f"attributes.{name}: the beginning of 5000 bytes is kept" for name in ("b", "c")
    ]


def test_a_span_within_its_size_is_not_touched_and_what_is_trained_on_never() -> None:
    assert shortened(FULL) is FULL
    ids: Any = {semconv.PROMPT_IDS: b"\0" * 10_000, "note": "x" * 10_000}
    span = msgspec.structs.replace(FULL, attributes=ids)
    assert shortened(span, 5000) is None
    kept = shortened(span, 15_000)
    assert kept is not None and kept.attributes[semconv.PROMPT_IDS] == ids[semconv.PROMPT_IDS]


@pytest.mark.parametrize(
    "odd",
    [
        {"name": "n" * 100_000},
        {"events": [SpanEvent(name="e" * 100_000, time=1.0)]},
        {"resource": {"r": "x" * 100_000}},
        {"status": SpanStatus(description="s" * 100_000)},
        {"attributes": {"k" * 100_000: 1}},
        {"attributes": {str(n): "x" * 100 for n in range(12_000)}},
        {"attributes": {"list": ["é" * 1000] * 100}},
        {"attributes": {"bytes": b"\0" * 100_000, "text": "\U0001f600" * 100_000}},
    ],
    ids=lambda odd: next(iter(odd)),
)
def test_whatever_of_a_span_is_enormous_it_fits(odd: dict[str, Any]) -> None:
    short = shortened(msgspec.structs.replace(FULL, **odd), 60_000)
    assert short is not None and short.bytes() < 70_000 and semconv.REDUCED in short.attributes
    assert len(msgspec.msgpack.encode(short)) < 70_000


def test_bytes_are_those_of_utf_8() -> None:
    for text in ("x" * 1000, "é" * 1000, "\U0001f600" * 1000):
        span = msgspec.structs.replace(FULL, attributes={"text": text, "list": [text]})
        packed = len(msgspec.msgpack.encode(span))
        assert packed <= span.bytes() <= packed + 1500
    assert MOST_BYTES > LARGEST

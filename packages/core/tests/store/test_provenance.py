"""Records of model calls that no gateway wrote are taken off spans, whatever they look like; all else stays."""

from typing import Any

import pytest
from msgspec.structs import replace

from leyden.core.data import semconv
from leyden.core.data.plain.span_sizes import shortened
from leyden.core.data.span import SpanEvent, SpanLink
from leyden.core.errors import UsageError
from leyden.core.store.provenance import without_call_records
from leyden.core.testing.factories import span

ANNOTATED: dict[str, Any] = {
    semconv.OPERATION: "chat",
    semconv.AGENT_NAME: "writer",
    semconv.NODE: "draft",
    semconv.FRAMEWORK: "langchain",
    semconv.REWARD_VALUE: 0.5,
    semconv.RESULT: "done",
    semconv.OUTPUT_MESSAGES: "[]",
    semconv.OUTPUT_TOKENS: 3,
}
"""What adapters, emitters and runners write."""


class Unlike(str):
    """A key that is equal to none, and is stored as the text that it is."""

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 1


async def test_spans_without_a_record_are_the_very_spans() -> None:
    given = [span(attributes=ANNOTATED, resource={"service.name": "a"}), span(events=[SpanEvent(name="e", time=1.0)])]
    assert all(one is other for one, other in zip(await without_call_records(given), given, strict=True))


@pytest.mark.parametrize("name", sorted(semconv.CALL_RECORD))
async def test_each_name_is_removed_and_all_else_stays(name: str) -> None:
    given = span(attributes={**ANNOTATED, name: "x"})
    [kept] = await without_call_records([given])
    assert kept == replace(given, attributes={**ANNOTATED, semconv.FORGED: [name]})


async def test_wherever_it_is_written() -> None:
    forged: dict[str, Any] = {semconv.CALL_ID: "x", "a": 1}
    given = span(
        attributes={Unlike(semconv.PROMPT_IDS): b"", "b": 2},
        resource=forged,
        events=[SpanEvent(name="e", time=1.0, attributes=forged)],
        links=[SpanLink(trace_id="0" * 32, span_id="0" * 16, attributes=forged)],
    )
    [kept] = await without_call_records([given])
    assert kept.attributes == {semconv.FORGED: [semconv.CALL_ID, semconv.PROMPT_IDS], "b": 2}
    assert [kept.resource, kept.events[0].attributes, kept.links[0].attributes] == [{"a": 1}] * 3


@pytest.mark.parametrize("said", [0, "", [], [semconv.POLICY], [1, "y"]])
async def test_what_the_span_says_of_it_itself_hides_nothing(said: Any) -> None:
    [kept] = await without_call_records([span(attributes={semconv.FORGED: said, semconv.CALL_ID: "x"})])
    names: Any = kept.attributes[semconv.FORGED]
    assert semconv.CALL_ID in names
    assert await without_call_records([kept]) == [kept]


async def test_the_mark_stays_where_a_span_is_shortened() -> None:
    many: dict[str, Any] = {f"n{number}": number for number in range(12_000)}
    [kept] = await without_call_records([span(attributes={**many, semconv.CALL_ID: "x"})])
    short = shortened(kept, most=200_000)
    assert short is not None
    assert len(short.attributes) < len(many)
    assert short.attributes[semconv.FORGED] == [semconv.CALL_ID]


async def test_a_span_without_an_identity_is_refused() -> None:
    odd: Any = 7
    with pytest.raises(UsageError, match="span_id"):
        await without_call_records([span(span_id=odd)])

"""Store contract, storing of spans: numbers, duplicates, batches, and the content of spans."""

# ruff: noqa: D102 (a test's name is its documentation)

import asyncio
import logging
from typing import Any, cast

import msgspec
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import Link, Status, StatusCode

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids
from leyden.core.data.span import Span, SpanEvent, SpanLink, SpanStatus
from leyden.core.errors import IllegalMove, NotFound, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.testing.store_contract.shared import MISSING, StoreTests, attempt_now, claimed, rollout_now, span_of

NOT_ONE: Any = SpanStatus(description="of a code that is none", code=cast("Any", "nope"))


class SpanIntakeTests(StoreTests):
    """Storing of spans."""

    async def test_one_counter_per_rollout_over_all_attempts(self, store: LightningStore) -> None:
        first = await claimed(store)
        rollout_id, attempt_id = first.rollout_id, first.attempt.attempt_id
        assert [await store.get_next_span_sequence_id(rollout_id, attempt_id) for _ in range(2)] == [1, 2]
        second = await store.start_attempt(rollout_id)
        assert await store.get_next_span_sequence_id(rollout_id, second.attempt.attempt_id) == 3
        assert await store.get_next_span_sequence_id(rollout_id, "latest") == 4
        assert await store.get_next_span_sequence_id(rollout_id, "no such attempt") == 5
        other = await claimed(store)
        pairs = [(rollout_id, "latest"), (other.rollout_id, "latest"), (rollout_id, "latest")]
        assert await store.get_many_span_sequence_ids(pairs) == [6, 1, 7]
        with pytest.raises(NotFound):
            await store.get_next_span_sequence_id(MISSING, "latest")

    async def test_a_number_in_a_span_lifts_the_counter(self, store: LightningStore) -> None:
        got = await claimed(store)
        stored = await store.add_span(span_of(got.attempt, "1", 100))
        assert stored is not None and stored.sequence_id == 100
        assert await store.get_next_span_sequence_id(got.rollout_id, "latest") == 101
        await store.add_span(span_of(got.attempt, "2", 7))
        stored = await store.add_span(span_of(got.attempt, "3"))
        assert stored is not None and stored.sequence_id == 102
        numbers = {"4": 200, "5": 150, "6": 0}
        batch = await store.add_many_spans([span_of(got.attempt, name, number) for name, number in numbers.items()])
        assert [span.sequence_id for span in batch] == [200, 150, 201]
        with pytest.raises(ValueError, match="start at 1"):
            await store.add_span(span_of(got.attempt, "7", -1))

    async def test_many_at_once_get_different_numbers(self, store: LightningStore) -> None:
        got = await claimed(store)
        stored = await asyncio.gather(*(store.add_span(span_of(got.attempt, f"{n:x}")) for n in range(30)))
        assert sorted(span.sequence_id for span in stored if span is not None) == list(range(1, 31))
        page = await store.query_spans(got.rollout_id)
        assert [span.sequence_id for span in page] == list(range(1, 31))

    async def test_a_duplicate_is_left_out_and_logged(
        self, store: LightningStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        got = await claimed(store)
        await store.add_span(span_of(got.attempt, "1"))
        before = await attempt_now(store, got.attempt)
        assert "already stored" not in caplog.text
        with caplog.at_level(logging.ERROR, "leyden"):
            assert await store.add_span(span_of(got.attempt, "1", name="another")) is None
        assert "already stored" in caplog.text
        assert await attempt_now(store, got.attempt) == before
        batch = [span_of(got.attempt, span_id) for span_id in ("2", "1", "2", "3")]
        assert [span.span_id[-1] for span in await store.add_many_spans(batch)] == ["2", "3"]
        page = await store.query_spans(got.rollout_id)
        assert [(span.sequence_id, span.span_id[-1], span.name) for span in page] == [
            (1, "1", "chat"),
            (2, "2", "chat"),
            (3, "3", "chat"),
        ]

    async def test_the_same_id_under_another_attempt_is_no_duplicate(self, store: LightningStore) -> None:
        first = await claimed(store)
        second = await store.start_attempt(first.rollout_id)
        assert await store.add_span(span_of(first.attempt)) is not None
        assert await store.add_span(span_of(second.attempt)) is not None
        assert (await store.statistics())["total_spans"] == 2

    async def test_a_batch_mixes_attempts_and_is_stored_whole_or_not_at_all(self, store: LightningStore) -> None:
        first, other = await claimed(store), await claimed(store)
        second = await store.start_attempt(first.rollout_id)
        batch = [span_of(first.attempt), span_of(other.attempt), span_of(second.attempt), span_of(other.attempt, "b")]
        stored = await store.add_many_spans(batch)
        assert [(span.attempt_id, span.sequence_id) for span in stored] == [
            (first.attempt.attempt_id, 1),
            (other.attempt.attempt_id, 1),
            (second.attempt.attempt_id, 2),
            (other.attempt.attempt_id, 2),
        ]
        unknown = msgspec.structs.replace(span_of(first.attempt, "c"), attempt_id="no such attempt")
        with pytest.raises(NotFound):
            await store.add_many_spans([span_of(first.attempt, "d"), unknown])
        assert (await store.statistics())["total_spans"] == 4
        assert await store.add_many_spans([]) == []

    async def test_one_callers_bad_span_is_not_anothers_error(self, store: LightningStore) -> None:
        got = await claimed(store)
        unknown = msgspec.structs.replace(span_of(got.attempt, "bad"), rollout_id=MISSING)
        odd = msgspec.structs.replace(span_of(got.attempt, "0dd"), status=NOT_ONE)
        spans = [span_of(got.attempt, f"{n:x}") for n in range(20)]
        calls = [store.add_span(span) for span in [*spans[:10], unknown, odd, *spans[10:]]]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers.pop(10), NotFound)
        assert isinstance(answers.pop(10), UsageError)
        assert all(isinstance(answer, Span) for answer in answers)
        assert (await store.statistics())["total_spans"] == 20

    async def test_spans_of_a_finished_rollout_may_be_dropped(self, store: LightningStore) -> None:
        got, other = await claimed(store), await claimed(store)
        for claim in (got, other):
            await store.add_many_spans([span_of(claim.attempt, span_id) for span_id in ("1", "2")])
        with pytest.raises(IllegalMove, match="is running"):
            await store.drop_spans(got.rollout_id)
        await store.update_attempt(got.rollout_id, "latest", status="succeeded")
        before = await rollout_now(store, got)
        assert await store.drop_spans(got.rollout_id) == 2
        assert await store.drop_spans(got.rollout_id) == 0
        assert (list(await store.query_spans(got.rollout_id)), await rollout_now(store, got)) == ([], before)
        assert len(await store.query_spans(other.rollout_id)) == (await store.statistics())["total_spans"] == 2
        late = await store.add_span(span_of(got.attempt, "1"))
        assert late is not None and late.sequence_id == 3
        with pytest.raises(NotFound):
            await store.drop_spans(MISSING)

    async def test_a_call_that_comes_after_its_like_were_dropped_is_read_whole(self, store: LightningStore) -> None:
        got = await claimed(store)
        ids = [pack_ids(range(length)) for length in (100, 200, 300)]
        calls = [
            msgspec.structs.replace(span_of(got.attempt, f"{n}"), attributes={semconv.PROMPT_IDS: prompt})
            for n, prompt in enumerate(ids)
        ]
        await store.add_span(calls[0])
        await store.add_span(calls[1])
        await store.update_attempt(got.rollout_id, "latest", status="succeeded")
        assert await store.drop_spans(got.rollout_id) == 2
        await store.add_span(calls[2])
        assert [span.attributes for span in await store.query_spans(got.rollout_id)] == [calls[2].attributes]

    async def test_a_span_is_read_as_it_was_written(self, store: LightningStore) -> None:
        got = await claimed(store)
        lists: dict[str, list[str] | list[int] | list[float] | list[bool]] = {
            "s": ["a"],
            "i": [1],
            "f": [0.5],
            "b": [True],
        }
        span = Span(
            rollout_id=got.rollout_id,
            attempt_id=got.attempt.attempt_id,
            sequence_id=3,
            trace_id="f" * 32,
            span_id="e" * 16,
            parent_id="d" * 16,
            name="chat — ünï",
            status=SpanStatus(code="error", description="went wrong"),
            attributes={"text": "x", "flag": True, "n": 2**62, "x": 0.1, "ids": b"\x00\xff", **lists},
            events=[SpanEvent(name="event", time=1.25, attributes={"k": b"v"})],
            links=[SpanLink(trace_id="1" * 32, span_id="2" * 16, attributes={"k": [1, 2]})],
            start_time=1.0,
            end_time=None,
            resource={"service.name": "agent"},
        )
        assert await store.add_span(span) == span
        span.attributes["text"] = "changed by the caller"
        (read,) = await store.query_spans(got.rollout_id)
        assert read == msgspec.structs.replace(span, attributes={**span.attributes, "text": "x"})
        assert type(read.attributes["flag"]) is bool and type(read.attributes["ids"]) is bytes

    async def test_a_span_of_opentelemetry(self, store: LightningStore) -> None:
        got = await claimed(store)
        readable = _opentelemetry_span()
        stored = await store.add_otel_span(got.rollout_id, got.attempt.attempt_id, readable)
        assert stored is not None and readable.parent is not None
        assert (stored.sequence_id, stored.name, stored.status) == (
            1,
            "inner",
            SpanStatus(code="error", description="no"),
        )
        assert stored.parent_id == f"{readable.parent.span_id:016x}"
        assert stored.attributes == {"n": 1, "ids": b"\x01\x02", "list": ["a", "b"]}
        assert [(event.name, event.attributes) for event in stored.events] == [("event", {"k": 1})]
        assert [link.span_id for link in stored.links] == [stored.parent_id]
        assert stored.resource == {"service.name": "agent"}
        assert stored.end_time is not None and stored.end_time >= stored.start_time > 1e9
        assert list(await store.query_spans(got.rollout_id)) == [stored]
        assert await store.add_otel_span(got.rollout_id, got.attempt.attempt_id, readable) is None
        assert (await rollout_now(store, got)).status == "running"
        with pytest.raises(NotFound):
            await store.add_otel_span(MISSING, "latest", readable)


def _opentelemetry_span() -> ReadableSpan:
    tracer = TracerProvider(resource=Resource({"service.name": "agent"}), shutdown_on_exit=False).get_tracer("t")
    with tracer.start_as_current_span("outer") as outer:
        link = Link(outer.get_span_context())
        attributes = {"n": 1, "ids": b"\x01\x02", "list": ["a", "b"]}
        with tracer.start_as_current_span("inner", attributes=attributes, links=[link]) as span:
            span.add_event("event", {"k": 1})
            span.set_status(Status(StatusCode.ERROR, "no"))
    assert isinstance(span, ReadableSpan)
    return span

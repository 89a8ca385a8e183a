import asyncio
import logging
from collections.abc import Sequence

import pytest

from leyden.core.data.span import Span
from leyden.core.errors import NotFound, StoreError, UsageError
from leyden.core.gateway.calls.span_writer import SpanWriter, SpanWriterLimits
from leyden.core.store.memory import MemoryStore
from leyden.core.testing import factories

RELAXED = SpanWriterLimits(within=2.0)


def span(number: int, text: str = "", attempt: str = "attempt") -> Span:
    return factories.span(
        "chat", {"text": text}, rollout_id="rollout", attempt_id=attempt, sequence_id=0, span_id=f"{number:016x}"
    )


class SpanStore:
    """A store of spans that can fail, refuse an attempt, or take its time."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.calls = 0
        self.broken = False
        self.refusal: type[Exception] = NotFound
        self.called = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def add(self, spans: Sequence[Span]) -> None:
        self.calls += 1
        self.called.set()
        await self.open.wait()
        if self.broken:
            raise StoreError("disk full")
        if any(span.attempt_id == "unknown" for span in spans):
            raise self.refusal("there is no attempt unknown")
        self.numbers += [int(span.span_id, 16) for span in spans if int(span.span_id, 16) not in self.numbers]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_durable_record_is_stored_when_keep_returns() -> None:
    store = SpanStore()
    span_writer = SpanWriter(store.add)
    assert await span_writer.keep([span(1), span(2)])
    assert await span_writer.keep([span(3)])
    assert (store.numbers, span_writer.waiting) == ([1, 2, 3], 0)
    await span_writer.aclose()


async def test_a_relaxed_record_is_stored_soon_and_together_with_others() -> None:
    store = SpanStore()
    span_writer = SpanWriter(store.add, SpanWriterLimits(within=0.02))
    for number in range(10):
        assert await span_writer.keep([span(number)])
    assert (store.calls, span_writer.waiting) == (0, 10)
    await asyncio.wait_for(store.called.wait(), 20)
    assert await span_writer.flush()
    assert (store.numbers, store.calls) == (list(range(10)), 1)
    store.called.clear()
    await span_writer.keep([span(10)])
    await asyncio.wait_for(store.called.wait(), 20)
    await span_writer.aclose()
    assert store.numbers == list(range(11))


async def test_flushing_and_closing_store_what_waits() -> None:
    store = SpanStore()
    span_writer = SpanWriter(store.add, RELAXED)
    await span_writer.keep([span(1)])
    assert await span_writer.flush()
    assert store.numbers == [1]
    await span_writer.keep([span(2)])
    await span_writer.aclose()
    assert store.numbers == [1, 2]
    assert await span_writer.keep([span(3)])
    assert (store.numbers, span_writer.waiting) == ([1, 2, 3], 0)


@pytest.mark.parametrize(
    "limits", [SpanWriterLimits(within=2, max_spans=2), SpanWriterLimits(within=2, max_bytes=1000)]
)
async def test_a_full_buffer_makes_records_durable_and_keeps_their_order(limits: SpanWriterLimits) -> None:
    store = SpanStore()
    span_writer = SpanWriter(store.add, limits)
    for number in (1, 2):
        await span_writer.keep([span(number, "x" * 400)])
    assert store.numbers == []
    await span_writer.keep([span(3)])
    assert store.numbers == [1, 2, 3]
    await span_writer.aclose()


async def test_a_full_buffer_before_a_broken_store_is_not_added_to() -> None:
    store = SpanStore()
    store.broken = True
    span_writer = SpanWriter(store.add, SpanWriterLimits(within=2, max_spans=1))
    assert await span_writer.keep([span(1)])
    assert not await span_writer.keep([span(2)])
    assert span_writer.waiting == 1
    store.broken = False
    await span_writer.aclose()
    assert store.numbers == [1]


async def test_a_failing_store_is_tried_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    store = SpanStore()
    store.broken = True
    span_writer = SpanWriter(store.add, SpanWriterLimits(within=0.01))
    for number in range(3):
        await span_writer.keep([span(number)])
    for _ in range(2):
        store.called.clear()
        await asyncio.wait_for(store.called.wait(), 20)
    assert not await span_writer.flush()
    assert (span_writer.waiting, store.numbers) == (3, [])
    assert errors(caplog) == ["the store does not accept the records of model calls"]
    store.broken = False
    store.called.clear()
    await asyncio.wait_for(store.called.wait(), 20)
    assert await span_writer.flush()
    assert store.numbers == [0, 1, 2]
    assert "the store accepts records again" in caplog.messages
    store.broken = True
    await span_writer.keep([span(4)])
    assert not await span_writer.flush()
    assert len(errors(caplog)) == 2  # another outage
    await span_writer.aclose()
    assert errors(caplog)[-1] == "1 records of model calls could not be stored and are lost"


async def test_a_durable_record_that_fails_is_told_and_logged_once_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    store = SpanStore()
    store.broken = True
    span_writer = SpanWriter(store.add)
    assert [await span_writer.keep([span(number)]) for number in range(3)] == [False] * 3
    assert len(errors(caplog)) == 1
    store.broken = False
    assert await span_writer.keep([span(3)])
    assert not await span_writer.keep([span(4, attempt="unknown")])
    assert "span 0000000000000004 of attempt unknown could not be recorded" in errors(caplog)[-1]


@pytest.mark.parametrize("refusal", [NotFound, UsageError])
async def test_a_span_the_store_refuses_takes_no_other_with_it(
    caplog: pytest.LogCaptureFixture, refusal: type[Exception]
) -> None:
    store = SpanStore()
    store.refusal = refusal
    span_writer = SpanWriter(store.add, RELAXED)
    for number in range(5):
        await span_writer.keep([span(number, attempt="unknown" if number == 2 else "attempt")])
    assert await span_writer.flush()
    assert (store.numbers, span_writer.waiting) == ([0, 1, 3, 4], 0)
    assert len(errors(caplog)) == 1
    await span_writer.aclose()


async def test_a_caller_that_is_cut_off_leaves_its_record_to_be_stored() -> None:
    store = SpanStore()
    store.open.clear()
    span_writer = SpanWriter(store.add)
    cut_off = asyncio.create_task(span_writer.keep([span(1)]))
    await store.called.wait()
    cut_off.cancel()
    await asyncio.wait([cut_off])
    assert (cut_off.cancelled(), span_writer.waiting) == (True, 1)
    store.open.set()
    await span_writer.aclose()
    assert store.numbers == [1]


async def test_a_record_may_wait_for_the_end_of_an_outage_behind_earlier_ones() -> None:
    store = SpanStore()
    store.broken = True
    span_writer = SpanWriter(store.add, SpanWriterLimits(within=2, max_spans=1))
    assert await span_writer.keep([span(1)])  # fills the buffer
    waiting = asyncio.create_task(span_writer.keep([span(2)], waits=True))
    while store.calls < 2:
        await asyncio.sleep(0.01)
    assert not await span_writer.keep([span(3)])
    assert not waiting.done()
    store.broken = False
    assert await asyncio.wait_for(waiting, 20)
    assert store.numbers == [1, 2]
    await span_writer.aclose()


async def test_a_caller_that_is_cut_off_in_an_outage_leaves_its_record_to_be_stored() -> None:
    store = SpanStore()
    store.broken = True
    span_writer = SpanWriter(store.add)
    cut_off = asyncio.create_task(span_writer.keep([span(1)], waits=True))
    await store.called.wait()
    await asyncio.sleep(0.01)
    cut_off.cancel()
    await asyncio.wait([cut_off])
    store.broken = False
    await span_writer.aclose()
    assert store.numbers == [1]


async def test_a_flush_that_is_cut_off_loses_nothing() -> None:
    store = SpanStore()
    store.open.clear()
    span_writer = SpanWriter(store.add, RELAXED)
    await span_writer.keep([span(1)])
    cut_off = asyncio.create_task(span_writer.flush())
    await store.called.wait()
    cut_off.cancel()
    await asyncio.wait([cut_off])
    store.open.set()
    await span_writer.aclose()
    assert store.numbers == [1]


async def test_records_kept_while_others_are_written_are_stored_after_them() -> None:
    store = SpanStore()
    store.open.clear()
    span_writer = SpanWriter(store.add, RELAXED)
    await span_writer.keep([span(1)])
    flushing = asyncio.create_task(span_writer.flush())
    await store.called.wait()
    await span_writer.keep([span(2)])
    store.open.set()
    assert await flushing
    assert store.numbers == [1]
    await span_writer.aclose()
    assert store.numbers == [1, 2]


async def test_a_store_takes_a_record_that_it_has_only_once() -> None:
    store = MemoryStore()
    rollout = await store.start_rollout("task")
    record = factories.span(rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id, sequence_id=0)
    span_writer = SpanWriter(store.add_many_spans)
    assert await span_writer.keep([record])
    assert await span_writer.keep([record])
    assert len(await store.query_spans(rollout.rollout_id)) == 1
    await store.close()
    assert not await span_writer.keep([record])


@pytest.mark.parametrize("wrong", [{"within": -1.0}, {"within": 2.5}, {"max_spans": 0}, {"max_bytes": 0}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        SpanWriterLimits(**wrong)  # pyright: ignore[reportArgumentType]  # wrong on purpose

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from leyden.core.data.span import Span
from leyden.core.errors import UsageError
from leyden.core.testing import factories
from leyden.core.tracing.context import OpenAttempt, open_attempt
from leyden.core.tracing.spans import export


class Store:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.batches = 0
        self.failures = 0
        self.refusal: type[Exception] = ValueError

    async def add(self, spans: list[Span]) -> None:
        await asyncio.sleep(0.001)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the store is away")
        if any(span.attempt_id == "at-13" for span in spans):
            raise self.refusal("no attempt at-13")
        self.batches += 1
        self.spans += spans


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def recorder(store: Store) -> AsyncIterator[export.Recorder]:
    recorder = await export.start_recording(store.add)
    yield recorder
    await recorder.stop()


def attempt(number: int = 0) -> OpenAttempt:
    trace_id = f"{number + 1:032x}"
    return factories.attempt(rollout_id=f"ro-{number}", attempt_id=f"at-{number}", trace_id=trace_id)


async def test_spans_of_an_attempt_arrive_whole_and_others_do_not(store: Store, recorder: export.Recorder) -> None:
    tracer = export.tracer()
    with tracer.start_as_current_span("nobody's"):
        pass
    with open_attempt(attempt()), tracer.start_as_current_span("outer", attributes={"a": 1}) as outer:
        outer.add_event("happened", {"b": [1, 2]})
        outer.set_attribute("c", {"deep": 1})
        with tracer.start_as_current_span("inner") as inner:
            inner.set_status(trace.StatusCode.ERROR, "broken")
    await recorder.flush()
    child, parent = store.spans
    assert (child.rollout_id, child.attempt_id, child.name) == ("ro-0", "at-0", "inner")
    assert (child.parent_id, parent.parent_id) == (parent.span_id, None)
    assert parent.trace_id == child.trace_id == f"{1:032x}"
    assert (parent.attributes, parent.sequence_id) == ({"a": 1, "c": '{"deep": 1}'}, 0)
    assert [(event.name, event.attributes) for event in parent.events] == [("happened", {"b": [1, 2]})]
    assert (child.status.code, child.status.description) == ("error", "broken")
    assert parent.start_time <= child.start_time <= (child.end_time or 0) <= (parent.end_time or 0)


async def test_a_span_belongs_to_the_attempt_it_started_in(store: Store, recorder: export.Recorder) -> None:
    with open_attempt(attempt(1)):
        span = export.tracer().start_span("late")
    with open_attempt(attempt(2)):
        span.end()
    await recorder.flush()
    assert [span.attempt_id for span in store.spans] == ["at-1"]


async def test_spans_of_many_threads_arrive_once_and_in_batches(store: Store, recorder: export.Recorder) -> None:
    def work(number: int) -> None:
        with open_attempt(attempt(number)):
            for _ in range(100):
                export.tracer().start_span("step").end()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    await asyncio.gather(*(recorder.flush() for _ in range(8)))
    assert len({span.span_id for span in store.spans}) == len(store.spans) == 800
    assert all(span.rollout_id[3:] == span.attempt_id[3:] for span in store.spans)
    assert store.batches == 2


async def test_the_background_flushes_without_being_asked(
    store: Store, recorder: export.Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_attempt(attempt()):
        export.tracer().start_span("step").end()
    async with asyncio.timeout(20):
        while not store.spans:
            await asyncio.sleep(0.01)


async def test_what_a_failing_sink_refused_is_sent_again_in_order(
    store: Store, recorder: export.Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    store.failures = 1
    with open_attempt(attempt()):
        for name in "abc":
            export.tracer().start_span(name).end()
    with caplog.at_level(logging.WARNING):
        await recorder.flush()
    assert not store.spans
    assert "could not be stored" in caplog.text
    await recorder.flush()
    assert [span.name for span in store.spans] == ["a", "b", "c"]


@pytest.mark.parametrize("refusal", [ValueError, UsageError])
async def test_a_refused_span_takes_no_other_with_it(
    store: Store, recorder: export.Recorder, caplog: pytest.LogCaptureFixture, refusal: type[Exception]
) -> None:
    store.refusal = refusal
    for number in (1, 13, 2):
        with open_attempt(attempt(number)):
            export.tracer().start_span("step").end()
    with caplog.at_level(logging.WARNING):
        await recorder.flush()
    assert [span.attempt_id for span in store.spans] == ["at-1", "at-2"]
    assert "the store refused span 'step' of attempt at-13" in caplog.text


async def test_spans_that_are_not_stored_are_counted_by_attempt_with_the_first_reason(
    store: Store, recorder: export.Recorder
) -> None:
    for number in (13, 1):
        with open_attempt(attempt(number)):
            for name in ("first", "second"):
                export.tracer().start_span(name).end()
    await recorder.flush()
    reason = "span 'first' cannot be recorded: no attempt at-13"
    assert recorder.refused("at-13") == (2, reason)
    assert recorder.refused("at-13") is None, "counted once"
    assert recorder.refused("at-1") is None


async def test_spans_that_no_longer_fit_into_the_queue_are_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "QUEUE_LIMIT", 2)
    recorder = await export.start_recording(store.add)
    try:
        with open_attempt(attempt(1)):
            for name in "abc":
                export.tracer().start_span(name).end()
        assert recorder.refused("at-1") == (
            1,
            "span 'a' cannot be recorded: more than 2 spans were waiting for the store",
        )
        await recorder.flush()
        assert [span.name for span in store.spans] == ["b", "c"]
    finally:
        await recorder.stop()


async def test_a_cancelled_flush_loses_nothing(store: Store, recorder: export.Recorder) -> None:
    with open_attempt(attempt()):
        export.tracer().start_span("step").end()
    flush = asyncio.create_task(recorder.flush())
    await asyncio.sleep(0)
    flush.cancel()
    await asyncio.gather(flush, return_exceptions=True)
    await recorder.flush()
    assert len(store.spans) == 1


async def test_after_stop_nothing_is_recorded(store: Store) -> None:
    recorder = await export.start_recording(store.add)
    await recorder.stop()
    with open_attempt(attempt()):
        export.provider().get_tracer("x").start_span("step").end()
    await recorder.flush()
    assert not store.spans


async def test_a_provider_that_was_given_is_respected(store: Store, recorder: export.Recorder) -> None:
    theirs, exporter = TracerProvider(), InMemorySpanExporter()
    theirs.add_span_processor(SimpleSpanProcessor(exporter))
    with open_attempt(attempt()):
        export.tracer(theirs).start_span("step").end()
    await recorder.flush()
    assert not store.spans
    assert [span.name for span in exporter.get_finished_spans()] == ["step"]


@pytest.mark.integration
@pytest.mark.parametrize("theirs", [True, False])
def test_ours_becomes_global_only_where_none_is_set(theirs: bool) -> None:
    script = f"""
import asyncio
from leyden.core.tracing.spans import export
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
provider = TracerProvider()
if {theirs}:
    trace.set_tracer_provider(provider)
async def main():
    async def sink(spans): pass
    recorder = await export.start_recording(sink)
    assert trace.get_tracer_provider() is (provider if {theirs} else export.provider())
    await recorder.stop()
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", script], check=True)

"""Span export: OpenTelemetry spans that start inside an open attempt become `Span`s and reach a sink in batches.

The tracer provider is ours alone, except that it becomes the global one where none is set; adapters' own spans do
without it. A killed attempt loses only the spans that are still open. Knows nothing of stores.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.errors import REFUSALS
from leyden.core.store.provenance import without_call_records
from leyden.core.store.sdk_spans import span_from_otel
from leyden.core.tracing.context import current_attempt
from leyden.core.tracing.spans.lightweight_spans import RESOURCE, OwnSpan, OwnTracer

log = logging.getLogger("leyden.export")

Sink: TypeAlias = Callable[[list[Span]], Awaitable[object]]
"""Takes finished spans of any attempts, such as `LightningStore.add_many_spans`."""

BATCH = 512
INTERVAL_SECONDS = 0.2
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_WANTED = ("true", "1", "span_only", "span_and_event")
QUEUE_LIMIT = 100_000
"""While the sink fails, spans wait; beyond this many the oldest are dropped."""
MOST_REFUSED = 10_000
"""Attempts of which it is kept that spans were not stored; beyond this many the oldest are forgotten."""


class NotStored(NamedTuple):
    """Spans of one attempt that were dropped."""

    spans: int
    reason: str
    """Why the first of them was."""


class Recorder(SpanProcessor):
    """Collects finished spans from every thread and hands them to `sink` on the loop that started it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._queue: deque[Span] = deque(maxlen=QUEUE_LIMIT)
        self._refused: dict[str, NotStored] = {}
        self._sending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """Note for whom `span` works; a span started outside any attempt stays unmarked."""
        attempt = current_attempt()
        if attempt is not None:
            span.set_attributes({semconv.ROLLOUT_ID: attempt.rollout_id, semconv.ATTEMPT_ID: attempt.attempt_id})

    def on_end(self, span: ReadableSpan) -> None:
        """Queue `span` if it works for an attempt."""
        try:
            if (ours := _span(span)) is not None:
                self.take(ours)
        except Exception as error:
            log.exception("A span could not be recorded")
            self._note_refused(str((span.attributes or {}).get(semconv.ATTEMPT_ID, "")), span.name, repr(error))

    def take(self, span: Span) -> None:
        """Queue a span that has ended."""
        if len(self._queue) == QUEUE_LIMIT:
            oldest = self._queue[0]
            self._note_refused(oldest.attempt_id, oldest.name, f"more than {QUEUE_LIMIT} spans waited for the store")
        self._queue.append(span)

    def refused(self, attempt_id: str) -> "NotStored | None":
        """What of an attempt was dropped so far; each time it is returned, it is counted anew from then on."""
        return self._refused.pop(attempt_id, None)

    def _note_refused(self, attempt_id: str, name: str, reason: str) -> None:
        known = self._refused.pop(attempt_id, None)
        spans, first = (0, f"span {name!r} cannot be recorded: {reason}") if known is None else known
        self._refused[attempt_id] = NotStored(spans + 1, first)
        if len(self._refused) > MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing: only `flush`, on the recorder's own loop, can wait for the sink."""
        return not self._queue

    async def flush(self) -> None:
        """Return when every span that had ended before the call is in the sink, or the sink has failed (logged)."""
        async with self._sending:
            alone = 0  # so many spans at the front were refused together and are sent one by one
            while self._queue:
                size = 1 if alone else min(BATCH, len(self._queue))
                batch = [self._queue.popleft() for _ in range(size)]
                alone = max(alone - 1, 0)
                try:
                    await self._sink(await without_call_records(batch))
                except BaseException as error:
                    refused = isinstance(error, REFUSALS)  # such as an attempt that the store does not know
                    if refused and size == 1:
                        log.warning("span %r of attempt %s is refused: %s", batch[0].name, batch[0].attempt_id, error)
                        self._note_refused(batch[0].attempt_id, batch[0].name, str(error))
                        continue
                    self._queue.extendleft(reversed(batch))
                    if not isinstance(error, Exception):
                        raise
                    if not refused:
                        log.warning("%d spans could not be stored and will be tried again: %r", size, error)
                        return
                    alone = size

    def start(self) -> None:
        """Flush every `INTERVAL_SECONDS` on the running loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Flush and stop recording."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()
        if self._queue:
            log.error("%d spans were never stored", len(self._queue))
        _switch.recorders = tuple(r for r in _switch.recorders if r is not self)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            await self.flush()


class _Switch(SpanProcessor):
    """The provider's only processor: passes on to the recorders of the moment, so that none stays behind."""

    recorders: tuple[Recorder, ...] = ()

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        for recorder in self.recorders:
            recorder.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        for recorder in self.recorders:
            recorder.on_end(span)

    def take(self, span: Span) -> None:
        for recorder in self.recorders:
            recorder.take(span)


class _AttemptIds(RandomIdGenerator):
    """Gives a span without a parent its attempt's trace."""

    def generate_trace_id(self) -> int:
        attempt = current_attempt()
        return super().generate_trace_id() if attempt is None else int(attempt.trace_id, 16)


_switch = _Switch()
_provider: TracerProvider | None = None
_own_tracer = OwnTracer(_switch.take)
_tracer: tuple[trace.TracerProvider | None, trace.Tracer] = (None, trace.NoOpTracer())
"""The provider that was asked last, and its tracer."""


def provider() -> TracerProvider:
    """Return the process's own tracer provider; environment variables neither sample nor shorten its spans."""
    global _provider
    if _provider is None:
        unlimited = SpanLimits.UNSET
        _provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource(RESOURCE),
            shutdown_on_exit=False,
            id_generator=_AttemptIds(),
            span_limits=SpanLimits(max_span_attributes=unlimited, max_span_attribute_length=unlimited),
        )
        _provider.add_span_processor(_switch)
    return _provider


async def start_recording(sink: Sink) -> Recorder:
    """Record spans of attempts into `sink` from now on, in the running loop's background; `Recorder.stop` ends it."""
    ours = provider()
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        trace.set_tracer_provider(ours)
    recorder = Recorder(sink)
    recorder.start()
    _switch.recorders = (*_switch.recorders, recorder)
    return recorder


def tracer(given: trace.TracerProvider | None = None) -> trace.Tracer:
    """Return the tracer that an adapter writes to: of the provider given, ours while recording, or the global."""
    global _tracer
    chosen, (last, known) = _chosen(given), _tracer
    if chosen is _provider:
        return _own_tracer
    if chosen is last:  # making one costs as much as a span
        return known
    made = chosen.get_tracer("leyden")
    _tracer = chosen, made
    return made


def start_span(
    title: str,
    under: trace.Span | None,
    attributes: Mapping[str, Any],
    *,
    started: int,
    kind: trace.SpanKind = trace.SpanKind.INTERNAL,
    given: trace.TracerProvider | None = None,
) -> trace.Span:
    """Start a span that an adapter writes to `tracer(given)`, below `under`; `started` is Unix nanoseconds."""
    if is_ours(given):
        return _own_tracer.below(under, title, attributes, started)
    context = Context() if under is None else trace.set_span_in_context(under, Context())
    return tracer(given).start_span(title, context, kind, attributes, start_time=started)


def may_tell_content(given: trace.TracerProvider | None = None) -> bool:
    """Whether what was said may be written to the tracer of `given`: always to ours, elsewhere if it is asked for.

    It is asked for by the environment variable of OpenTelemetry's own instrumentors, `CONTENT`.
    """
    return is_ours(given) or os.environ.get(CONTENT, "").lower() in _WANTED


def is_ours(given: trace.TracerProvider | None = None) -> bool:
    """Whether the spans of the tracer of `given` are recorded by Leyden and go nowhere else."""
    return _chosen(given) is _provider


def is_global(given: trace.TracerProvider | None = None) -> bool:
    """Whether `tracer(given)` writes where frameworks with spans of their own write theirs: to the global provider."""
    return _chosen(given) is trace.get_tracer_provider()


def is_beside(span: trace.Span, given: trace.TracerProvider | None = None) -> bool:
    """Whether what the tracer of `given` writes can hang from `span`: nothing that is ours hangs from foreign spans."""
    if not is_ours(given) or isinstance(span, OwnSpan):
        return True
    return getattr(span, "resource", None) is provider().resource


def _chosen(given: trace.TracerProvider | None) -> trace.TracerProvider:
    return given or (provider() if _switch.recorders else trace.get_tracer_provider())


def _span(readable: ReadableSpan) -> Span | None:
    """Return `readable` as ours, or None when it works for no attempt."""
    marks = readable.attributes or {}
    if semconv.ATTEMPT_ID not in marks:
        return None
    span = span_from_otel(readable, str(marks[semconv.ROLLOUT_ID]), str(marks[semconv.ATTEMPT_ID]))
    del span.attributes[semconv.ROLLOUT_ID], span.attributes[semconv.ATTEMPT_ID]  # its own dict, made just now
    return span

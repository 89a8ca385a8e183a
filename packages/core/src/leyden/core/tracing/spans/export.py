"""Span export: converts OpenTelemetry spans that start inside an open attempt to `Span`s and sends them to a sink.

The sink receives batches. Leyden's tracer provider is separate from the application's, but becomes the global one where
none is set. Adapters' own spans do not use it. A killed attempt loses only the spans that are still open.
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
from leyden.core.tracing.spans.lightweight_spans import RESOURCE, LightweightSpan, LightweightTracer

log = logging.getLogger("leyden.export")

Sink: TypeAlias = Callable[[list[Span]], Awaitable[object]]
"""Stores finished spans of any attempts, such as `LightningStore.add_many_spans`."""

BATCH = 512
INTERVAL_SECONDS = 0.2
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_TRUE_VALUES = ("true", "1", "span_only", "span_and_event")
QUEUE_LIMIT = 100_000
"""Most spans that wait while the sink fails. Beyond it the oldest are dropped."""
MOST_REFUSED = 10_000
"""Most attempts for which dropped spans are counted. Beyond it the oldest are forgotten."""


class DroppedSpans(NamedTuple):
    """Number of dropped spans of one attempt."""

    spans: int
    reason: str
    """Reason for the first of them."""


class Recorder(SpanProcessor):
    """Collects finished spans from all threads and sends them to `sink` on the event loop that started it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._queue: deque[Span] = deque(maxlen=QUEUE_LIMIT)
        self._refused: dict[str, DroppedSpans] = {}
        self._sending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """Mark `span` with the current attempt's ids. A span started outside any attempt stays unmarked."""
        attempt = current_attempt()
        if attempt is not None:
            span.set_attributes({semconv.ROLLOUT_ID: attempt.rollout_id, semconv.ATTEMPT_ID: attempt.attempt_id})

    def on_end(self, span: ReadableSpan) -> None:
        """Queue `span` if it is marked with an attempt."""
        try:
            if (converted := _span(span)) is not None:
                self.take(converted)
        except Exception as error:
            log.exception("A span could not be recorded")
            self._count_refused(str((span.attributes or {}).get(semconv.ATTEMPT_ID, "")), span.name, repr(error))

    def take(self, span: Span) -> None:
        """Queue a span that has ended."""
        if len(self._queue) == QUEUE_LIMIT:
            oldest = self._queue[0]
            self._count_refused(
                oldest.attempt_id, oldest.name, f"more than {QUEUE_LIMIT} spans were waiting for the store"
            )
        self._queue.append(span)

    def refused(self, attempt_id: str) -> "DroppedSpans | None":
        """Return the count of an attempt's dropped spans since the last call, and reset it.

        None: no span was dropped.
        """
        return self._refused.pop(attempt_id, None)

    def _count_refused(self, attempt_id: str, name: str, reason: str) -> None:
        counted = self._refused.pop(attempt_id, None)
        spans, first = (0, f"span {name!r} cannot be recorded: {reason}") if counted is None else counted
        self._refused[attempt_id] = DroppedSpans(spans + 1, first)
        if len(self._refused) > MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing: only `flush`, on the recorder's own loop, can wait for the sink.

        Returns whether the queue is empty.
        """
        return not self._queue

    async def flush(self) -> None:
        """Send all spans that had ended before the call.

        Returns early when the sink fails, which is logged. The spans then stay queued. A span that the sink refuses is
        dropped and counted.
        """
        async with self._sending:
            alone = 0  # number of spans at the front that were refused as a batch and are sent one by one
            while self._queue:
                size = 1 if alone else min(BATCH, len(self._queue))
                batch = [self._queue.popleft() for _ in range(size)]
                alone = max(alone - 1, 0)
                try:
                    await self._sink(await without_call_records(batch))
                except BaseException as error:
                    refused = isinstance(error, REFUSALS)  # for example an attempt that the store does not have
                    if refused and size == 1:
                        log.warning(
                            "the store refused span %r of attempt %s: %s", batch[0].name, batch[0].attempt_id, error
                        )
                        self._count_refused(batch[0].attempt_id, batch[0].name, str(error))
                        continue
                    self._queue.extendleft(reversed(batch))
                    if not isinstance(error, Exception):
                        raise
                    if not refused:
                        log.warning("%d spans could not be stored, trying again later: %r", size, error)
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
            log.error("%d spans could not be stored and are lost", len(self._queue))
        _switch.recorders = tuple(r for r in _switch.recorders if r is not self)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            await self.flush()


class _Switch(SpanProcessor):
    """The provider's only processor. It forwards to the current recorders, so that none stays registered."""

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
    """Generates ids. A span without a parent gets its attempt's trace id."""

    def generate_trace_id(self) -> int:
        attempt = current_attempt()
        return super().generate_trace_id() if attempt is None else int(attempt.trace_id, 16)


_switch = _Switch()
_provider: TracerProvider | None = None
_own_tracer = LightweightTracer(_switch.take)
_tracer: tuple[trace.TracerProvider | None, trace.Tracer] = (None, trace.NoOpTracer())
"""The last chosen provider and its tracer."""


def provider() -> TracerProvider:
    """Return Leyden's tracer provider of this process. Environment variables do not sample or shorten its spans."""
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
    """Record spans of attempts into `sink` from now on, in the background of the running loop.

    `Recorder.stop` ends it.
    """
    own_provider = provider()
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        trace.set_tracer_provider(own_provider)
    recorder = Recorder(sink)
    recorder.start()
    _switch.recorders = (*_switch.recorders, recorder)
    return recorder


def tracer(given: trace.TracerProvider | None = None) -> trace.Tracer:
    """Return the tracer for an adapter's spans.

    It is that of the provider `given`, else Leyden's own while a recorder runs, else that of the global provider.
    """
    global _tracer
    chosen, (last, last_tracer) = _chosen(given), _tracer
    if chosen is _provider:
        return _own_tracer
    if chosen is last:  # making a tracer costs as much as a span
        return last_tracer
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
    """Start an adapter's span below `under`, with `tracer(given)`. `started` is in Unix nanoseconds."""
    if is_ours(given):
        return _own_tracer.below(under, title, attributes, started)
    context = Context() if under is None else trace.set_span_in_context(under, Context())
    return tracer(given).start_span(title, context, kind, attributes, start_time=started)


def may_export_content(given: trace.TracerProvider | None = None) -> bool:
    """Return whether content of messages may be written to the tracer of `given`.

    Always True for Leyden's own tracer. For others the environment variable of OpenTelemetry's own instrumentors,
    `CONTENT`, must allow it.
    """
    return is_ours(given) or os.environ.get(CONTENT, "").lower() in _TRUE_VALUES


def is_ours(given: trace.TracerProvider | None = None) -> bool:
    """Return whether the spans of `tracer(given)` are recorded by Leyden and sent nowhere else."""
    return _chosen(given) is _provider


def is_global(given: trace.TracerProvider | None = None) -> bool:
    """Return whether `tracer(given)` writes to the global provider, as frameworks with their own spans do."""
    return _chosen(given) is trace.get_tracer_provider()


def may_be_parent(span: trace.Span, given: trace.TracerProvider | None = None) -> bool:
    """Return whether `span` may be the parent of spans of `tracer(given)`.

    Leyden's own spans must not have foreign parents.
    """
    if not is_ours(given) or isinstance(span, LightweightSpan):
        return True
    return getattr(span, "resource", None) is provider().resource


def _chosen(given: trace.TracerProvider | None) -> trace.TracerProvider:
    return given or (provider() if _switch.recorders else trace.get_tracer_provider())


def _span(readable: ReadableSpan) -> Span | None:
    """Convert `readable` to a `Span`. Returns None when it is not marked with an attempt."""
    marks = readable.attributes or {}
    if semconv.ATTEMPT_ID not in marks:
        return None
    span = span_from_otel(readable, str(marks[semconv.ROLLOUT_ID]), str(marks[semconv.ATTEMPT_ID]))
    del span.attributes[semconv.ROLLOUT_ID], span.attributes[semconv.ATTEMPT_ID]  # a dict made for this span
    return span

"""Span writer: writes the spans of model calls to the store, at once or after a short delay.

Durable mode writes the spans before `keep` returns. Relaxed mode writes them within two seconds at most, so a killed
process may lose the spans of up to two seconds. No span of the buffer is lost while the process lives: the writer
retries a failed write, in order.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from leyden.core.data.span import Span
from leyden.core.errors import REFUSALS, StoreError, UsageError
from leyden.core.store.outage import through_outage

Add: TypeAlias = Callable[[Sequence[Span]], Awaitable[object]]
"""Function that stores spans atomically and each span only once, such as `LightningStore.add_many_spans`."""

LONGEST_DELAY = 2.0
BATCH = 512
FIRST_RETRY, LONGEST_RETRY = 0.1, 5.0

_log = logging.getLogger("leyden.gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanWriterLimits:
    """Limits on how long and how many spans may wait to be stored; by default, no span waits."""

    within: float = 0.0
    """Seconds a span may wait; 0 stores every span before its response ends."""
    max_spans: int = 4096
    max_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if not 0 <= self.within <= LONGEST_DELAY:
            raise UsageError(f"records may be delayed by 0 to {LONGEST_DELAY:g} seconds, not {self.within}")
        if self.max_spans < 1 or self.max_bytes < 1:
            raise UsageError("a buffer of records must hold at least one span and one byte")


class SpanWriter:
    """Span writer that stores spans with `add`; it belongs to one event loop. Close it before the store."""

    def __init__(self, add: Add, limits: SpanWriterLimits | None = None) -> None:
        self._add = add
        self._limits = limits or SpanWriterLimits()
        self._buffer: deque[tuple[Span, int]] = deque()
        self._bytes = 0
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None
        self._failing = self._closed = False

    @property
    def waiting(self) -> int:
        """Number of spans that are not stored yet."""
        return len(self._buffer)

    async def keep(self, spans: Sequence[Span], *, waits: bool = False) -> bool:
        """Store `spans` now, or buffer them; return False if they could not be stored, which is logged.

        With `waits`, wait for the end of the store's outage; see `through_outage`.
        """
        if self._limits.within and not self._closed and self._has_room():
            self._enqueue(spans)
            return True

        async def store() -> None:
            if self._buffer and not await self.flush():  # keep the order: earlier spans are stored first
                raise StoreError("earlier records of model calls are not stored")
            await self._add(spans)

        try:
            await (through_outage(store) if waits else store())
        except asyncio.CancelledError:
            # The write may have succeeded; a second write is safe, as the store keeps a span once.
            self._enqueue(spans)
            raise
        except Exception as error:
            self._log_failure(spans, error)
            return False
        self._log_recovery()
        return True

    async def flush(self) -> bool:
        """Store all buffered spans; return False if the store fails, which is logged."""
        async with self._writing:
            left = len(self._buffer)
            while left > 0:
                written = await self._write(min(left, BATCH))
                if not written:
                    return False
                left -= written
        return True

    async def aclose(self) -> None:
        """Store the remaining spans; spans that the store still does not take are lost, and their number is logged."""
        self._closed = True
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])
            self._writer = None
        if not await self.flush():
            _log.error("%d records of model calls could not be stored and are lost", len(self._buffer))

    def _has_room(self) -> bool:
        return len(self._buffer) < self._limits.max_spans and self._bytes < self._limits.max_bytes

    def _enqueue(self, spans: Sequence[Span]) -> None:
        for span in spans:
            size = span.size()
            self._buffer.append((span, size))
            self._bytes += size
        if self._writer is None and not self._closed:
            self._writer = asyncio.create_task(self._run(), name="leyden records")

    async def _run(self) -> None:
        """Write the buffer after a delay, and retry failed writes, until the buffer is empty."""
        normal_delay = delay = self._limits.within / 2  # the other half of the time is for the write itself
        while self._buffer:
            await asyncio.sleep(delay)
            stored = await self.flush()
            delay = normal_delay if stored else min(max(2 * delay, FIRST_RETRY), LONGEST_RETRY)
        self._writer = None

    async def _write(self, size: int) -> int:
        """Store the first `size` spans of the buffer; return how many spans left the buffer, or 0 if the write failed.

        A span that the store rejects also leaves the buffer, and is logged.
        """
        batch = [span for span, _ in islice(self._buffer, size)]
        try:
            await self._add(batch)
        except REFUSALS as error:  # the store works, but rejects one of these spans
            if size > 1:
                return await self._write(1)
            self._log_rejected(batch[0], error)
        except Exception as error:
            self._log_failure(batch, error)
            return 0
        else:
            self._log_recovery()
        for _ in range(size):
            self._bytes -= self._buffer.popleft()[1]
        return size

    def _log_failure(self, spans: Sequence[Span], error: Exception) -> None:
        if isinstance(error, REFUSALS):
            for span in spans:
                self._log_rejected(span, error)
        elif not self._failing:
            self._failing = True
            _log.error("the store does not accept the records of model calls", exc_info=error)

    def _log_rejected(self, span: Span, error: Exception) -> None:
        _log.error("span %s of attempt %s could not be recorded: %s", span.span_id, span.attempt_id, error)

    def _log_recovery(self) -> None:
        if self._failing:
            self._failing = False
            _log.warning("the store accepts records again")

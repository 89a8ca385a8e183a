"""`Keeper`: when the record of a call reaches the store. Knows nothing of calls, only of spans.

Durable: before `keep` returns. Relaxed: within two seconds at most, so that a process that is killed may lose as much.
Spans are never lost while the process lives: what the store does not take now is tried again, in order.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from leyden.core.data.span import Span
from leyden.core.errors import REFUSALS, UsageError

Add: TypeAlias = Callable[[Sequence[Span]], Awaitable[object]]
"""Stores spans, all or none, and each only once: `LightningStore.add_many_spans`."""

LONGEST_DELAY = 2.0
BATCH = 512
FIRST_RETRY, LONGEST_RETRY = 0.1, 5.0

_log = logging.getLogger("leyden.gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperLimits:
    """How long a span may wait to be stored, and how many may; by default none does."""

    within: float = 0.0
    """Seconds; 0 stores every span before its answer ends."""
    max_spans: int = 4096
    max_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if not 0 <= self.within <= LONGEST_DELAY:
            raise UsageError(f"records may wait between 0 and {LONGEST_DELAY:g} seconds, not {self.within}")
        if self.max_spans < 1 or self.max_bytes < 1:
            raise UsageError("a buffer of records must hold at least one span and one byte")


class Keeper:
    """Stores spans through `add`. Belongs to one event loop; close it before the store."""

    def __init__(self, add: Add, limits: KeeperLimits | None = None) -> None:
        self._add = add
        self._limits = limits or KeeperLimits()
        self._buffer: deque[tuple[Span, int]] = deque()
        self._bytes = 0
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None
        self._failing = self._closed = False

    @property
    def waiting(self) -> int:
        """Spans that are not stored yet."""
        return len(self._buffer)

    async def keep(self, spans: Sequence[Span]) -> bool:
        """Store `spans`, now or soon; False when they could not be recorded, which is logged."""
        if self._limits.within and not self._closed and self._has_room():
            self._put(spans)
            return True
        if self._buffer and not await self.flush():  # what came earlier is stored earlier
            return False
        try:
            await self._add(spans)
        except asyncio.CancelledError:
            self._put(spans)  # it may be stored or not; the store takes a span only once
            raise
        except Exception as error:
            self._failed(spans, error)
            return False
        self._worked()
        return True

    async def flush(self) -> bool:
        """Store everything that was kept before; False when the store does not take it, which is logged."""
        async with self._writing:
            left = len(self._buffer)
            while left > 0:
                written = await self._write(min(left, BATCH))
                if not written:
                    return False
                left -= written
        return True

    async def aclose(self) -> None:
        """Store what is left; what the store does not take even now is lost, and its number logged."""
        self._closed = True
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])
            self._writer = None
        if not await self.flush():
            _log.error("%d records of model calls were never stored", len(self._buffer))

    def _has_room(self) -> bool:
        return len(self._buffer) < self._limits.max_spans and self._bytes < self._limits.max_bytes

    def _put(self, spans: Sequence[Span]) -> None:
        for span in spans:
            size = span.size()
            self._buffer.append((span, size))
            self._bytes += size
        if self._writer is None and not self._closed:
            self._writer = asyncio.create_task(self._run(), name="leyden records")

    async def _run(self) -> None:
        """Write what is in the buffer soon, again and again while that fails, until it is empty."""
        usual = delay = self._limits.within / 2  # the other half is for the store
        while self._buffer:
            await asyncio.sleep(delay)
            stored = await self.flush()
            delay = usual if stored else min(max(2 * delay, FIRST_RETRY), LONGEST_RETRY)
        self._writer = None

    async def _write(self, size: int) -> int:
        """Store the first `size` spans of the buffer; returns how many of them are dealt with, 0 when it failed."""
        batch = [span for span, _ in islice(self._buffer, size)]
        try:
            await self._add(batch)
        except REFUSALS as error:  # the store works, but not with one of these
            if size > 1:
                return await self._write(1)
            self._refused(batch[0], error)
        except Exception as error:
            self._failed(batch, error)
            return 0
        else:
            self._worked()
        for _ in range(size):
            self._bytes -= self._buffer.popleft()[1]
        return size

    def _failed(self, spans: Sequence[Span], error: Exception) -> None:
        if isinstance(error, REFUSALS):
            for span in spans:
                self._refused(span, error)
        elif not self._failing:
            self._failing = True
            _log.error("the store does not take the records of model calls", exc_info=error)

    def _refused(self, span: Span, error: Exception) -> None:
        _log.error("span %s of attempt %s could not be recorded: %s", span.span_id, span.attempt_id, error)

    def _worked(self) -> None:
        if self._failing:
            self._failing = False
            _log.warning("the store takes records again")

"""`IdempotentCalls`: runs a call that arrives twice under one id once, and gives both requests the same answer.

Answers are kept for a minute after their call. Where they are large, the oldest are removed earlier.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any

from leyden.core.store.rpc import BatchPartAnswer

REMEMBERED_SECONDS = 60.0
REMEMBERED_BYTES = 64 << 20
_OVERHEAD = 512
"""Bytes that are counted for an answer beside its body."""


@dataclass(slots=True)
class _Running:
    """A call, and the number of requests that wait for its answer."""

    task: asyncio.Task[BatchPartAnswer]
    requests: int = 0


class IdempotentCalls:
    """Used on one event loop only. `most` is the largest number of bytes of answers that are kept."""

    def __init__(self, most: int = REMEMBERED_BYTES) -> None:
        self._most = most
        self._calls: dict[Hashable, _Running] = {}
        self._answered: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        """By id: the time of the answer in seconds, and its bytes; the oldest first."""
        self._bytes = 0

    def knows(self, name: Hashable | None) -> bool:
        """Whether a call with this id runs, or its answer is kept."""
        return name is not None and name in self._calls

    async def answer(
        self,
        name: Hashable | None,
        work: Callable[[], Coroutine[Any, Any, BatchPartAnswer]],
        wait_for_disconnect: Callable[[], Awaitable[object]] | None = None,
    ) -> BatchPartAnswer | None:
        """Run `work`, or wait for the call with the same id; return the answer.

        `wait_for_disconnect` returns when the caller has disconnected. With it, a call for which no request waits any
        more is cancelled, and None is returned.
        """
        running = None if name is None else self._calls.get(name)
        if running is None:
            running = self._begin(name, work)
        running.requests += 1
        try:
            await _done_or_disconnected(running.task, wait_for_disconnect)
        finally:
            running.requests -= 1
            if wait_for_disconnect is not None and not running.task.done() and not running.requests:
                running.task.cancel()
        if not running.task.done() or running.task.cancelled():
            return None
        return running.task.result()

    def _begin(self, name: Hashable | None, work: Callable[[], Coroutine[Any, Any, BatchPartAnswer]]) -> _Running:
        running = _Running(asyncio.create_task(work()))
        if name is not None:
            self._calls[name] = running
            running.task.add_done_callback(lambda task: self._ended(name, task))
        return running

    def _ended(self, name: Hashable, task: asyncio.Task[BatchPartAnswer]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._calls[name]
            return
        now, size = time.monotonic(), len(task.result().body) + _OVERHEAD
        self._answered[name] = (now, size)
        self._bytes += size
        while len(self._answered) > 1:  # the last answer is kept, however large
            oldest, (at, held) = next(iter(self._answered.items()))
            if now - at <= REMEMBERED_SECONDS and self._bytes <= self._most:
                break
            del self._answered[oldest], self._calls[oldest]
            self._bytes -= held


async def _done_or_disconnected(
    task: asyncio.Task[BatchPartAnswer], wait_for_disconnect: Callable[[], Awaitable[object]] | None
) -> None:
    """Return when the call has an answer, or its caller has disconnected."""
    if wait_for_disconnect is None:
        await asyncio.wait({task})
        return
    disconnected = asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({task, disconnected}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnected.cancel()

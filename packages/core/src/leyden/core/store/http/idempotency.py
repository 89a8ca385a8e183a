"""`Once`: a call that comes twice under one name runs once, and both are answered alike. Knows nothing of HTTP.

Answers are remembered for a minute after their call, the oldest being forgotten first where they are large.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any

from leyden.core.store.rpc import PartAnswer

REMEMBERED_SECONDS = 60.0
REMEMBERED_BYTES = 64 << 20
_OVERHEAD = 512
"""Bytes that an answer costs beside its own."""


@dataclass(slots=True)
class _Running:
    """A call, and how many requests wait for its answer."""

    task: asyncio.Task[PartAnswer]
    requests: int = 0


class Once:
    """Belongs to one event loop; `most` is how many bytes of answers are remembered."""

    def __init__(self, most: int = REMEMBERED_BYTES) -> None:
        self._most = most
        self._calls: dict[Hashable, _Running] = {}
        self._answered: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        """When each was answered, in seconds, and its bytes; the oldest first."""
        self._bytes = 0

    def knows(self, name: Hashable | None) -> bool:
        """Whether a call of this name runs, or its answer is remembered."""
        return name is not None and name in self._calls

    async def answer(
        self,
        name: Hashable | None,
        work: Callable[[], Coroutine[Any, Any, PartAnswer]],
        gone: Callable[[], Awaitable[object]] | None = None,
    ) -> PartAnswer | None:
        """Run `work`, or join the call of the same name.

        With `gone`, which returns when the caller has gone, a call that nobody waits for any more is cancelled; the
        answer is then None.
        """
        running = None if name is None else self._calls.get(name)
        if running is None:
            running = self._begin(name, work)
        running.requests += 1
        try:
            await _done_or_gone(running.task, gone)
        finally:
            running.requests -= 1
            if gone is not None and not running.task.done() and not running.requests:
                running.task.cancel()
        if not running.task.done() or running.task.cancelled():
            return None
        return running.task.result()

    def _begin(self, name: Hashable | None, work: Callable[[], Coroutine[Any, Any, PartAnswer]]) -> _Running:
        running = _Running(asyncio.create_task(work()))
        if name is not None:
            self._calls[name] = running
            running.task.add_done_callback(lambda task: self._ended(name, task))
        return running

    def _ended(self, name: Hashable, task: asyncio.Task[PartAnswer]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._calls[name]
            return
        now, size = time.monotonic(), len(task.result().body) + _OVERHEAD
        self._answered[name] = (now, size)
        self._bytes += size
        while len(self._answered) > 1:  # the last one is kept, however large
            oldest, (at, held) = next(iter(self._answered.items()))
            if now - at <= REMEMBERED_SECONDS and self._bytes <= self._most:
                break
            del self._answered[oldest], self._calls[oldest]
            self._bytes -= held


async def _done_or_gone(task: asyncio.Task[PartAnswer], gone: Callable[[], Awaitable[object]] | None) -> None:
    """Return when the call has an answer, or nobody is there any more to read it."""
    if gone is None:
        await asyncio.wait({task})
        return
    leaving = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()

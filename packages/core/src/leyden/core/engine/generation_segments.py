"""`GenerationSegments`: runs either many generation segments at the same time, or one weight change without any.

A generation segment (`GenerationSegment`) is the part of one response that one policy version generates. It is read in
its own tasks, whether or not the caller takes its output, so a weight change never waits for a slow reader. A weight
change interrupts the segments and waits until each has stored its output. Afterwards their calls continue with new
segments.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class GenerationSegments:
    """The running generation segments. Must be used in a single event loop."""

    def __init__(self) -> None:
        self.closed = False
        self._changes = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running: dict[GenerationSegment[Any], object] = {}

    @property
    def changing(self) -> bool:
        """Whether weights are being changed."""
        return not self._open.is_set()

    async def wait_open(self) -> None:
        """Return when no weights are being changed, or when closed."""
        while not self.closed and not self._open.is_set():
            await self._open.wait()

    def enter(self, segment: "GenerationSegment[Any]", server: object) -> None:
        """Add a segment that `server` generates."""
        self._running[segment] = server
        self._idle.clear()

    def leave(self, segment: "GenerationSegment[Any]") -> None:
        """Remove a segment."""
        del self._running[segment]
        if not self._running:
            self._idle.set()

    @asynccontextmanager
    async def exclusive(self, *, drain: bool = False) -> AsyncGenerator[None]:
        """Inside the block no segment is generated; running ones are interrupted, or with `drain` awaited."""
        async with self._changes:
            self._open.clear()
            try:
                if not drain:
                    self._interrupt_all()
                await self._idle.wait()
                yield
            finally:
                self._open.set()

    async def end(self, server: object) -> None:
        """Interrupt the segments of one server, and return when each has stored its output."""
        ending = [segment for segment, segment_server in self._running.items() if segment_server is server]
        for segment in ending:
            segment.interrupt()
        for segment in ending:
            await segment.wait_stored()

    def close(self) -> None:
        """Interrupt all segments permanently, and wake everything that waits."""
        self.closed = True
        self._interrupt_all()
        self._open.set()

    def _interrupt_all(self) -> None:
        for segment in list(self._running):
            segment.interrupt()


class GenerationSegment(Generic[T]):
    """Reads `source`, from `server`, to its end or until it is interrupted.

    With `settle`, the output is held back until then, and replaced by the result of `settle`. Create one only while no
    weights are being changed.
    """

    def __init__(
        self,
        segments: GenerationSegments,
        server: object,
        source: AsyncIterator[T],
        settle: Callable[[list[T]], Awaitable[T]] | None = None,
    ) -> None:
        self._segments, self._settle = segments, settle
        self._held: list[T] = []
        self._ready: asyncio.Queue[T | Exception | None] = asyncio.Queue()
        segments.enter(self, server)
        self._reading = asyncio.create_task(self._read(source))
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: segments.leave(self))

    def interrupt(self) -> None:
        """Stop reading; output that was already read can still be taken."""
        self._reading.cancel()

    async def wait_stored(self) -> None:
        """Return when the segment has stored its output."""
        await asyncio.wait([self._task])

    async def take(self) -> list[T]:
        """Wait for output, and return all that is available; empty at the end. Raises the exceptions of `source`."""
        found: list[T] = []
        item = await self._ready.get()
        while item is not None and not isinstance(item, Exception):
            found.append(item)
            if self._ready.empty():
                return found
            item = self._ready.get_nowait()
        if found:
            self._ready.put_nowait(item)
        elif item is not None:
            raise item
        return found

    async def close(self) -> None:
        """Discard output that was not taken, and return when `source` is closed."""
        self._reading.cancel()
        self._task.cancel()
        await asyncio.wait([self._reading, self._task])

    async def _read(self, source: AsyncIterator[T]) -> None:
        async for item in source:
            if self._settle is None:
                self._ready.put_nowait(item)
            else:
                self._held.append(item)

    async def _run(self) -> None:
        await asyncio.wait([self._reading])
        end = None if self._reading.cancelled() else self._reading.exception()
        try:
            if end is None and self._settle is not None and self._held and not self._segments.closed:
                self._ready.put_nowait(await self._settle(self._held))
        except Exception as error:
            end = error
        self._ready.put_nowait(end if end is None or isinstance(end, Exception) else RuntimeError(repr(end)))

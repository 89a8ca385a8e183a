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
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._running: dict[GenerationSegment[Any], object] = {}

    @property
    def changing(self) -> bool:
        """Whether weights are being changed."""
        return not self._open.is_set()

    async def wait_open(self) -> None:
        """Return when no weights are being changed, or when closed."""
        while not self.closed and not self._open.is_set():
            await self._open.wait()

    def enter(self, stint: "GenerationSegment[Any]", at: object) -> None:
        """Add a segment that the server `at` generates."""
        self._running[stint] = at
        self._quiet.clear()

    def leave(self, stint: "GenerationSegment[Any]") -> None:
        """Remove a segment."""
        del self._running[stint]
        if not self._running:
            self._quiet.set()

    @asynccontextmanager
    async def alone(self, *, drain: bool = False) -> AsyncGenerator[None]:
        """Inside the block no segment is generated; running ones are interrupted, or with `drain` awaited."""
        async with self._changes:
            self._open.clear()
            try:
                if not drain:
                    self._break_off()
                await self._quiet.wait()
                yield
            finally:
                self._open.set()

    async def end(self, at: object) -> None:
        """Interrupt the segments of one server, and return when each has stored its output."""
        ending = [stint for stint, where in self._running.items() if where is at]
        for stint in ending:
            stint.break_off()
        for stint in ending:
            await stint.over()

    def close(self) -> None:
        """Interrupt all segments permanently, and wake everything that waits."""
        self.closed = True
        self._break_off()
        self._open.set()

    def _break_off(self) -> None:
        for stint in list(self._running):
            stint.break_off()


class GenerationSegment(Generic[T]):
    """Reads `source`, from the server `at`, to its end or until it is interrupted.

    With `settle`, the output is held back until then, and replaced by the result of `settle`. Create one only while no
    weights are being changed.
    """

    def __init__(
        self,
        stints: GenerationSegments,
        at: object,
        source: AsyncIterator[T],
        settle: Callable[[list[T]], Awaitable[T]] | None = None,
    ) -> None:
        self._stints, self._settle = stints, settle
        self._held: list[T] = []
        self._ready: asyncio.Queue[T | Exception | None] = asyncio.Queue()
        stints.enter(self, at)
        self._reading = asyncio.create_task(self._read(source))
        self._whole = asyncio.create_task(self._run())
        self._whole.add_done_callback(lambda _: stints.leave(self))

    def break_off(self) -> None:
        """Stop reading; output that was already read can still be taken."""
        self._reading.cancel()

    async def over(self) -> None:
        """Return when the segment has stored its output."""
        await asyncio.wait([self._whole])

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
        self._whole.cancel()
        await asyncio.wait([self._reading, self._whole])

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
            if end is None and self._settle is not None and self._held and not self._stints.closed:
                self._ready.put_nowait(await self._settle(self._held))
        except Exception as error:
            end = error
        self._ready.put_nowait(end if end is None or isinstance(end, Exception) else RuntimeError(repr(end)))

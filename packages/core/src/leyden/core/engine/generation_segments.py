"""`Stints`: many stretches of answers at once, or one change of weights alone. Knows nothing of servers or tokens.

A stint is a stretch of one answer that one version draws. It is read in tasks of its own, whether or not anybody takes
what it has: so a change of weights never waits for a slow reader. It breaks the stints off, waits until each has put
away what it drew, and the calls behind them go on with new stints when it is over.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Stints:
    """Those under way. Belongs to one event loop."""

    def __init__(self) -> None:
        self.closed = False
        self._changes = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._running: dict[Stint[Any], object] = {}

    @property
    def changing(self) -> bool:
        """Whether weights are being changed."""
        return not self._open.is_set()

    async def wait_open(self) -> None:
        """Return when no weights are being changed, or all is over."""
        while not self.closed and not self._open.is_set():
            await self._open.wait()

    def enter(self, stint: "Stint[Any]", at: object) -> None:
        """Count a stint that is drawn by the server `at`."""
        self._running[stint] = at
        self._quiet.clear()

    def leave(self, stint: "Stint[Any]") -> None:
        """Count it no more."""
        del self._running[stint]
        if not self._running:
            self._quiet.set()

    @asynccontextmanager
    async def alone(self, *, drain: bool = False) -> AsyncGenerator[None]:
        """Inside the block no stint is drawn; those under way are broken off, or with `drain` run to their end."""
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
        """Break off the stints of one server, and return when each has put away what it drew."""
        ending = [stint for stint, where in self._running.items() if where is at]
        for stint in ending:
            stint.break_off()
        for stint in ending:
            await stint.over()

    def close(self) -> None:
        """Break everything off for good, and let nobody wait any longer."""
        self.closed = True
        self._break_off()
        self._open.set()

    def _break_off(self) -> None:
        for stint in list(self._running):
            stint.break_off()


class Stint(Generic[T]):
    """Reads `source`, of the server `at`, to its end or until it is broken off.

    With `settle`, what was read is held back until then, and given out as `settle` makes it. Begin one only while no
    weights are being changed.
    """

    def __init__(
        self,
        stints: Stints,
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
        """Read no more; what was read is still given out."""
        self._reading.cancel()

    async def over(self) -> None:
        """Return when it has put away what it drew."""
        await asyncio.wait([self._whole])

    async def take(self) -> list[T]:
        """Wait for something, and return all that is there; empty at the end. Raises what `source` did."""
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
        """Drop what was not taken, and return when `source` is closed."""
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

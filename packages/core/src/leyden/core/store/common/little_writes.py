"""`WriteBatcher`: makes the small changes of several callers in one transaction.

Many attempts that begin or end together each need one small change within one turn of the event loop. A transaction for
each would double the cost.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

W = TypeVar("W")
T = TypeVar("T")


class WriteBatcher(Generic[W, T]):
    """Collects changes per turn of an event loop; any number of event loops may use it.

    `write_all` makes all of the given changes on the calling thread, in one transaction. It returns None where it made
    none, because another writer is active or one of the changes failed.
    """

    def __init__(self, write_all: Callable[[Sequence[W]], Sequence[T] | None]) -> None:
        self._write_all = write_all
        self._waiting: dict[asyncio.AbstractEventLoop, list[tuple[W, asyncio.Future[tuple[T] | None]]]] = {}

    async def do(self, work: W) -> tuple[T] | None:
        """Do `work` together with all other work of this turn of the event loop.

        Returns the result in a tuple, or None where the caller must do the work in a transaction of its own.
        """
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            waiting = self._waiting[loop] = []
            loop.call_soon(self._do_all, loop)
        done: asyncio.Future[tuple[T] | None] = loop.create_future()
        waiting.append((work, done))
        return await done

    def _do_all(self, loop: asyncio.AbstractEventLoop) -> None:
        wanted = [(work, done) for work, done in self._waiting.pop(loop) if not done.cancelled()]
        if not wanted:
            return
        try:
            results = self._write_all([work for work, _ in wanted])
        except Exception:  # each caller repeats its own work, and gets its own error
            results = None
        for n, (_, done) in enumerate(wanted):
            done.set_result(None if results is None else (results[n],))

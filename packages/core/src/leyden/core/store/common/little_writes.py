"""`LittleWrites`: one transaction for the small changes that are asked for at once. Knows no rows and no connections.

A crowd of attempts that begin or end together asks for one small change each, in one turn of the event loop; a
transaction for each costs as much again as the changes.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

W = TypeVar("W")
T = TypeVar("T")


class LittleWrites(Generic[W, T]):
    """Safe from any number of event loops.

    `at_once` does all of some work on the calling thread, in one transaction, or returns None where it did none of it:
    others write, or one of the changes fails, and it is not known which.
    """

    def __init__(self, at_once: Callable[[Sequence[W]], Sequence[T] | None]) -> None:
        self._at_once = at_once
        self._waiting: dict[asyncio.AbstractEventLoop, list[tuple[W, asyncio.Future[tuple[T] | None]]]] = {}

    async def do(self, work: W) -> tuple[T] | None:
        """Do `work` with all that is asked for in this turn of the loop; None where it is to be done by itself."""
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
            results = self._at_once([work for work, _ in wanted])
        except Exception:  # each does its own again, and learns what fails
            results = None
        for n, (_, done) in enumerate(wanted):
            done.set_result(None if results is None else (results[n],))

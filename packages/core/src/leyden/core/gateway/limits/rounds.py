"""`Rounds`: lets calls begin in rounds, in each of which every attempt begins at most `PER_ROUND` calls.

To read, encode and record a call takes about a millisecond of the event loop, often in one piece. An event loop does
what has arrived in the order in which it came, so an attempt with 64 requests on their way would have 64 of them done
for each one of another attempt. With rounds it has two done. A round lasts at least one iteration of the event loop.
"""

import asyncio
from collections import deque

PER_ROUND = 2
"""Calls of one attempt in a round; agents that make two calls at once need not wait for the event loop between them."""


class Rounds:
    """Of one event loop. An attempt that has begun fewer than `PER_ROUND` calls in the current round does not wait."""

    def __init__(self) -> None:
        self._begun: dict[str, int] = {}
        """Number of calls that each attempt has begun in this round."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._is_running = False

    def enter(self, attempt_id: str) -> "asyncio.Future[None] | None":
        """Return None if the attempt may begin a call now, else a future that is done when it may.

        The calls of an attempt keep their order.
        """
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._begin_next)
        begun = self._begun.get(attempt_id, 0)
        if begun < PER_ROUND and attempt_id not in self._waiting:
            self._begun[attempt_id] = begun + 1
            return None
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(attempt_id, deque()).append(given)
        return given

    def _begin_next(self) -> None:
        """Begin a round, with the first calls of each attempt that waits; end when nothing was begun and none waits."""
        self._begun.clear()
        for attempt_id, calls in [*self._waiting.items()]:
            begun = 0
            while calls and begun < PER_ROUND:
                call = calls.popleft()
                if not call.done():  # else cancelled
                    call.set_result(None)
                    begun += 1
            if begun:
                self._begun[attempt_id] = begun
            if not calls:
                del self._waiting[attempt_id]
        self._is_running = bool(self._begun)
        if self._is_running:
            asyncio.get_running_loop().call_soon(self._begin_next)

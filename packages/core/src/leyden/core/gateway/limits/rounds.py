"""`Rounds`: lets calls begin in rounds, in each of which every attempt begins one call.

To read, encode and record a call takes about a millisecond of the event loop, often in one piece. An event loop does
what has arrived in the order in which it came, so an attempt with 64 requests on their way would have 64 of them done
for each one of another attempt. With rounds it has one done. A round lasts at least one iteration of the event loop.
"""

import asyncio
from collections import deque


class Rounds:
    """Of one event loop. An attempt that has begun no call in the current round does not wait."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        """Attempts that have begun a call in this round."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._is_running = False

    def enter(self, attempt_id: str) -> "asyncio.Future[None] | None":
        """Return None if the attempt may begin a call now, else a future that is done when it may.

        The calls of an attempt keep their order.
        """
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._begin_next)
        if attempt_id not in self._begun and attempt_id not in self._waiting:
            self._begun.add(attempt_id)
            return None
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(attempt_id, deque()).append(given)
        return given

    def _begin_next(self) -> None:
        """Begin a round, with the first call of each attempt that waits; end when nothing was begun and none waits."""
        self._begun.clear()
        for attempt_id, calls in [*self._waiting.items()]:
            while calls and calls[0].done():  # cancelled
                calls.popleft()
            if calls:
                calls.popleft().set_result(None)
                self._begun.add(attempt_id)
            if not calls:
                del self._waiting[attempt_id]
        self._is_running = bool(self._begun)
        if self._is_running:
            asyncio.get_running_loop().call_soon(self._begin_next)

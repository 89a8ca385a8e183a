"""`Lanes`: several small pools of connections that act as one large, for httpx and httpx2. Knows nothing of routing.

For every request, and for every answer read to its end, httpcore looks at all of a pool's connections, and for each
idle one at all of them again: with a hundred at once that is more work than the rest of the call. A lane holds few, and
the first with room takes the next request, so one call at a time uses one connection.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

MOST_IN_LANE = 8
"""Requests of one lane at once."""


class Lanes:
    """A transport of httpx, sync or async as those that `make` returns; for any number of threads."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = Lock()
        self._lanes: list[_Lane] = []

    def handle_request(self, request: Any) -> Any:
        """Send `request` (httpx's synchronous transport interface)."""
        lane = self._enter()
        try:
            response = lane.pool.handle_request(request)
        except BaseException:
            self._leave(lane)
            raise
        close, left = response.stream.close, self._once(lane)

        def close_and_leave() -> None:
            try:
                close()
            finally:
                left()

        response.stream.close = close_and_leave
        return response

    async def handle_async_request(self, request: Any) -> Any:
        """Send `request` (httpx's asynchronous transport interface)."""
        lane = self._enter()
        try:
            response = await lane.pool.handle_async_request(request)
        except BaseException:
            self._leave(lane)
            raise
        close, left = response.stream.aclose, self._once(lane)

        async def close_and_leave() -> None:
            try:
                await close()
            finally:
                left()

        response.stream.aclose = close_and_leave
        return response

    def close(self) -> None:
        """Close every connection."""
        for lane in self._lanes:
            lane.pool.close()

    async def aclose(self) -> None:
        """Close every connection."""
        for lane in self._lanes:
            await lane.pool.aclose()

    def _enter(self) -> "_Lane":
        with self._lock:
            lane = next((lane for lane in self._lanes if lane.busy < MOST_IN_LANE), None)
            if lane is None:
                lane = _Lane(self._make())
                self._lanes.append(lane)
            lane.busy += 1
            return lane

    def _leave(self, lane: "_Lane") -> None:
        with self._lock:
            lane.busy -= 1

    def _once(self, lane: "_Lane") -> Callable[[], None]:
        """Return what leaves `lane` when it is called first: a stream may be closed more than once."""
        inside = [lane]
        return lambda: self._leave(inside.pop()) if inside else None


class _Lane:
    """A pool and how many requests are in it."""

    __slots__ = ("busy", "pool")

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.busy = 0

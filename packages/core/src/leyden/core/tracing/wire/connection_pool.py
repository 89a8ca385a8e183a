"""`Lanes`: many pools of one connection that act as one large, for httpx and httpx2. Knows nothing of routing.

For every request, and for every answer read to its end, httpcore looks at all of a pool's connections, asks the system
about each idle one, and for each of those looks at all of them again: with a hundred at once that is more work than the
rest of the call, and with eight still an eighth of it. A lane has one. The lane that was left last takes the next
request, so one call at a time uses one connection.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any


class Lanes:
    """A transport of httpx, sync or async as those that `make` returns; for any number of threads."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = Lock()
        self._pools: list[Any] = []
        self._idle: list[Any] = []
        """Those of the pools that no request is in; the last was left last."""

    def handle_request(self, request: Any) -> Any:
        """Send `request` (httpx's synchronous transport interface)."""
        pool = self._enter()
        try:
            response = pool.handle_request(request)
        except BaseException:
            self._leave(pool)
            raise
        close, left = response.stream.close, self._once(pool)

        def close_and_leave() -> None:
            try:
                close()
            finally:
                left()

        response.stream.close = close_and_leave
        return response

    async def handle_async_request(self, request: Any) -> Any:
        """Send `request` (httpx's asynchronous transport interface)."""
        pool = self._enter()
        try:
            response = await pool.handle_async_request(request)
        except BaseException:
            self._leave(pool)
            raise
        close, left = response.stream.aclose, self._once(pool)

        async def close_and_leave() -> None:
            try:
                await close()
            finally:
                left()

        response.stream.aclose = close_and_leave
        return response

    def close(self) -> None:
        """Close every connection."""
        for pool in self._pools:
            pool.close()

    async def aclose(self) -> None:
        """Close every connection."""
        for pool in self._pools:
            await pool.aclose()

    def _enter(self) -> Any:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            self._pools.append(self._make())
            return self._pools[-1]

    def _leave(self, pool: Any) -> None:
        with self._lock:
            self._idle.append(pool)

    def _once(self, pool: Any) -> Callable[[], None]:
        """Return what leaves `pool` when it is called first: a stream may be closed more than once."""
        inside = [pool]
        return lambda: self._leave(inside.pop()) if inside else None

"""`SingleConnectionPools`: a connection pool for httpx and httpx2, made of many pools of one connection each.

For every request, and for every response read to its end, httpcore scans all connections of a pool. It checks the
socket of each idle one, and scans all connections again for each of those. With a hundred concurrent requests this
costs more than the rest of the call. With eight it still costs an eighth of the call. A pool of one connection avoids
the scan. The pool that became idle last takes the next request, so sequential calls share one connection.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any


class SingleConnectionPools:
    """An httpx transport, sync or async like the transports that `make` returns. Safe for any number of threads."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = Lock()
        self._pools: list[Any] = []
        self._idle: list[Any] = []
        """Pools without a request. The last one became idle last."""

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
        """Return a function that releases `pool` on its first call only. A stream may be closed more than once."""
        inside = [pool]
        return lambda: self._leave(inside.pop()) if inside else None

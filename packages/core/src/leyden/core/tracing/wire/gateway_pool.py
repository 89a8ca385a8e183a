"""Gateway pools: keep-alive connections to the gateway, one pool for each event loop and one for all threads.

A routed call does not use the agent's own client or its limits, so these pools have no limits. Each HTTP library gives
functions that open and close its pool.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from threading import Lock
from typing import Any

KEEP_ALIVE_SECONDS = 3.0
"""Common servers close an idle connection after five seconds. A shorter time lets the client close it first."""

_lock = Lock()
_sync: dict[tuple[str, int, bool], tuple[Any, Callable[[], None]]] = {}
_async: dict[tuple[str, asyncio.AbstractEventLoop, bool], tuple[Any, AsyncGenerator[None]]] = {}


def is_tls(gateway_url: str) -> bool:
    """Return whether the gateway is called over TLS."""
    return gateway_url.startswith("https:")


def of_process(library: str, gateway_url: str, make: Callable[[], tuple[Any, Callable[[], None]]]) -> Any:
    """Return this process's pool for `library`. `make` opens one and returns it with a function that closes it."""
    key = (library, os.getpid(), is_tls(gateway_url))
    with _lock:
        if key not in _sync:
            _sync[key] = make()
        return _sync[key][0]


async def of_loop(
    library: str, gateway_url: str, make: Callable[[], tuple[Any, Callable[[], Awaitable[None]]]]
) -> Any | None:
    """Return the running loop's pool for `library`. It is closed when the loop shuts down its async generators.

    None under another async library, such as trio, where there is nothing to attach a pool to.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    key = (library, loop, is_tls(gateway_url))
    found = _async.get(key)
    if found is None:
        for stale in [k for k in list(_async) if k[1].is_closed()]:
            _async.pop(stale, None)
        pool, close_pool = make()
        closer = _close_with_loop(key, close_pool)
        found = _async[key] = (pool, closer)
        await anext(closer)
    return found[0]


def close() -> None:
    """Close every pool. A pool of a running loop is closed as soon as that loop runs its callback."""
    with _lock:
        sync, waiting = list(_sync.values()), list(_async.items())
        _sync.clear()
    for _, close_pool in sync:
        close_pool()
    for key, (_, closer) in waiting:
        _async.pop(key, None)
        loop = key[1]
        if loop.is_running():
            asyncio.run_coroutine_threadsafe(_finish(closer), loop)
        elif not loop.is_closed():
            loop.run_until_complete(_finish(closer))


async def aclose() -> None:
    """Close the running loop's pools and wait until they are closed."""
    loop = asyncio.get_running_loop()
    for key in [k for k in list(_async) if k[1] is loop]:
        _, closer = _async.pop(key)
        await closer.aclose()


async def _finish(closer: AsyncGenerator[None]) -> None:
    await closer.aclose()


async def _close_with_loop(
    key: tuple[str, asyncio.AbstractEventLoop, bool], close_pool: Callable[[], Awaitable[None]]
) -> AsyncGenerator[None]:
    """Close the pool when this generator is closed. `asyncio.run` does that before it closes its loop."""
    try:
        yield
    finally:
        _async.pop(key, None)
        await close_pool()


def _after_fork() -> None:
    """Replace the lock in a forked child: another thread of the parent may have held it.

    The child opens its own pools.
    """
    global _lock
    _lock = Lock()


if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_after_fork)

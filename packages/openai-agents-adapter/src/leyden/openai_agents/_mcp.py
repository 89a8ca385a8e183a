"""MCP connections: connects MCP servers around the runs that need them. Uses no agent code.

Concurrent runs share a connection. A separate task opens and closes it, because MCP requires the closing task to be the
opening one.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context
from typing import Any
from weakref import WeakKeyDictionary


class _SharedServer:
    """A server that this module connects, and the number of runs that use it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._users = 0
        self._owner: asyncio.Task[None] | None = None
        self._unused = asyncio.Event()

    async def enter(self, server: Any) -> bool:
        """Connect for the first user; False where other code has connected it."""
        if self._users == 0:
            if server.session is not None:
                return False
            connected = asyncio.get_running_loop().create_future()
            self._unused = asyncio.Event()
            # In a context of its own: what it starts belongs to no attempt.
            self._owner = asyncio.create_task(_hold_connection(server, connected, self._unused), context=Context())
            try:
                await asyncio.shield(connected)
            except BaseException:
                self._unused.set()
                raise
        self._users += 1
        return True

    async def leave(self) -> None:
        """Close the connection after the last user."""
        self._users -= 1
        if self._users == 0 and self._owner is not None:
            self._unused.set()
            await asyncio.wait({self._owner})


_shared_servers: WeakKeyDictionary[Any, _SharedServer] = WeakKeyDictionary()


@asynccontextmanager
async def connected(servers: Iterable[Any]) -> AsyncGenerator[None]:
    """Connect those of `servers` that are not connected, inside the block; connection errors propagate."""
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(_connected(server))
        yield


@asynccontextmanager
async def _connected(server: Any) -> AsyncGenerator[None]:
    shared = _shared_servers.setdefault(server, _SharedServer())
    async with shared.lock:
        is_ours = await shared.enter(server)
    try:
        yield
    finally:
        if is_ours:
            async with shared.lock:
                await shared.leave()


async def _hold_connection(server: Any, connected: asyncio.Future[None], unused: asyncio.Event) -> None:
    try:
        await server.connect()
    except BaseException as error:
        if not connected.done():
            connected.set_exception(error)
        return
    connected.set_result(None)
    try:
        await unused.wait()
    finally:
        await server.cleanup()

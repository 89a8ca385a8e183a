"""Gateway server: serves an ASGI application over HTTP from the running event loop.

The server runs in the same event loop as the store and the engine, because these belong to one event loop. Agents run
in other processes. A request's path is never logged, because it may contain an attempt token.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Collection, Generator
from dataclasses import replace

import uvicorn
from starlette.types import ASGIApp

from leyden.core.errors import GatewayError
from leyden.core.gateway.http.host_check import HostCheck
from leyden.core.gateway.http.protocol import ConnectionLimits, TimeoutProtocol
from leyden.core.gateway.limits.connections import Connections, authenticating
from leyden.core.gateway.shared.listener import SharedListener
from leyden.core.masking import mask_logs

BACKLOG = 4096
KEEP_ALIVE = 600
"""Seconds for which an idle connection stays open.

This is longer than any client's connection pool keeps one, so that no client writes to a connection that is closing.
"""
OTHER_FILES = 256
"""Number of open files that a process needs in addition to its connections."""
_RECOVERY_SECONDS = 0.2
_TICK_SECONDS = 0.1
_SHUTDOWN_POLL_SECONDS = 0.005
_CANCEL_SECONDS = 2.0
"""Longest wait for cancelled calls, which record themselves before they end."""

_log = logging.getLogger("leyden.gateway")


class GatewayServer:
    """HTTP server on `host` and `port` (0 for any free port).

    It answers requests for its own host names (see `HostCheck`) and for the names in `allowed_hosts`. At a stop,
    requests in progress get `grace` seconds to end. `shared` is a listener that other processes accept from, too; the
    server closes its socket at the end.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        grace: int = 2,
        limits: ConnectionLimits | None = None,
        allowed_hosts: Collection[str] = (),
        shared: SharedListener | None = None,
    ) -> None:
        self._shared = shared
        self._app = authenticating(HostCheck(app, host, allowed_hosts))
        self._host, self._port, self._grace = host, port, grace
        self._limits = _within_file_limit(limits or ConnectionLimits())
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Start listening; return the root URL without a trailing slash.

        Raises GatewayError if the server cannot listen, for example because the port is in use.
        """
        listener = listen(self._host, self._port) if self._shared is None else self._shared.socket
        mask_logs("leyden.gateway", "uvicorn.error")
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            http=TimeoutProtocol,
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=self._grace,
        )
        self._server = _Server(config, self._limits, self._shared)
        self._task = asyncio.create_task(self._server.serve([listener]), name="leyden gateway")
        try:
            await self._server.ready(self._task)
        except GatewayError:
            listener.close()
            raise
        return root_url(self._host, listener)

    async def stop(self) -> None:
        """Stop listening, wait up to `grace` seconds for requests in progress, and cancel the rest.

        Also a caller that is cancelled meanwhile waits for the end: a server that is cut off leaves its app running.
        """
        if self._server is None or self._task is None:
            return
        task = self._task
        self._server.stop()
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await task
            raise
        finally:
            self._server = self._task = None


async def _cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel the calls and wait for their end; without uvicorn's traceback for each of them."""

    def is_news(record: logging.LogRecord) -> bool:
        return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)

    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.addFilter(is_news)
    try:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
    finally:
        uvicorn_log.removeFilter(is_news)


def root_url(host: str, listener: socket.socket) -> str:
    """Return the root URL of a server that accepts from `listener`, without a trailing slash."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}"


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket with an explicit TCP protocol.

    Only for such a socket does asyncio turn off Nagle's algorithm, which would delay a response by 40 ms. Raises
    GatewayError if this is not possible, for example because the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise GatewayError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def _within_file_limit(limits: ConnectionLimits) -> ConnectionLimits:
    """Return limits with fewer connections if the process may open too few files for all of them and other uses."""
    try:
        import resource
    except ImportError:  # Windows has no `resource`
        return limits
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits
    max_sockets = max(soft - OTHER_FILES, soft // 2)
    return replace(limits, max_connections=min(limits.max_connections, max_sockets))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits, shared: SharedListener | None) -> None:
        super().__init__(config)
        self._limits, self._shared = limits, shared
        self._connections = Connections(
            unknown=limits.max_unknown,
            unknown_per_peer=limits.max_unknown_per_peer,
            per_attempt=min(limits.max_per_attempt, max(1, limits.max_connections // 4)),
        )
        self._acceptors: list[_Acceptor] = []
        self._stopping = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, with a `_Acceptor` for each socket instead of asyncio's servers."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            self.should_exit = True
            return
        self._acceptors = [_Acceptor(listener, self, self._limits, self._shared) for listener in sockets or ()]
        self.started = True

    def stop(self) -> None:
        """Make `serve` return."""
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Run uvicorn's periodic work ten times a second; return at once after `stop`."""
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _TICK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, wait for requests in progress, and cancel the rest after the grace period.

        This is uvicorn's shutdown without its pauses of a tenth of a second.
        """
        for acceptor in self._acceptors:
            await acceptor.close()
        for listener in sockets or ():
            listener.close()
        state = self.server_state
        for connection in [*state.connections]:
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:
                    await asyncio.sleep(_SHUTDOWN_POLL_SECONDS)
        except TimeoutError:
            _log.warning("cancelled %d calls that did not end in time", len(state.tasks))
            await _cancelled([*state.tasks])
        await self.lifespan.shutdown()

    def protocol(self, limits: ConnectionLimits, on_lost: Callable[[], None]) -> TimeoutProtocol:
        """Return the protocol of one new connection."""
        return TimeoutProtocol(self.config, self.server_state, self.lifespan.state, limits, on_lost, self._connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Install no signal handlers; the program that runs the server handles signals."""
        yield

    async def ready(self, task: asyncio.Task[None]) -> None:
        """Wait until the server accepts connections; raises GatewayError if it ended before."""
        while not self.started:
            if task.done():
                await task
                raise GatewayError("the gateway's server ended before it was ready")
            await asyncio.sleep(0.005)


class _Acceptor:
    """Listener that accepts connections up to the limit; further ones wait in the operating system's queue."""

    def __init__(
        self, listener: socket.socket, server: _Server, limits: ConnectionLimits, shared: SharedListener | None
    ) -> None:
        self._listener, self._server, self._limits, self._shared = listener, server, limits, shared
        self._free_connections = asyncio.Semaphore(limits.max_connections)
        self._connecting: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._run(), name="leyden gateway acceptor")

    async def close(self) -> None:
        """Stop accepting connections."""
        self._task.cancel()
        await asyncio.wait([self._task, *self._connecting])

    async def _run(self) -> None:
        has_warned = False
        while True:
            await self._free_connections.acquire()
            try:
                client = await self._accept()
            except ConnectionError:  # the client disconnected before it was accepted
                self._free_connections.release()
            except OSError as error:  # for example too many open files
                self._free_connections.release()
                if not has_warned:
                    _log.warning("no further connection can be accepted at the moment: %s", error.strerror)
                has_warned = True
                await asyncio.sleep(_RECOVERY_SECONDS)
            else:
                has_warned = False
                self._count(1)
                task = asyncio.create_task(self._connect(client))
                self._connecting.add(task)
                task.add_done_callback(self._connecting.discard)

    async def _accept(self) -> socket.socket:
        if self._shared is not None:
            return await self._shared.accept()
        return (await asyncio.get_running_loop().sock_accept(self._listener))[0]

    def _count(self, change: int) -> None:
        if self._shared is not None:
            self._shared.count(change)

    def _lost(self) -> None:
        self._count(-1)
        self._free_connections.release()

    async def _connect(self, client: socket.socket) -> None:
        """Connect a client's socket to its protocol, which frees its slot when the connection is lost."""
        protocol = self._server.protocol(self._limits, self._lost)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, client)
        except OSError:  # the client has already disconnected
            if not protocol.made:
                client.close()
                self._lost()

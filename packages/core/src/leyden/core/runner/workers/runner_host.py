"""`RunnerHost`: a pool of worker processes beside it, on whichever machine it is. Knows nothing of who calls it.

What its workers print is kept here, masked, until it is fetched: nothing of a host stays on its machine.
"""

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import msgspec

from leyden.core.errors import LeydenError, StoreError, UsageError
from leyden.core.runner.workers.pipes import Refused
from leyden.core.runner.workers.pool import WorkerPool
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.store.http.client import HttpStore

MOST_PRINTED = 4 << 20
"""Bytes of output that wait to be fetched; beyond it the oldest go, and are counted."""
PIECE = 1 << 20
LOOK_SECONDS = 1.0
REACH_SECONDS = 10.0
"""How long the run is tried to be reached from here."""


class RunnerHost:
    """`size` workers of `spec` (a `WorkerSpec` in JSON), whose ids begin as `worker_prefix` has it for `name`.

    Relative paths in the spec are those of `folder`. All methods are called on one event loop.
    """

    def __init__(self, spec: bytes, size: int, name: str, folder: str) -> None:
        self._spec = msgspec.json.decode(spec, type=WorkerSpec)
        self._size, self._name, self._folder = size, name, folder
        self._printed: Printed | None = None
        self._pool: WorkerPool | None = None

    async def where(self) -> str:
        """The name of the machine that the host is on."""
        return socket.gethostname()

    async def begin(self) -> Refused | None:
        """Start the workers and wait until each is ready; returns why they cannot be."""
        try:
            self._enter()
            await self._reach()
            self._printed = await Printed.open()
            self._pool = WorkerPool(
                msgspec.structs.replace(self._spec, log_file=self._printed.path), self._size, name=self._name
            )
            await self._pool.start()
        except LeydenError as error:
            see = f"; see {self._printed.path}" if self._printed is not None else ""
            return Refused(type(error).__name__, str(error).replace(see, ""))
        return None

    async def ended(self) -> str:
        """Wait until no worker can be kept alive, and say why."""
        while True:
            try:
                await self._started().check()
            except LeydenError as error:
                return str(error)
            await asyncio.sleep(LOOK_SECONDS)

    async def workers(self) -> list[str]:
        """Names of the live workers, as the store knows them."""
        return self._started().worker_ids

    async def printed(self) -> bytes | None:
        """What the workers have printed since the last call; waits a while for something. None after the end."""
        if self._printed is None or self._printed.is_closed:
            return None
        return await self._printed.take()

    async def end(self) -> bytes:
        """Stop the workers; returns what they have printed since it was last asked for."""
        if self._pool is not None:
            await self._pool.stop()
        return b"" if self._printed is None else self._printed.close()

    def _started(self) -> WorkerPool:
        if self._pool is None:
            raise LeydenError("the host has not begun")
        return self._pool

    def _enter(self) -> None:
        try:
            os.chdir(self._folder)
        except OSError as error:
            raise UsageError(
                f"{socket.gethostname()} has no folder {self._folder} ({error.strerror}): the agent's files must be "
                "there on every machine, as on a shared disk, or be part of what it has installed"
            ) from None

    async def _reach(self) -> None:
        store = HttpStore(self._spec.store_url, self._spec.store_token, patience=REACH_SECONDS)
        try:
            await store.add_many_spans([])  # changes nothing
        except StoreError as error:
            raise UsageError(
                f"{socket.gethostname()} cannot reach the run at {self._spec.gateway_url}: give --host and "
                f"--advertise, an address that the other machines know ({error})"
            ) from None
        finally:
            await store.close()


class Printed(asyncio.Protocol):
    """What processes wrote to `path`, in memory: a pipe of this process, which goes when it does.

    Needs Linux: others open the pipe through `/proc`.
    """

    def __init__(self) -> None:
        self.path = ""
        self._bytes, self._lost = bytearray(), 0
        self._some = asyncio.Event()
        self.is_closed = False
        self._reading = self._writing = -1
        self._transport: asyncio.BaseTransport | None = None

    @classmethod
    async def open(cls) -> "Printed":
        """Begin to read. Raises UsageError on a system without `/proc`."""
        if not Path("/proc/self/fd").is_dir():
            raise UsageError(f"runners on other machines need Linux there; {socket.gethostname()} has no /proc")
        reading, writing = os.pipe()
        printed = cls()
        printed._reading, printed._writing = reading, writing
        printed.path = f"/proc/{os.getpid()}/fd/{writing}"
        loop = asyncio.get_running_loop()
        printed._transport, _ = await loop.connect_read_pipe(lambda: printed, os.fdopen(reading, "rb", buffering=0))
        return printed

    def data_received(self, data: bytes) -> None:
        """Keep what was written, and no more than `MOST_PRINTED` of it."""
        self._bytes += data
        beyond = len(self._bytes) - MOST_PRINTED
        if beyond > 0:
            self._lost += beyond
            del self._bytes[:beyond]
        self._some.set()

    async def take(self) -> bytes:
        """At most a piece of what is there; waits up to `LOOK_SECONDS` for something."""
        try:
            await asyncio.wait_for(self._some.wait(), LOOK_SECONDS)
        except TimeoutError:
            return b""
        return self._cut(PIECE)

    def close(self) -> bytes:
        """Read no more; returns all that is there."""
        if self._transport is not None and not self.is_closed:
            self.is_closed = True
            with contextlib.suppress(BlockingIOError):  # the loop may not have come to it yet
                while piece := os.read(self._reading, PIECE):
                    self.data_received(piece)
            self._transport.close()
            os.close(self._writing)
        return self._cut(MOST_PRINTED)

    def _cut(self, size: int) -> bytes:
        said = f"[{self._lost} bytes that were printed before this are lost]\n".encode() if self._lost else b""
        piece = bytes(self._bytes[:size])
        del self._bytes[:size]
        self._lost = 0
        if not self._bytes:
            self._some.clear()
        return said + piece

"""`RunnerHost`: runs a pool of worker processes on its machine.

It keeps the workers' masked output in memory until it is fetched. Nothing of a host stays on its machine.
"""

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import msgspec

from leyden.core.errors import LeydenError, StoreError, UsageError
from leyden.core.runner.workers.pipes import WorkerRefused
from leyden.core.runner.workers.pool import WorkerPool
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.store.http.client import HttpStore

MOST_PRINTED = 4 << 20
"""Largest amount of output kept until it is fetched, in bytes. Beyond it the oldest bytes are dropped and counted."""
PIECE = 1 << 20
LOOK_SECONDS = 1.0
REACH_SECONDS = 10.0
"""Longest wait for the run's store to answer."""


class RunnerHost:
    """Host of `size` workers of `spec` (a `WorkerSpec` in JSON), with ids from `worker_prefix` for `name`.

    Relative paths in the spec are relative to `folder`. All methods must be called on one event loop.
    """

    def __init__(self, spec: bytes, size: int, name: str, folder: str) -> None:
        self._spec = msgspec.json.decode(spec, type=WorkerSpec)
        self._size, self._name, self._folder = size, name, folder
        self._output: PipeBuffer | None = None
        self._pool: WorkerPool | None = None

    async def machine(self) -> str:
        """Return the name of the host's machine."""
        return socket.gethostname()

    async def begin(self) -> WorkerRefused | None:
        """Start the workers and wait until each is ready. Returns the reason where they cannot start, else None."""
        try:
            self._change_folder()
            await self._check_reachable()
            self._output = await PipeBuffer.open()
            self._pool = WorkerPool(
                msgspec.structs.replace(self._spec, log_file=self._output.path), self._size, name=self._name
            )
            await self._pool.start()
        except LeydenError as error:
            log_hint = f"; see {self._output.path}" if self._output is not None else ""
            return WorkerRefused(type(error).__name__, str(error).replace(log_hint, ""))
        return None

    async def ended(self) -> str:
        """Wait until no worker can be kept alive, and return the reason."""
        while True:
            try:
                await self._started().check()
            except LeydenError as error:
                return str(error)
            await asyncio.sleep(LOOK_SECONDS)

    async def running(self) -> int:
        """Return the number of attempts that run."""
        return self._started().running

    async def drain(self) -> None:
        """Claim no further rollout, and return when the claimed ones have ended and the workers with them."""
        await self._started().drained()

    async def workers(self) -> list[str]:
        """Return the ids of the live workers in the store."""
        return self._started().worker_ids

    async def read_output(self) -> bytes | None:
        """Return the workers' output since the last call; waits up to `LOOK_SECONDS` for some. None after the end."""
        if self._output is None or self._output.is_closed:
            return None
        return await self._output.take()

    async def end(self) -> bytes:
        """Stop the workers. Returns their output since the last fetch."""
        if self._pool is not None:
            await self._pool.stop()
        return b"" if self._output is None else self._output.close()

    def _started(self) -> WorkerPool:
        if self._pool is None:
            raise LeydenError("the host has not started")
        return self._pool

    def _change_folder(self) -> None:
        try:
            os.chdir(self._folder)
        except OSError as error:
            raise UsageError(
                f"{socket.gethostname()} has no folder {self._folder} ({error.strerror}): the agent's files must be "
                "in the same folder on every machine, for example on a shared disk, or be in an installed package"
            ) from None

    async def _check_reachable(self) -> None:
        store = HttpStore(self._spec.store_url, self._spec.store_token, patience=REACH_SECONDS)
        try:
            await store.add_many_spans([])  # an empty request changes nothing
        except StoreError as error:
            raise UsageError(
                f"{socket.gethostname()} cannot reach the run at {self._spec.gateway_url}: give --host, and "
                f"--advertise with an address that other machines can reach ({error})"
            ) from None
        finally:
            await store.close()


class PipeBuffer(asyncio.Protocol):
    """Buffer for what processes write to `path`, a pipe of this process that ends with it.

    Needs Linux: other processes open the pipe through `/proc`.
    """

    def __init__(self) -> None:
        self.path = ""
        self._bytes, self._lost = bytearray(), 0
        self._has_output = asyncio.Event()
        self.is_closed = False
        self._read_end = self._write_end = -1
        self._transport: asyncio.BaseTransport | None = None

    @classmethod
    async def open(cls) -> "PipeBuffer":
        """Open the pipe and begin to read. Raises UsageError on a system without `/proc`."""
        if not Path("/proc/self/fd").is_dir():
            raise UsageError(f"runners on other machines need Linux; {socket.gethostname()} has no /proc")
        read_end, write_end = os.pipe()
        buffer = cls()
        buffer._read_end, buffer._write_end = read_end, write_end
        buffer.path = f"/proc/{os.getpid()}/fd/{write_end}"
        loop = asyncio.get_running_loop()
        buffer._transport, _ = await loop.connect_read_pipe(lambda: buffer, os.fdopen(read_end, "rb", buffering=0))
        return buffer

    def data_received(self, data: bytes) -> None:
        """Append data to the buffer. Drops the oldest bytes beyond `MOST_PRINTED`."""
        self._bytes += data
        beyond = len(self._bytes) - MOST_PRINTED
        if beyond > 0:
            self._lost += beyond
            del self._bytes[:beyond]
        self._has_output.set()

    async def take(self) -> bytes:
        """Return at most `PIECE` bytes of the buffer. Waits up to `LOOK_SECONDS` for data."""
        try:
            await asyncio.wait_for(self._has_output.wait(), LOOK_SECONDS)
        except TimeoutError:
            return b""
        return self._cut(PIECE)

    def close(self) -> bytes:
        """Stop reading. Returns everything in the buffer."""
        if self._transport is not None and not self.is_closed:
            self.is_closed = True
            with contextlib.suppress(BlockingIOError):  # the loop may not have read the rest yet
                while piece := os.read(self._read_end, PIECE):
                    self.data_received(piece)
            self._transport.close()
            os.close(self._write_end)
        return self._cut(MOST_PRINTED)

    def _cut(self, size: int) -> bytes:
        note = f"[{self._lost} bytes of output before this line are lost]\n".encode() if self._lost else b""
        piece = bytes(self._bytes[:size])
        del self._bytes[:size]
        self._lost = 0
        if not self._bytes:
            self._has_output.clear()
        return note + piece

"""`SharedListener`: a listening socket from which several workers accept, so that each has as many connections.

The operating system would wake the same idle worker for every connection. A worker that has more open connections than
another one therefore waits for a moment before it accepts. Clients keep connections open for long, so the number of
connections decides how the calls are spread.
"""

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path

YIELD_SECONDS = 0.002
"""Time in which a worker with fewer connections may accept first."""
NUMBER_BYTES = 8


class SharedListener:
    """Listener of the worker `name`; the workers know each other's number of connections from files in `folder`."""

    def __init__(self, listening: socket.socket, folder: Path, name: str) -> None:
        self.socket = listening
        self._counts, self._name = folder / "connections", name
        self._counts.mkdir(parents=True, exist_ok=True)
        self._file: int | None = os.open(self._counts / name, os.O_RDWR | os.O_CREAT, 0o600)
        self._open = 0
        self.count(0)

    async def accept(self) -> socket.socket:
        """Return the socket of the next connection that this worker accepts; raises OSError as `socket.accept`."""
        while True:
            await self._readable()
            if self._open > self._fewest_of_others():
                await asyncio.sleep(YIELD_SECONDS)
            try:
                client, _ = self.socket.accept()
            except BlockingIOError:  # another worker was first
                continue
            client.setblocking(False)
            return client

    def count(self, change: int) -> None:
        """Count connections that were opened (1) or closed (-1)."""
        self._open += change
        if self._file is not None:
            os.pwrite(self._file, self._open.to_bytes(NUMBER_BYTES), 0)

    def close(self) -> None:
        """Remove the worker's own file. The server closes the socket."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        forget_connections(self._counts.parent, self._name)

    async def _readable(self) -> None:
        """Wait until a connection waits to be accepted."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self.socket, lambda: waiting.done() or waiting.set_result(None))
        try:
            await waiting
        finally:
            loop.remove_reader(self.socket)

    def _fewest_of_others(self) -> int:
        found: list[int] = []
        for path in self._counts.iterdir():
            with suppress(FileNotFoundError):  # its worker has ended
                if path.name != self._name:
                    found.append(int.from_bytes(path.read_bytes()))
        return min(found, default=self._open)


def forget_connections(folder: Path, name: str) -> None:
    """Remove the connections of a worker that has ended."""
    (folder / "connections" / name).unlink(missing_ok=True)

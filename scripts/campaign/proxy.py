"""`CuttingProxy`: stands before the gateway and cuts connections where a request's body asks for it, once per request.

It takes HTTP/1.1 requests one at a time and forwards bytes as they come.
"""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncGenerator
from hashlib import blake2b
from urllib.parse import urlsplit

FAULT = re.compile(rb'fault(?:"?: ?"|:)(sent|lost|half|live)"')
LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)
LONGEST_HEAD = 1 << 20


class CuttingProxy:
    """Listens on a free loopback port for the server at `target`."""

    def __init__(self, target: str) -> None:
        where = urlsplit(target)
        self._host, self._port = where.hostname, where.port
        self._seen: set[bytes] = set()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.cuts = Counter[str]()
        """Connections that were cut, by fault."""

    async def start(self) -> str:
        """Listen; returns the root URL."""
        self._server = await asyncio.start_server(self._enter, "127.0.0.1", 0, limit=LONGEST_HEAD)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Cut what is left."""
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                early: bytes | None = b""
                while early is not None:
                    head = early + await reader.readuntil(b"\r\n\r\n")
                    body = await reader.readexactly(_length(head) or 0)
                    early = await self._with_server(head, body, reader, writer)
        finally:
            writer.transport.abort()

    async def _with_server(
        self, head: bytes, body: bytes, client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> bytes | None:
        """Make one exchange on a connection of its own, as the server may have closed an earlier one."""
        server, to_server = await asyncio.open_connection(self._host, self._port, limit=LONGEST_HEAD)
        try:
            to_server.write(head + body)
            await to_server.drain()
            return await self._exchange(self._fault(body), client, to_client, server)
        finally:
            to_server.transport.abort()

    async def _exchange(
        self,
        fault: str | None,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
    ) -> bytes | None:
        """Hand the answer to a request back; None when the connection is to end.

        Returns what has come of the next request: a client may have the whole answer before it is known here that it
        was written.
        """
        if fault == "sent":
            return None
        gone = asyncio.create_task(client.read(1))
        answering = asyncio.create_task(self._answer(server, to_client, fault))
        try:
            await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not gone.result():
                return None
            goes_on = await answering
            gone.cancel()
            await asyncio.wait({gone})
            early = b"" if gone.cancelled() else gone.result()
            return early if goes_on and (early or gone.cancelled()) else None
        finally:
            for task in (gone, answering):
                task.cancel()
            await asyncio.wait({gone, answering})

    def _fault(self, body: bytes) -> str | None:
        found = FAULT.search(body)
        key = blake2b(body, digest_size=16).digest()
        if found is None or key in self._seen:
            return None
        self._seen.add(key)
        self.cuts[found[1].decode()] += 1
        return found[1].decode()

    async def _answer(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter, fault: str | None) -> bool:
        """Give the answer on, or as much of it as `fault` leaves."""
        head = await server.readuntil(b"\r\n\r\n")
        parts = _body(server, head)
        if fault in ("lost", "half"):
            body = b"".join([part async for part in parts])
            if fault == "half":
                to_client.write(head + body[: len(body) // 2])
                await to_client.drain()
                to_client.write_eof()  # what was written arrives before the end
            return False
        to_client.write(head)
        async for part in parts:
            # never a whole answer: its client would keep the connection, and might send its next request before the end
            to_client.write(part[:-1] if fault == "live" else part)
            await to_client.drain()
            if fault == "live":
                to_client.write_eof()
                return False
        return True


async def _body(server: asyncio.StreamReader, head: bytes) -> AsyncGenerator[bytes]:
    """Yield an answer's body as it comes, in whatever framing it has."""
    left = _length(head)
    if left is not None:
        while left:
            part = await server.read(min(left, 1 << 16))
            if not part:
                raise ConnectionError("the server hung up")
            left -= len(part)
            yield part
        return
    while True:
        size = await server.readuntil(b"\r\n")
        chunk = size + await server.readexactly(int(size, 16) + 2)
        yield chunk
        if chunk == b"0\r\n\r\n":
            return


def _length(head: bytes) -> int | None:
    found = LENGTH.search(head)
    return int(found[1]) if found else None

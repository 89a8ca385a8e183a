"""One connection to a gateway, byte by byte: requests that no library would send, and what is answered to them."""

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass
from typing import Any, cast

from fuzz.mutations import Request

_RESPONSE_ID = re.compile(rb'"id":"((?:chatcmpl-|cmpl-|resp_|msg_)[^"]+)"')
MESSAGES_FIELDS = {"type", "error", "request_id"}
ERROR_FIELDS = {"message", "type", "param", "code"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; status 0 where the connection was closed without an answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        """Whether the connection ends here."""
        return self.status == 0 or self.headers.get("connection", "").lower() == "close"

    @property
    def response_id(self) -> str | None:
        """Id of an answered model call."""
        found = _RESPONSE_ID.search(self.body) if self.status == 200 else None
        return found[1].decode() if found else None


class Connection:
    """One connection, opened again where it was closed."""

    def __init__(self, host: str, port: int, patience: float) -> None:
        self._address, self._patience = (host, port), patience
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Request, headers: list[tuple[bytes, bytes]]) -> Answer:
        """Send a request and read its answer; raises TimeoutError where none comes in time."""
        async with asyncio.timeout(self._patience):
            if self._streams is None:
                self._streams = await asyncio.open_connection(*self._address, limit=1 << 20)
            reader, writer = self._streams
            try:
                writer.write(request.encode(headers))
                answer = await _read(reader, request.method)
            except (ConnectionError, asyncio.IncompleteReadError):
                answer = Answer(0, {}, b"")
        if answer.closes or not request.framed:
            await self.close()
        return answer

    async def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            writer, self._streams = self._streams[1], None
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader, method: str) -> Answer:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    status = int(first.split(" ")[1])
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    if status == 100:
        return await _read(reader, method)
    if method == "HEAD":
        return Answer(status, headers, b"")
    if headers.get("transfer-encoding") == "chunked":
        parts: list[bytes] = []
        while size := int(await reader.readline(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return Answer(status, headers, b"".join(parts))
    if "content-length" in headers:
        return Answer(status, headers, await reader.readexactly(int(headers["content-length"])))
    return Answer(status, headers, await reader.read())


def fault(request: Request, answer: Answer) -> str | None:
    """Return what is wrong with an answer, in words; None where it is as it should be."""
    if answer.status == 0:
        return None if not request.framed else "closed without an answer"
    if not (answer.status == 200 or 400 <= answer.status < 500):
        return f"answered {answer.status}"
    if answer.status == 200 or request.method == "HEAD":
        return None
    try:
        error: Any = json.loads(answer.body)
    except (ValueError, RecursionError):
        return f"answered {answer.status} without JSON"
    fields = set(cast("dict[str, Any]", error)) if isinstance(error, dict) else set[str]()
    inner = set(cast("dict[str, Any]", error["error"])) if "error" in fields else set[str]()
    known = fields == {"error"} and inner == ERROR_FIELDS
    if "/messages" in request.path:
        known |= fields == MESSAGES_FIELDS and inner == {"type", "message"}
    return None if known else f"answered {answer.status} in another form than the provider's"

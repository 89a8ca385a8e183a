"""`Intake`: how much a store's server takes in at once. Knows nothing of what a request says.

Invariant: whatever clients send, and however it is compressed, the requests that are being worked on hold no more than
`max_held` bytes and one request together. Who comes when there is no room is told to come again.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from starlette.requests import Request

from leyden.core.data.inflating import DEFLATE, GZIP, Corrupt, Inflater, TooMuch
from leyden.core.store.refused import Refused, come_again

SCALE_AT = 5_000
ENCODINGS = {"gzip": GZIP, "x-gzip": GZIP, "deflate": DEFLATE}
"""Content encodings that a body may have, and how zlib calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a store's server takes in. The defaults fit a machine with a few gigabytes."""

    max_body: int = 64 << 20
    """Bytes of one request, as sent, and as read where it was compressed."""
    max_json: int = 16 << 20
    """Bytes of one OTLP request in JSON, which takes many times more to read than protobuf."""
    max_span: int = 16 << 20
    """Bytes of one span that comes by OTLP."""
    max_held: int = 256 << 20
    """Bytes of all requests that are being read or worked on."""
    max_waiting_spans: int = 20_000
    """Spans that wait to be written before further ones have to come again."""
    scale_at: int = SCALE_AT
    """Waiting spans from which on `/metrics` asks for more servers."""
    retry_seconds: int = 1
    """When to come again."""
    body_seconds: float = 120.0
    """For the whole body of a request."""


class Intake:
    """Counts what is being worked on. Belongs to one event loop."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.spans = 0
        """Spans that wait to be written."""
        self.held = 0
        """Bytes of requests that are being read or worked on."""

    def check_room(self) -> None:
        """Raise Refused, with status 429, while too many spans wait."""
        if self.spans >= self.limits.max_waiting_spans:
            raise come_again(f"{self.spans} spans wait to be written; send these again", self.limits.retry_seconds)

    @contextmanager
    def writing(self, spans: int) -> Generator[None]:
        """Count spans as waiting inside the block."""
        self.spans += spans
        try:
            yield
        finally:
            self.spans -= spans

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncGenerator[bytes]:
        """Read a request's body, decompressed, and hold it inside the block.

        Raises Refused with status 400 (not what its headers say), 408 (too slow), 413 (too large), 415 (compressed in
        another way) or 429 (no room).
        """
        inflate = _inflate(request.headers.get("content-encoding"), self.limits.max_body)
        if int(request.headers.get("content-length", 0)) > self.limits.max_body:
            raise too_large(self.limits.max_body)
        took = [0]
        try:
            try:
                async with asyncio.timeout(self.limits.body_seconds):
                    body = await self._read(request, inflate, took)
            except TimeoutError:
                raise Refused(408, "the request came too slowly", {"connection": "close"}) from None
            yield body
        finally:
            self.held -= took[0]

    async def _read(self, request: Request, inflate: Inflater | None, took: list[int]) -> bytes:
        parts: list[bytes] = []
        sent = 0
        async for chunk in request.stream():
            sent += len(chunk)
            if sent > self.limits.max_body:
                raise too_large(self.limits.max_body)
            part = chunk if inflate is None else self._inflated(inflate, chunk)
            if self.held + len(part) > self.limits.max_held and self.held > took[0]:
                raise come_again("the server holds too many requests; send this again", self.limits.retry_seconds)
            took[0] += len(part)
            self.held += len(part)
            parts.append(part)
        if inflate is not None and not inflate.whole:
            raise Refused(400, "the compressed request breaks off")
        return b"".join(parts)

    def _inflated(self, inflate: Inflater, chunk: bytes) -> bytes:
        try:
            return inflate.push(chunk)
        except Corrupt as error:
            raise Refused(400, f"the request is not in the content encoding it names: {error}") from None
        except TooMuch:
            raise too_large(self.limits.max_body, "decompressed ") from None


def _inflate(encoding: str | None, limit: int) -> Inflater | None:
    if encoding is None or encoding.strip().lower() in ("", "identity"):
        return None
    window = ENCODINGS.get(encoding.strip().lower())
    if window is None:
        raise Refused(415, "a request may be compressed with gzip or deflate", {"accept-encoding": "gzip, deflate"})
    return Inflater(window, limit, members=True)


def too_large(limit: int, what: str = "") -> Refused:
    """Refusal of a request that will never be taken."""
    return Refused(413, f"a {what}request to the store may have {limit} bytes; send fewer spans at once")

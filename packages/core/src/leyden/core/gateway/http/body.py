"""Request body: reads and decompresses it within limits of size and time.

Invariant: whatever a client sends, and however it is compressed, memory never holds more than the limit and one piece.
"""

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from starlette.types import Message, Receive, Scope

from leyden.core.data.encoding.decompression import DEFLATE, GZIP, Corrupt, Inflater, TooLarge
from leyden.core.gateway.http.asgi import ClientGone
from leyden.core.gateway.limits.connections import connection_of
from leyden.core.gateway.refusal import Refusal, invalid

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

SizeCallback: TypeAlias = Callable[[int], None]
Work: TypeAlias = Callable[[int, Callable[[], bytes]], Awaitable[bytes]]
"""Returns what a function returns that works on so many bytes, off the event loop."""

_ALIASES = {"x-gzip": "gzip"}
_ZSTD_SLICE = 128
"""Bytes of a zstd frame decompressed at once. Four bytes can expand to 128 KiB, so a slice yields at most 4 MiB."""

_MAX_INLINE_BYTES = 1 << 10
"""Largest compressed piece in bytes that is decompressed on the event loop: it expands to at most 1 MiB."""


def _unlimited(_: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """Limits on the size and the transfer time of a request's body."""

    max_bytes: int = 16 << 20
    """Size as sent."""
    max_decoded_bytes: int = 16 << 20
    """Size after decompression, for a compressed body."""
    seconds: float = 120.0
    """Time for the whole body."""
    gap_seconds: float = 30.0
    """Time between two pieces of the body."""
    max_bytes_per_attempt: int = 64 << 20
    """Decompressed size of all unanswered requests of one attempt together."""


async def _in_thread(_: int, call: Callable[[], bytes]) -> bytes:
    return await asyncio.to_thread(call)


async def read_body(
    scope: Scope, receive: Receive, limits: BodyLimits, on_piece: SizeCallback = _unlimited, work: Work = _in_thread
) -> bytes:
    """Read a request's body and return it decompressed.

    `on_piece` is called with the decompressed size of every piece, and may raise Refusal. `work` decompresses a piece
    that may expand to megabytes. Raises Refusal with status 400 (the body contradicts its headers), 408 (too
    slow), 413 (too large) or 415 (content encoding not accepted). Raises ClientGone if the client disconnects.
    """
    body = _Body(scope["headers"], limits, on_piece, work)
    connection = connection_of(scope)
    if connection is not None and connection.body_has_arrived:  # as of almost every request: it needs no timer
        while await body.read(receive):
            pass
        return body.whole()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.seconds
    try:
        async with asyncio.timeout_at(min(deadline, loop.time() + limits.gap_seconds)) as timeout:
            while await body.read(receive):
                timeout.reschedule(min(deadline, loop.time() + limits.gap_seconds))
    except TimeoutError:
        raise _too_slow() from None
    return body.whole()


class _Body:
    """A body that is read piece by piece."""

    def __init__(self, headers: Headers, limits: BodyLimits, on_piece: SizeCallback, work: Work) -> None:
        self._limits, self._on_piece, self._work = limits, on_piece, work
        self._length = _declared_length(headers)
        self._decoder = _decoder(headers, limits)
        if self._length is not None and self._length > limits.max_bytes:
            raise _too_large(limits.max_bytes)
        self._parts: list[bytes] = []
        self._size = 0

    async def read(self, receive: Receive) -> bool:
        """Read the next piece; return whether more pieces follow."""
        part, more = _piece(await receive())
        length = self._length
        size = self._size = self._size + len(part)
        if size > self._limits.max_bytes:
            raise _too_large(self._limits.max_bytes)
        if length is not None and (size > length or (size < length and not more)):
            raise invalid(f"The request body has {size} bytes; its Content-Length says {length}.")
        if self._decoder is not None:
            part = await _decoded(self._decoder, part, self._limits, self._work)
        self._parts.append(part)
        self._on_piece(len(part))
        return more

    def whole(self) -> bytes:
        """Return the body; raises Refusal if the compressed data is incomplete."""
        if self._decoder is not None and not self._decoder.whole:
            raise invalid("The compressed request body is incomplete.")
        return b"".join(self._parts)


class _Decoder(Protocol):
    """Decompressor of a body, piece by piece."""

    @property
    def whole(self) -> bool:
        """Whether the compressed data is complete."""
        ...

    def push(self, data: bytes) -> bytes:
        """Return the decompressed bytes of `data`; raises Corrupt, or TooLarge if the body exceeds the limit."""
        ...


class _ZstdDecoder:
    """Decompressor of one or more zstd frames.

    It decompresses small slices, because the library has no limit on the output of one call.
    """

    def __init__(self, limit: int) -> None:
        import zstandard  # optional dependency: no other code of Leyden needs it

        self._bytes_left = limit
        self._corrupt = zstandard.ZstdError
        self._frames = zstandard.ZstdDecompressor(max_window_size=8 << 20)  # RFC 8878 recommends support for 8 MiB
        self._frame = self._frames.decompressobj()
        self._begun = False

    @property
    def whole(self) -> bool:
        return self._begun and self._frame.eof

    def push(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        for start in range(0, len(data), _ZSTD_SLICE):
            piece = data[start : start + _ZSTD_SLICE]
            while piece:
                if self._frame.eof:
                    self._frame = self._frames.decompressobj()
                self._begun = True
                try:
                    parts.append(self._frame.decompress(piece))
                except self._corrupt as error:
                    raise Corrupt(str(error)) from None
                self._bytes_left -= len(parts[-1])
                if self._bytes_left < 0:
                    raise TooLarge
                piece = self._frame.unused_data
        return b"".join(parts)


def accepted_encodings() -> tuple[str, ...]:
    """Return the content encodings that this process can decompress; zstd needs the package `zstandard`."""
    return ("gzip", "deflate", "zstd") if importlib.util.find_spec("zstandard") else ("gzip", "deflate")


def _decoder(headers: Headers, limits: BodyLimits) -> _Decoder | None:
    encodings = b",".join(value for name, value in headers if name == b"content-encoding")
    if not encodings:
        return None
    names = [name.strip() for name in encodings.decode("latin-1").lower().split(",")]
    names = [_ALIASES.get(name, name) for name in names if name not in ("", "identity")]
    if not names:
        return None
    accepted = accepted_encodings()
    if len(names) > 1 or names[0] not in accepted:
        raise Refusal(
            415,
            f"A request body may have one content encoding, of: {', '.join(accepted)}.",
            code="unsupported_content_encoding",
            headers={"accept-encoding": ", ".join(accepted)},
        )
    if names[0] == "zstd":
        return _ZstdDecoder(limits.max_decoded_bytes)
    gzip = names[0] == "gzip"
    return Inflater(GZIP if gzip else DEFLATE, limits.max_decoded_bytes, members=gzip)


async def _decoded(decoder: _Decoder, part: bytes, limits: BodyLimits, work: Work) -> bytes:
    """Decompress a piece; by `work` if it may expand to more than 1 MiB."""
    limit = limits.max_decoded_bytes
    try:
        return decoder.push(part) if len(part) <= _MAX_INLINE_BYTES else await work(limit, partial(decoder.push, part))
    except Corrupt:
        raise invalid("The request body is not in the content encoding that it names.") from None
    except TooLarge:
        raise _too_large(limit, "decompressed ") from None


def _declared_length(headers: Headers) -> int | None:
    lengths = {value.strip() for name, value in headers if name == b"content-length"}
    if not lengths:
        return None
    value = lengths.pop()
    if lengths or not value.isdigit():
        raise invalid("The Content-Length of the request is not one number.")
    return int(value[:20])  # 20 digits exceed every limit, and Python does not parse thousands of digits


def _piece(message: Message) -> tuple[bytes, bool]:
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int, kind: str = "") -> Refusal:
    return Refusal(413, f"The {kind}request body is larger than {limit} bytes.", code="request_too_large")


def _too_slow() -> Refusal:
    # The position of the rest of the body is unknown now, so the connection cannot serve another request.
    return Refusal(408, "The request body arrived too slowly.", code="request_timeout", headers={"connection": "close"})

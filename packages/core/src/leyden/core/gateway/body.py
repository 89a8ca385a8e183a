"""Reading a request's body within limits of size and time. Knows nothing of what the body says.

Invariant: whatever a client sends, and however it is compressed, no more than the limit and one piece is ever held.
"""

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from starlette.types import Message, Receive, Scope

from leyden.core.data.inflating import DEFLATE, GZIP, Corrupt, Inflater, TooMuch
from leyden.core.gateway.http import ClientGone
from leyden.core.gateway.refusal import Refusal, invalid

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

Hold: TypeAlias = Callable[[int], None]
Work: TypeAlias = Callable[[int, Callable[[], bytes]], Awaitable[bytes]]
"""Returns what a function returns that works on so many bytes, off the event loop."""

_ALIASES = {"x-gzip": "gzip"}
_ZSTD_SLICE = 128
"""Bytes of a zstd frame taken at once. Four of them can stand for 128 KiB, so a slice gives at most 4 MiB."""

_INLINE = 1 << 10
"""Compressed bytes of which no more than a MiB can come."""


def _unlimited(_: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """How large a request's body may be and how slowly it may come."""

    max_bytes: int = 16 << 20
    """As sent."""
    max_decoded_bytes: int = 16 << 20
    """As read, where it was sent compressed."""
    seconds: float = 120.0
    """For the whole body."""
    gap_seconds: float = 30.0
    """Between two pieces of it."""
    max_bytes_per_attempt: int = 64 << 20
    """Of all requests of one attempt together, as read, until they are answered."""


async def _in_thread(_: int, call: Callable[[], bytes]) -> bytes:
    return await asyncio.to_thread(call)


async def read_body(
    scope: Scope, receive: Receive, limits: BodyLimits, hold: Hold = _unlimited, work: Work = _in_thread
) -> bytes:
    """Read a request's body, decompressed; `hold` gets the size of every piece, and may raise Refusal.

    `work` decompresses what may stand for megabytes.
    Raises Refusal with status 400 (not what its headers say), 408 (too slow), 413 (too large) or 415 (compressed in a
    way that is not accepted), and ClientGone when the client hangs up.
    """
    length = _declared_length(scope["headers"])
    decoder = _decoder(scope["headers"], limits)
    if length is not None and length > limits.max_bytes:
        raise _too_large(limits.max_bytes)
    loop = asyncio.get_running_loop()
    end = loop.time() + limits.seconds
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout_at(min(end, loop.time() + limits.gap_seconds)) as patience:
            while more:
                part, more = _piece(await receive())
                size += len(part)
                if size > limits.max_bytes:
                    raise _too_large(limits.max_bytes)
                if length is not None and (size > length or (size < length and not more)):
                    raise invalid(f"The request body has {size} bytes; its Content-Length says {length}.")
                parts.append(part if decoder is None else await _decoded(decoder, part, limits, work))
                hold(len(parts[-1]))
                if more:
                    patience.reschedule(min(end, loop.time() + limits.gap_seconds))
    except TimeoutError:
        raise _too_slow() from None
    if decoder is not None and not decoder.whole:
        raise invalid("The compressed request body breaks off.")
    return b"".join(parts)


class _Decoder(Protocol):
    """Decompresses a body piece by piece; raises Corrupt or TooMuch for what grows too large."""

    @property
    def whole(self) -> bool:
        """Whether everything that was begun has ended."""
        ...

    def push(self, data: bytes) -> bytes:
        """Return what `data` stands for."""
        ...


class _ZstdDecoder:
    """zstd, one frame or several, in slices: the library cannot be told how much it may give at once."""

    def __init__(self, limit: int) -> None:
        import zstandard  # where it is installed; nothing of ours needs it otherwise

        self._room = limit
        self._corrupt = zstandard.ZstdError
        self._frames = zstandard.ZstdDecompressor(max_window_size=8 << 20)  # what RFC 8878 asks everyone to support
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
                self._room -= len(parts[-1])
                if self._room < 0:
                    raise TooMuch
                piece = self._frame.unused_data
        return b"".join(parts)


def accepted_encodings() -> tuple[str, ...]:
    """Content encodings that a body may have on this machine."""
    return ("gzip", "deflate", "zstd") if importlib.util.find_spec("zstandard") else ("gzip", "deflate")


def _decoder(headers: Headers, limits: BodyLimits) -> _Decoder | None:
    given = b",".join(value for name, value in headers if name == b"content-encoding")
    if not given:
        return None
    names = [name.strip() for name in given.decode("latin-1").lower().split(",")]
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
    """Decompress a piece; off the event loop where it may stand for megabytes."""
    limit = limits.max_decoded_bytes
    try:
        return decoder.push(part) if len(part) <= _INLINE else await work(limit, partial(decoder.push, part))
    except Corrupt:
        raise invalid("The request body is not in the content encoding that it names.") from None
    except TooMuch:
        raise _too_large(limit, "decompressed ") from None


def _declared_length(headers: Headers) -> int | None:
    given = {value.strip() for name, value in headers if name == b"content-length"}
    if not given:
        return None
    value = given.pop()
    if given or not value.isdigit():
        raise invalid("The Content-Length of the request is not one number.")
    return int(value[:20])  # beyond every limit already, and Python refuses to read thousands of digits


def _piece(message: Message) -> tuple[bytes, bool]:
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int, what: str = "") -> Refusal:
    return Refusal(413, f"The {what}request body is larger than {limit} bytes.", code="request_too_large")


def _too_slow() -> Refusal:
    # Where the rest of the body begins and ends is not known any more, so the connection cannot serve another request.
    return Refusal(408, "The request body came too slowly.", code="request_timeout", headers={"connection": "close"})

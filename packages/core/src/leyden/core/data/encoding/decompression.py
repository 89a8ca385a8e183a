"""`Inflater`: decompresses gzip and deflate piece by piece, up to a limit of bytes."""

import zlib

GZIP, DEFLATE = zlib.MAX_WBITS | 16, zlib.MAX_WBITS
"""zlib's `wbits` values for the two encodings."""


class Corrupt(Exception):
    """The data are not valid in the declared encoding."""


class TooLarge(Exception):
    """The decompressed data have more bytes than the limit."""


class Inflater:
    """Decompresses at most `limit` bytes in all; with `members`, several streams may follow each other, as in gzip."""

    def __init__(self, window: int, limit: int, *, members: bool) -> None:
        self._window, self._room, self._members = window, limit, members
        self._inflate = zlib.decompressobj(window)

    @property
    def whole(self) -> bool:
        """Whether the compressed stream has ended; False in the middle of a stream."""
        return self._inflate.eof

    def push(self, data: bytes) -> bytes:
        """Return the decompressed bytes of `data`; raises Corrupt or TooLarge."""
        parts: list[bytes] = []
        while data:
            if self._inflate.eof:
                if not self._members:
                    raise Corrupt("data follows its end")
                self._inflate = zlib.decompressobj(self._window)
            try:
                parts.append(self._inflate.decompress(data, self._room + 1))
            except zlib.error as error:
                raise Corrupt(str(error)) from None
            self._room -= len(parts[-1])
            if self._room < 0:
                raise TooLarge
            data = self._inflate.unused_data
        return b"".join(parts)

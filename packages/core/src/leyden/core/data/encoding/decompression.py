"""`Inflater`: gzip and deflate piece by piece, up to a limit. Knows nothing of requests, or of how they are refused."""

import zlib

GZIP, DEFLATE = zlib.MAX_WBITS | 16, zlib.MAX_WBITS
"""How zlib calls them."""


class Corrupt(Exception):
    """What was compressed is not in the encoding it was said to be in."""


class TooMuch(Exception):
    """What was compressed stands for more bytes than the limit."""


class Inflater:
    """Holds no more than `limit` bytes at once; with `members`, several may follow each other, as in gzip."""

    def __init__(self, window: int, limit: int, *, members: bool) -> None:
        self._window, self._room, self._members = window, limit, members
        self._inflate = zlib.decompressobj(window)

    @property
    def whole(self) -> bool:
        """Whether everything that was begun has ended."""
        return self._inflate.eof

    def push(self, data: bytes) -> bytes:
        """Return what `data` stands for; raises Corrupt or TooMuch."""
        parts: list[bytes] = []
        while data:
            if self._inflate.eof:
                if not self._members:
                    raise Corrupt("something follows its end")
                self._inflate = zlib.decompressobj(self._window)
            try:
                parts.append(self._inflate.decompress(data, self._room + 1))
            except zlib.error as error:
                raise Corrupt(str(error)) from None
            self._room -= len(parts[-1])
            if self._room < 0:
                raise TooMuch
            data = self._inflate.unused_data
        return b"".join(parts)

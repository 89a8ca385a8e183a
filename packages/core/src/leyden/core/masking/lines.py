"""Line masker: masks secrets in the output of a process as it arrives, line by line."""

import re

from leyden.core.masking.text import printable

LONGEST_LINE = 1 << 18
"""Longest line in bytes that is buffered until its end; a longer line is cut into parts."""
OVERLAP = 1 << 14
"""Bytes at the end of a part that are scanned again with the next part; longer than any secret."""
_CUTS = 16
"""Number of distances from the end at which a cut of a long line is tried."""
_OPEN_KEY = re.compile(
    rb"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:\s+[A-Z][A-Za-z-]{2,15}: [^\r\n]{0,900}){0,6}"
    rb"(?:\s+[A-Za-z0-9+/=]{16,})*\s*\Z",
)
_RUN = re.compile(rb"[^\s\"']*")


class LineMasker:
    """Streaming masker: takes bytes, and returns complete lines with secrets masked and control characters escaped.

    A line of more than `LONGEST_LINE` bytes is returned as several lines. The lines of a private key are held back
    until its end.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skipping = False
        """Whether the input is still inside a secret longer than `LONGEST_LINE` bytes; its rest is skipped."""

    def feed(self, data: bytes) -> bytes:
        """Add output; return the lines that it completes, masked."""
        if self._skipping:
            data = data[_end_of(_RUN, data) :]
            self._skipping = not data
        before = len(self._buffer)
        self._buffer += data
        lines = b""
        if (end := data.rfind(b"\n")) >= 0:
            lines = self._take(self._complete(before + end + 1))
        while len(self._buffer) > LONGEST_LINE:
            lines += self._take_part()
        return lines

    def close(self) -> bytes:
        """End the output; return the remaining text, masked and with a line end."""
        lines = self._take(len(self._buffer))
        return lines if not lines or lines.endswith(b"\n") else lines + b"\n"

    def _complete(self, end: int) -> int:
        """Return the start of the lines that are held back for the end of a private key, or `end` if there are none.

        Only the lines up to `end` are searched.
        """
        found = _OPEN_KEY.search(self._buffer, max(0, end - OVERLAP), end)
        return end if found is None else self._buffer.rfind(b"\n", 0, found.start()) + 1

    def _take(self, size: int) -> bytes:
        lines = bytes(self._buffer[:size])
        del self._buffer[:size]
        return _masked(lines)

    def _take_part(self) -> bytes:
        """Remove the beginning of a long line up to a cut outside any secret; return it, masked."""
        part = bytes(self._buffer[: LONGEST_LINE + 1])
        whole = _masked(part)
        for cut in _cuts(part):
            first = _masked(part[:cut])
            if first + _masked(part[cut:]) == whole:
                del self._buffer[:cut]
                return first + b"\n"
        rest = self._buffer[len(part) :]
        self._buffer = rest[_end_of(_RUN, rest) :]
        self._skipping = not self._buffer
        return whole + b"\n"


def _cuts(part: bytes) -> list[int]:
    """Return positions at which `part` may be cut: after a space, or before a complete character."""
    cuts: list[int] = []
    for number in range(1, _CUTS):
        cut = len(part) - OVERLAP * number
        space = part.rfind(b" ", max(0, cut - OVERLAP), cut) + 1
        while part[cut] & 0xC0 == 0x80 and cut > len(part) - OVERLAP * (number + 1):
            cut -= 1
        cuts += [position for position in (space, cut) if position > 0]
    return cuts


def _masked(lines: bytes) -> bytes:
    return printable(lines.decode(errors="backslashreplace")).encode() if lines else lines


def _end_of(pattern: "re.Pattern[bytes]", data: "bytes | bytearray") -> int:
    found = pattern.match(data)
    return 0 if found is None else found.end()

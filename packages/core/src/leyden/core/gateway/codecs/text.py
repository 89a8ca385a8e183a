"""Token ids → text while they arrive, and stop strings in it. Knows nothing of tool calls or of HTTP."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
UNDECIDED = 3
"""Ids at the end that may begin a character: UTF-8 writes one in up to four bytes, and a token is at least one."""
CONTEXT = 16
"""Ids that are decoded again for context, at most, where those before the next had no text."""


class TextStream:
    """Decodes ids piece by piece, holding back characters whose bytes are not all there.

    Each piece is decoded together with the one before it, because what an id means may depend on its neighbour (a
    leading space in SentencePiece vocabularies). No more is held back than may still become a character, so that an
    answer of bytes that never do costs no more than any other. The pieces together are the text decoded at once, with
    one exception: a byte-fallback vocabulary writes all of a run of bytes as U+FFFD if its end is not UTF-8, and a
    character of that run that was given out cannot be taken back.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._context = 0
        """Start of the ids decoded for context only."""
        self._read = 0
        """Start of the ids whose text was not given out yet."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that these ids complete."""
        self._ids.extend(ids)
        text = self._text(len(self._ids))
        if not text.endswith(REPLACEMENT):
            return self._give(text, len(self._ids))
        for end in range(len(self._ids) - 1, max(self._read, len(self._ids) - 2 - UNDECIDED), -1):
            settled = self._text(end)
            if settled and not settled.endswith(REPLACEMENT):
                return self._give(settled, end)
            if end <= len(self._ids) - UNDECIDED and len(settled) < len(text) and text.startswith(settled):
                return self._give(settled, end)
        return ""

    def finish(self) -> str:
        """Text of what was held back: U+FFFD where bytes are missing."""
        return self._give(self._text(len(self._ids)), len(self._ids))

    def _text(self, end: int) -> str:
        """Text of the ids from the first that was not given out up to `end`."""
        if self._read == end:
            return ""
        context = self._decode(self._ids[self._context : self._read]) if self._read > self._context else ""
        return self._decode(self._ids[self._context : end])[len(context) :]

    def _give(self, text: str, end: int) -> str:
        if text:
            self._context = self._read
        else:
            self._context = max(self._context, self._read - CONTEXT)
        self._read = end
        return text


class StopFilter:
    """Cuts a text before the stop string that is complete first; does not depend on how the text is cut into pushes."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._held: str = ""
        self.stopped = False
        """Whether a stop string came; nothing is given out after it."""

    def push(self, text: str) -> str:
        """Text that cannot be the beginning of a stop string."""
        if self.stopped or not self._stop:
            return "" if self.stopped else text
        text = self._held + text
        found = [(text.find(stop), stop) for stop in self._stop]
        matches = [(start + len(stop), start) for start, stop in found if start >= 0]
        self.stopped = bool(matches)
        settled = min(matches)[1] if matches else len(text) - self._open(text)
        self._held = "" if matches else text[settled:]
        return text[:settled]

    def finish(self) -> str:
        """Text that was held back, once it is clear that no stop string follows."""
        held, self._held = self._held, ""
        return held

    def _open(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = max(map(len, self._stop)) - 1
        return next(
            (
                n
                for n in range(min(longest, len(text)), 0, -1)
                if any(stop.startswith(text[-n:]) for stop in self._stop)
            ),
            0,
        )

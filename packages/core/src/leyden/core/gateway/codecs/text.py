"""Streaming text: decodes token ids piece by piece, and finds stop strings in the text."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_INCOMPLETE_IDS = 3
"""Most ids at the end that may be an incomplete character: UTF-8 has up to 4 bytes, and a token at least 1."""
MAX_CONTEXT_IDS = 16
"""Most ids that are decoded again for context, if the ids before the next piece had no text."""


class TextStream:
    """Streaming decoder of token ids; it holds back characters until all their bytes have arrived.

    Each piece is decoded together with the piece before it, because the text of an id may depend on its neighbour (the
    leading space in SentencePiece vocabularies). The decoder holds back only ids that may still become a character. So
    an answer of invalid bytes costs no more than any other answer.

    The pieces together equal the text decoded at once, with one exception. A byte-fallback vocabulary decodes a whole
    run of bytes as U+FFFD if the end of the run is not UTF-8. Characters of such a run that were already returned
    cannot be withdrawn.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._context = 0
        """Index of the first id that is decoded for context only."""
        self._returned = 0
        """Index of the first id without returned text."""

    def push(self, ids: Sequence[int]) -> str:
        """Add ids; return the text that they complete."""
        self._ids.extend(ids)
        text = self._text(len(self._ids))
        if not text.endswith(REPLACEMENT):
            return self._return(text, len(self._ids))
        for end in range(len(self._ids) - 1, max(self._returned, len(self._ids) - 2 - MAX_INCOMPLETE_IDS), -1):
            settled = self._text(end)
            if settled and not settled.endswith(REPLACEMENT):
                return self._return(settled, end)
            if end <= len(self._ids) - MAX_INCOMPLETE_IDS and len(settled) < len(text) and text.startswith(settled):
                return self._return(settled, end)
        return ""

    def finish(self) -> str:
        """Return the text of the ids held back, with U+FFFD for incomplete characters."""
        return self._return(self._text(len(self._ids)), len(self._ids))

    def _text(self, end: int) -> str:
        """Return the text of the ids from `_returned` up to `end`."""
        if self._returned == end:
            return ""
        context = self._decode(self._ids[self._context : self._returned]) if self._returned > self._context else ""
        return self._decode(self._ids[self._context : end])[len(context) :]

    def _return(self, text: str, end: int) -> str:
        if text:
            self._context = self._returned
        else:
            self._context = max(self._context, self._returned - MAX_CONTEXT_IDS)
        self._returned = end
        return text


class StopFilter:
    """Filter that cuts a text before the stop string that is complete first.

    Its output does not depend on how the text is cut into pieces.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._held: str = ""
        self.found: str | None = None
        """The stop string that was found; `push` returns no text after it."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self.found is not None

    def push(self, text: str) -> str:
        """Add text; return the text that cannot be part of a stop string."""
        if self.found is not None:
            return ""
        if not self._stop:
            return text
        text = self._held + text
        found = [(text.find(stop), stop) for stop in self._stop]
        matches = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        self.found = min(matches)[2] if matches else None
        settled = min(matches)[1] if matches else len(text) - self._open_length(text)
        self._held = "" if matches else text[settled:]
        return text[:settled]

    def finish(self) -> str:
        """End the text; return the text held back, which turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    def _open_length(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that is a prefix of a stop string."""
        longest = max(map(len, self._stop)) - 1
        return next(
            (
                n
                for n in range(min(longest, len(text)), 0, -1)
                if any(stop.startswith(text[-n:]) for stop in self._stop)
            ),
            0,
        )

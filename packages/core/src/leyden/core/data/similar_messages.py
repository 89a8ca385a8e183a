"""`Tally`: counts messages, and groups those that differ only in ids, addresses and numbers.

Thousands of rollouts that fail for one reason may each have a different id, address or number in their message. Other
messages quote a task or an answer of the model, so that no two are the same. Where there are too many different
messages to show, those with the same beginning are shown as one.
"""

import re
from collections.abc import Callable, Iterable

import msgspec

_STATUS = re.compile(r"(?i)(?<![\w.])(?:code|status|http)\W{1,3}[1-5]\d\d\b")
"""An HTTP status shows what went wrong, so it is not replaced."""
_VARYING = re.compile(r"\b\w*\d\w*(?:\.\d\w*)*\b")
"""A word with a digit in it: a number, an address, an id, a time."""
_QUOTE = re.compile("[\"'`{\\[(<]")
"""Start of a quotation in a message."""
BEGINNING_WORDS = 4
"""Number of first words that two messages must share to be grouped."""
LINE_CHARACTERS = 400
"""Largest length of one message in a line of several."""


class CountedMessage(msgspec.Struct, frozen=True):
    """A group of equal messages with its count."""

    count: int
    text: str
    """Text of the first message."""
    example: str
    """What the first message was about, such as a rollout's id."""
    messages: int = 1
    """Number of different messages in the group; those after the first share only its beginning."""

    def shortened(self, characters: int = LINE_CHARACTERS) -> str:
        """Return at most `characters` of the text, and how many messages with the same beginning the group has."""
        text = self.text if len(self.text) <= characters else f"{self.text[: characters - 1]}…"
        return text if self.messages == 1 else f"{text} ({self.messages} messages that begin alike)"


class Tally:
    """Counts messages. Its memory grows with the number of different messages."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, int] = {}
        self._messages: dict[str, int] = {}

    def add(self, text: str, example: str = "", count: int = 1, messages: int = 1) -> None:
        """Count `text`, which occurred `count` times in `messages` different forms, the first time about `example`."""
        text = " ".join(text.split())
        key = without_varying_words(text)
        self._first.setdefault(key, (text, example))
        self._counts[key] = self._counts.get(key, 0) + count
        self._messages[key] = max(self._messages.get(key, 1), messages)

    def include(self, others: Iterable[CountedMessage]) -> None:
        """Add the counts of another tally."""
        for other in others:
            self.add(other.text, other.example, other.count, other.messages)

    @property
    def total(self) -> int:
        """Number of counted messages."""
        return sum(self._counts.values())

    def most_common(self) -> list[CountedMessage]:
        """Return the different messages, the most frequent first; of equally frequent ones, the earliest first."""
        ordered = sorted(self._counts.items(), key=lambda item: -item[1])
        return [CountedMessage(count, *self._first[key], messages=self._messages[key]) for key, count in ordered]

    def grouped(self, most: int) -> list[CountedMessage]:
        """Return the different messages; above `most`, those with the same beginning or exception class are merged."""
        found = self.most_common()
        for key in (beginning, error_class):
            if len(found) > most:
                found = _merged(found, key)
        return found

    def line(self, most: int = 3) -> str:
        """Return one line: `120 × no result within 2 s; 8 × ValueError: bad day; and 2 for another reason`."""
        found = self.grouped(most)
        parts = [f"{one.count} × {one.shortened()}" for one in found[:most]]
        if rest := found[most:]:
            others = "another reason" if len(rest) == 1 else f"{len(rest)} other reasons"
            parts.append(f"and {sum(one.count for one in rest)} for {others}")
        return "; ".join(parts)


def _merged(found: list[CountedMessage], key: Callable[[str], str]) -> list[CountedMessage]:
    groups: dict[str, list[CountedMessage]] = {}
    for one in found:
        groups.setdefault(key(one.text), []).append(one)
    merged = [
        CountedMessage(sum(one.count for one in group), first.text, first.example, sum(one.messages for one in group))
        for group in groups.values()
        for first in group[:1]
    ]
    return sorted(merged, key=lambda one: -one.count)


def without_varying_words(text: str) -> str:
    """Return `text` with `#` in the place of each word that has a digit in it, except HTTP statuses."""
    kept: list[str] = []
    end = 0
    for status in _STATUS.finditer(text):
        kept += [_VARYING.sub("#", text[end : status.start()]), status[0]]
        end = status.end()
    return "".join([*kept, _VARYING.sub("#", text[end:])])


def beginning(text: str) -> str:
    """Return the first words of `without_varying_words(text)`, up to the first quotation."""
    masked = without_varying_words(text)
    quote = _QUOTE.search(masked)
    before = masked if quote is None else masked[: quote.start()]
    return " ".join((before or masked).split()[:BEGINNING_WORDS])


def error_class(text: str) -> str:
    """Return the exception class at the start of `text`, such as `KeyError:`; for other messages their `beginning`."""
    first = text.partition(" ")[0]
    return first if first.endswith(":") else beginning(text)

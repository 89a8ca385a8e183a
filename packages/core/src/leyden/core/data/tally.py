"""`Tally`: messages counted by what they say, whichever ids, addresses and numbers they name.

Thousands of rollouts that fail for one reason say it with an id, an address or a number of their own each. Others quote
their task or an answer of the model, so that no two messages are the same: where there are too many different messages
to show, those that begin alike are shown as one.
"""

import re
from collections.abc import Callable, Iterable

import msgspec

_STATUS = re.compile(r"(?i)(?<![\w.])(?:code|status|http)\W{1,3}[1-5]\d\d\b")
"""A status of HTTP says what went wrong, and is kept."""
_VARYING = re.compile(r"\b\w*\d\w*(?:\.\d\w*)*\b")
"""A word with a digit in it: a number, an address, an id, a time."""
_QUOTE = re.compile("[\"'`{\\[(<]")
"""Where a message begins to quote something."""
BEGINNING_WORDS = 4
"""Of messages that begin alike."""
LINE_CHARACTERS = 400
"""Of one message in a line of several."""


class Counted(msgspec.Struct, frozen=True):
    """Messages that say the same."""

    count: int
    text: str
    """Of the first."""
    example: str
    """What the first was about, such as a rollout's id."""
    messages: int = 1
    """How many different messages these are; those after the first only begin like it."""

    def shortened(self, characters: int = LINE_CHARACTERS) -> str:
        """The text with at most so many characters, and how many other messages begin like it."""
        text = self.text if len(self.text) <= characters else f"{self.text[: characters - 1]}…"
        return text if self.messages == 1 else f"{text} ({self.messages} messages that begin alike)"


class Tally:
    """Counts messages; the memory it takes grows with the number of different ones."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, int] = {}
        self._messages: dict[str, int] = {}

    def add(self, text: str, example: str = "", count: int = 1, messages: int = 1) -> None:
        """Count `text`, which was said `count` times, first about `example`, in so many different messages."""
        said = " ".join(text.split())
        key = alike(said)
        self._first.setdefault(key, (said, example))
        self._counts[key] = self._counts.get(key, 0) + count
        self._messages[key] = max(self._messages.get(key, 1), messages)

    def include(self, others: Iterable[Counted]) -> None:
        """Add what was counted elsewhere."""
        for other in others:
            self.add(other.text, other.example, other.count, other.messages)

    @property
    def total(self) -> int:
        """How many messages were counted."""
        return sum(self._counts.values())

    def most_common(self) -> list[Counted]:
        """The different messages, the most frequent first; of equally frequent ones, those that came first."""
        ordered = sorted(self._counts.items(), key=lambda item: -item[1])
        return [Counted(count, *self._first[key], messages=self._messages[key]) for key, count in ordered]

    def few(self, most: int) -> list[Counted]:
        """The same; where there are more than `most`, those that begin alike, or name the same class, as one."""
        found = self.most_common()
        for key in (beginning, error_class):
            if len(found) > most:
                found = _merged(found, key)
        return found

    def line(self, most: int = 3) -> str:
        """In one line: `120 × no result within 2 s; 8 × ValueError: bad day; and 2 for another reason`."""
        found = self.few(most)
        said = [f"{one.count} × {one.shortened()}" for one in found[:most]]
        if rest := found[most:]:
            others = "another reason" if len(rest) == 1 else f"{len(rest)} other reasons"
            said.append(f"and {sum(one.count for one in rest)} for {others}")
        return "; ".join(said)


def _merged(found: list[Counted], key: Callable[[str], str]) -> list[Counted]:
    together: dict[str, list[Counted]] = {}
    for one in found:
        together.setdefault(key(one.text), []).append(one)
    merged = [
        Counted(sum(one.count for one in group), first.text, first.example, sum(one.messages for one in group))
        for group in together.values()
        for first in group[:1]
    ]
    return sorted(merged, key=lambda one: -one.count)


def alike(text: str) -> str:
    """`text` with `#` for each word that has a digit in it, but for statuses of HTTP."""
    kept: list[str] = []
    end = 0
    for status in _STATUS.finditer(text):
        kept += [_VARYING.sub("#", text[end : status.start()]), status[0]]
        end = status.end()
    return "".join([*kept, _VARYING.sub("#", text[end:])])


def beginning(text: str) -> str:
    """The first words of `alike(text)`, up to where it quotes something."""
    said = alike(text)
    quote = _QUOTE.search(said)
    before = said if quote is None else said[: quote.start()]
    return " ".join((before or said).split()[:BEGINNING_WORDS])


def error_class(text: str) -> str:
    """The class of the exception that `text` begins with, such as `KeyError:`; of other messages `beginning`."""
    first = text.partition(" ")[0]
    return first if first.endswith(":") else beginning(text)

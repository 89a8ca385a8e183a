"""Search space: for each searched setting the range or the choices from which trials take its values."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from leyden.core.errors import UsageError

Value = float | int | str
"""Value of a setting as Optuna keeps it: a number of a range, or the text of a choice."""
Values = Mapping[str, Value]
"""Values by searched key."""
MOST_LISTED = 10_000
"""Largest number of settings that `combinations` lists."""
LARGEST_WHOLE = 2**53
_BETWEEN = math.sqrt(2) - 1
_SYNTAX = "write KEY=LOW..HIGH, KEY=LOW..HIGH:log, KEY=LOW..HIGH:int or KEY=A,B,C"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    log: bool = False
    """Whether the logarithm of the value is searched, as for learning rates."""
    whole: bool = False
    """Whether only whole numbers are taken."""

    @property
    def size(self) -> float:
        """Number of values; infinite unless they are whole numbers."""
        return self._width + 1 if self.whole else math.inf

    @property
    def _width(self) -> float:
        return self.high - self.low

    def value_of(self, setting: Any) -> Value | None:
        """Return a setting of a run as a value of the range; None if it is not in it."""
        if isinstance(setting, bool) or not isinstance(setting, int | float) or not self.low <= setting <= self.high:
            return None
        if not self.whole:
            return float(setting)
        return int(setting) if setting == int(setting) else None

    def setting_of(self, value: Value) -> Any:
        """Return the setting of a run for a value."""
        return int(value) if self.whole else float(value)

    def examples(self) -> list[Value]:
        """Return values that a check tries: both ends, and one between them that is not whole by chance."""
        middle = self.low * (self.high / self.low) ** _BETWEEN if self.log else self.low + _BETWEEN * self._width
        found = (self.low, self.high, round(middle) if self.whole else middle)
        return [int(value) if self.whole else value for value in found]

    def all(self) -> list[Value]:
        """Return all values of a range of whole numbers."""
        return list(range(int(self.low), int(self.high) + 1))

    def __str__(self) -> str:
        low, high = (f"{int(end)}" if self.whole else f"{end:g}" for end in (self.low, self.high))
        return f"{low}..{high}{':int' * self.whole}{':log' * self.log}"


@dataclass(frozen=True, slots=True)
class Choices:
    """Settings that are named one by one, by their text."""

    settings: Mapping[str, Any]

    @property
    def size(self) -> float:
        """Number of choices."""
        return len(self.settings)

    def value_of(self, setting: Any) -> Value | None:
        """Return the text of a setting; None if it is no choice. `uniform` and `{name: uniform}` are the same."""
        plain = _plain(setting)
        return next((text for text, one in self.settings.items() if _plain(one) == plain), None)

    def setting_of(self, value: Value) -> Any:
        """Return the setting of a run for the text of a choice."""
        return self.settings[str(value)]

    def examples(self) -> list[Value]:
        """Return all choices."""
        return list(self.settings)

    def all(self) -> list[Value]:
        """Return all choices."""
        return list(self.settings)

    def __str__(self) -> str:
        """Return the choices as `read_space` reads them: as words if that gives the same settings, else as JSON."""
        words = ",".join(self.settings)
        is_plain = not any(set(text) & set(',[{"') for text in self.settings) and all(
            _plain(_json(text)) == _plain(one) for text, one in self.settings.items()
        )
        return words if is_plain else json.dumps(list(self.settings.values()))


Domain = Range | Choices
Space = Mapping[str, Domain]
"""Domain by searched key."""


def _plain(setting: Any) -> Any:
    """Return a setting for comparison: a scheme without options is its name, and true is not 1."""
    if isinstance(setting, dict):
        plain = cast("dict[str, Any]", setting)
        return _plain(plain["name"]) if plain.keys() == {"name"} else plain
    return (type(setting), setting) if isinstance(setting, bool) else setting


def read_space(searches: Sequence[str], option: str = "--search") -> dict[str, Domain]:
    """Read the domains that `KEY=DOMAIN` describe. Raises UsageError, with one line, for any other text."""
    if not searches:
        raise UsageError(f"give at least one {option}: {_SYNTAX}")
    space: dict[str, Domain] = {}
    for text in searches:
        key, equals, domain = text.partition("=")
        key = key.strip()
        if not equals or not key or not domain.strip():
            raise UsageError(f"{option} {text!r}: {_SYNTAX}")
        if key in space:
            raise UsageError(f"{option} {key}: it is given twice")
        space[key] = _read_domain(domain.strip(), f"{option} {key}")
    return space


def _read_domain(text: str, label: str) -> Domain:
    low, dots, rest = text.partition("..")
    if not dots or text.startswith(("[", "/", ".")):
        return _read_choices(text, label)
    high, *flags = rest.split(":")
    ends = [_number(end, f"{label}={text}") for end in (low, high)]
    if unknown := [flag for flag in flags if flag not in ("log", "int")]:
        raise UsageError(f"{label}={text}: a range ends in :log, :int or neither, not in :{unknown[0]}")
    found = Range(low=ends[0], high=ends[1], log="log" in flags, whole="int" in flags)
    if not found.low < found.high:
        raise UsageError(f"{label}={text}: the low end of a range must be below its high end")
    if found.log and found.low <= 0:
        raise UsageError(f"{label}={text}: a range with :log must begin above 0")
    if found.whole and any(end != int(end) or abs(end) > LARGEST_WHOLE for end in ends):
        raise UsageError(f"{label}={text}: a range with :int must have whole numbers as its ends")
    return found


def _number(text: str, label: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise UsageError(f"{label}: {text!r} is not a finite number; {_SYNTAX}")
    return found


def _read_choices(text: str, label: str) -> Choices:
    listed: Any = _json(text) if text.startswith("[") else None
    if isinstance(listed, list):
        settings = {json.dumps(one) if not isinstance(one, str) else one: one for one in cast("list[Any]", listed)}
        count = len(cast("list[Any]", listed))
    else:
        words = [word.strip() for word in text.split(",")]
        settings, count = {word: _json(word) for word in words}, len(words)
    if "" in settings or len(settings) < count:
        raise UsageError(f"{label}={text}: each choice is given once, and none is empty")
    if count < 2:
        raise UsageError(f"{label}={text}: give at least two choices, or a range; {_SYNTAX}")
    return Choices(settings)


def _json(text: str) -> Any:
    """Return what a text is as JSON, as `--set` reads it; the text itself if it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(found, float) and not math.isfinite(found) else found


def space_size(space: Space) -> float:
    """Return the number of different settings; infinite if a range has any numbers."""
    return math.prod(domain.size for domain in space.values())


def combinations(space: Space) -> Iterator[dict[str, Value]]:
    """Yield every setting of a finite space, in a fixed order."""
    for chosen in itertools.product(*(domain.all() for domain in space.values())):
        yield dict(zip(space, chosen, strict=True))


def example_combinations(space: Space, most: int) -> Iterator[dict[str, Value]]:
    """Yield combinations of the values that a check tries; at most `most`."""
    found = itertools.product(*(domain.examples() for domain in space.values()))
    for chosen in itertools.islice(found, most):
        yield dict(zip(space, chosen, strict=True))


def value_text(value: Value | None) -> str:
    """Return a value for display."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)

"""`Reading`: reads a value into plain data, and records which parts could not be kept whole, and why.

Depth, items, bytes, and the time of the objects' own methods are limited. A reading never raises, except `OverLimits`
where its limits request that.
"""

import json
import math
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import islice
from typing import Any, TypeAlias, cast

import msgspec

from leyden.core.data.encoding.text import REPLACEMENT, is_well_formed
from leyden.core.data.plain.enormous_text import is_enormous
from leyden.core.data.plain.own_methods import (
    METHODS,
    SECONDS,
    MethodHangs,
    MethodRaised,
    OwnMethods,
    TimeBudget,
    short_name,
    type_name,
)

Kind: TypeAlias = Callable[["Reading", Any, str], Any]
"""Reads a value of one kind: `kind(reading, value, path)`."""

MOST_REASONS = 16
"""Largest number of reasons that one reading records; the rest are only counted."""
_PATH_CHARACTERS, _REASON_CHARACTERS = 200, 400
_FLAT = 16
"""In a list of scalars, this many members count as one item, since they take as long to read."""
_MOST_DIGITS = 4300
"""Digits up to which a whole number is written in decimal; Python itself refuses more."""
LEAST_WHOLE, MOST_WHOLE = -(1 << 63), (1 << 64) - 1
"""Whole numbers in this range are kept as numbers."""
ELLIPSIS = "…"
"""Marks the end of a shortened part, and the place of a part that was left out."""


class ReadingLimits(msgspec.Struct, frozen=True):
    """Limits of one reading."""

    depth: int = 100
    """Largest number of nested lists and dicts."""
    items: int = 250_000
    bytes: int = 63 << 20
    seconds: float = SECONDS
    """Total seconds for the objects' own methods; with 0, none is called."""
    raises: bool = False
    """Whether to raise `OverLimits` instead of shortening a part or calling an object's own methods."""


FULL = ReadingLimits()
QUICK = ReadingLimits(items=2_000, bytes=256 << 10, seconds=0.0, raises=True)
"""Limits on an event loop: a few milliseconds at most, and no calls of the objects' own methods."""
WITHOUT_METHODS = ReadingLimits(seconds=0.0)
"""For a caller that cannot wait: objects are kept as the names of their types."""


class OverLimits(Exception):
    """The value exceeds these limits."""


class Reading:
    """Reads values within one set of limits; `kind_of` returns the reader of a class. Not thread-safe."""

    def __init__(
        self,
        kind_of: Callable[[type], Kind],
        limits: ReadingLimits = FULL,
        methods: OwnMethods = METHODS,
        *,
        all_fields: bool,
    ) -> None:
        self.limits = limits
        self.all_fields = all_fields
        """Whether to read fields that a class excludes from its `repr`, such as passwords."""
        self.reasons: list[str] = []
        self.more_reasons = 0
        self._kind_of, self._methods = kind_of, methods
        self._items: int = limits.items
        self._bytes: int = limits.bytes
        self._rest: tuple[int, int] = limits.items, limits.bytes
        """Items and bytes that are reserved for the values after this one."""
        self._time = TimeBudget(limits.seconds)
        self._open_holders: dict[int, object] = {}
        """Lists, dicts and objects that are being read, by their ids."""

    def next_value(self) -> None:
        """Begin to read another value with the same reading.

        It may use as many items and bytes as each value before it. All values together may use twice as many.
        """
        items, size = self._rest[0] + self._items, self._rest[1] + self._bytes
        self._items, self._bytes = max(min(self.limits.items, items), 0), max(min(self.limits.bytes, size), 0)
        self._rest = items - self._items, size - self._bytes

    @contextmanager
    def at_most(self, items: int, size: int) -> Generator[None]:
        """Limit the items and bytes of the part that is read in this context, so that other parts keep their share."""
        items, size = min(self._items, items), min(self._bytes, size)
        other_items, other_bytes = self._items - items, self._bytes - size
        self._items, self._bytes = items, size
        try:
            yield
        finally:
            self._items, self._bytes = self._items + other_items, self._bytes + other_bytes

    # --- Parts that could not be kept

    def reduce(self, path: str, why: str) -> None:
        """Record that the part at `path` is not kept whole. Raises OverLimits where the limits request that."""
        if self.limits.raises:
            raise OverLimits
        if len(self.reasons) < MOST_REASONS:
            path = path if len(path) <= _PATH_CHARACTERS else f"{path[:_PATH_CHARACTERS]}{ELLIPSIS}"
            self.reasons.append(f"{path}: {why[:_REASON_CHARACTERS]}")
        else:
            self.more_reasons += 1

    def all_reasons(self) -> list[str]:
        """Return the reasons; the last entry is the number of reasons that were only counted."""
        more = [f"and {self.more_reasons} more"] if self.more_reasons else []
        return [*self.reasons, *more]

    # --- Values

    def read(self, value: object, path: str) -> Any:
        """Return `value` as None, bool, int, float, str, bytes, an aware datetime, or a list or dict of these."""
        if self._items <= 0 and scalar_size(value) < 0:  # for flat lists, the reader counts the members
            self.reduce(path, f"left out: more than {self.limits.items} items")
            return ELLIPSIS
        self._items -= 1
        try:
            return self._kind_of(type(value))(self, value, path)
        except OverLimits:
            raise
        except Exception as error:  # for example an object that another thread changes meanwhile
            self.reduce(path, f"{type_name(value)} cannot be read: {short_name(error)}")
            return f"<{type_name(value)}>"

    def text(self, text: str, path: str) -> str:
        """Return exact text, well-formed, and shortened where it has too many bytes.

        Shortened text can be read again without another change.
        """
        if not text.isascii():
            text = self._well_formed(text, path)
        if len(text) > self._bytes and text != ELLIPSIS:
            length = len(text)
            text = text[: max(self._bytes - len(ELLIPSIS), 0)]
            self.reduce(path, f"{len(text)} of {length} characters are kept")
            text += ELLIPSIS
        self._bytes -= len(text) if text.isascii() else len(text.encode())
        return text

    def _well_formed(self, text: str, path: str) -> str:
        with suppress(UnicodeEncodeError):
            text.encode()
            return text
        units = text.encode("utf-16-le", "surrogatepass")
        with suppress(UnicodeDecodeError):
            return units.decode("utf-16-le")  # two surrogates that form a pair become one character
        self.reduce(path, f"half of a surrogate pair is not a character; it is replaced by U+FFFD ({REPLACEMENT})")
        return units.decode("utf-16-le", "replace")

    def bytes(self, data: bytes, path: str, length: int | None = None) -> bytes:
        """Return exact bytes, shortened where there are too many; `length` is the original number of bytes."""
        length = len(data) if length is None else length
        data = data[: max(self._bytes, 0)]
        if len(data) < length:
            self.reduce(path, f"{len(data)} of {length} bytes are kept")
        self._bytes -= len(data)
        return data

    @property
    def bytes_left(self) -> int:
        """Number of bytes that may still be kept."""
        return max(self._bytes, 0)

    @property
    def items_left(self) -> int:
        """Number of items that may still be kept."""
        return max(self._items, 0)

    def whole(self, number: int, path: str) -> int | str:
        """Return an exact int; one of more than 64 bits is returned as text."""
        self._bytes -= 9
        if LEAST_WHOLE <= number <= MOST_WHOLE:
            return number
        bits = number.bit_length()
        if bits > 8 * self.bytes_left:
            self.reduce(path, f"a whole number of {bits} bits is left out")
            return f"<int of {bits} bits>"
        self.reduce(path, f"a whole number of {bits} bits is kept as text")
        try:
            digits = str(number) if bits < 3 * _MOST_DIGITS else hex(number)
        except ValueError:  # this interpreter refuses so many digits
            digits = hex(number)
        return self.text(digits, path)

    def first(self, members: Iterable[Any]) -> list[Any]:
        """Return the unread members that may still be kept, as a copy, since another thread may change the original."""
        return list(islice(members, self.items_left))

    def flat(self, members: list[Any]) -> list[Any] | None:
        """Return a copy of an exact list of scalars; None where it holds other values or exceeds the limits."""
        if len(members) > _FLAT * self._items:
            return None
        size = 0
        for member in members:
            more = scalar_size(member)
            size += more
            if more < 0 or size > self._bytes:
                return None
        self._bytes -= size
        self._items -= len(members) // _FLAT
        return members[:]

    def items(self, members: Iterable[Any], count: int, holder: object, path: str) -> list[Any]:
        """Return as many of the `count` members of `holder` as may be kept, each read."""
        if not self._enter(holder, path):
            return [ELLIPSIS]
        kept: list[Any] = []
        try:
            for number, member in enumerate(members):
                if self._is_over(number, count, path):
                    break
                kept.append(self.read(member, f"{path}[{number}]"))
        finally:
            self._leave(holder)
        return kept

    def pairs(self, members: Iterable[tuple[Any, Any]], count: int, holder: object, path: str) -> dict[Any, Any]:
        """Return as many of the `count` pairs of `holder` as may be kept; keys become text or whole numbers."""
        if not self._enter(holder, path):
            return {ELLIPSIS: ELLIPSIS}
        kept: dict[Any, Any] = {}
        try:
            for number, (key, member) in enumerate(members):
                if self._is_over(number, count, path):
                    break
                name = self.unused_key(kept, self.key(key, path), path)
                kept[name] = self.read(member, f"{path}.{name}" if path else str(name))
        finally:
            self._leave(holder)
        return kept

    def key(self, key: object, path: str) -> str | int:
        """Return the key of a dict as text or a whole number."""
        if type(key) is str:
            return self.text(key, path)
        if type(key) is int and LEAST_WHOLE <= key <= MOST_WHOLE:
            return key
        plain = self.read(key, path)
        if type(plain) is str:
            if not issubclass(type(key), str):
                self.reduce(path, f"a key of type {type_name(key)} is kept as text")
            return plain
        if type(plain) is int:
            return plain
        self.reduce(path, f"a key of type {type_name(key)} is kept as text")
        return self.json(plain, path)

    def unused_key(self, kept: dict[Any, Any], name: str | int, path: str) -> str | int:
        """Return an unused key: `name`, or `name` with a number after it."""
        if not _is_taken(kept, name):
            return name
        number = 2
        while _is_taken(kept, f"{name} ({number})"):
            number += 1
        self.reduce(path, f"two keys are {str(name)[:80]!r} as text; a number is appended to the second")
        return f"{name} ({number})"

    def _is_over(self, number: int, count: int, path: str) -> bool:
        if self._items > 0 and self._bytes > 0:
            return False
        self.reduce(path, f"{number} of {count} items are kept")
        return True

    def _enter(self, holder: object, path: str) -> bool:
        if id(holder) in self._open_holders:
            self.reduce(path, "it contains itself")
            return False
        if len(self._open_holders) >= self.limits.depth:
            self.reduce(path, f"left out: nested deeper than {self.limits.depth}")
            return False
        self._open_holders[id(holder)] = holder
        return True

    def _leave(self, holder: object) -> None:
        del self._open_holders[id(holder)]

    # --- Objects with their own text

    def call_methods(self, value: object, method: Callable[[], Any]) -> Any:
        """Return the result of `method`, which calls methods of `value`; raises MethodHangs or MethodRaised."""
        if self.limits.raises:
            raise OverLimits
        return self._methods.call(type(value), method, self._time)

    def own_text(self, value: object, method: Callable[[], Any], path: str) -> str:
        """Return the text that `method`, which calls methods of `value`, makes; the type's name where that fails."""
        kind = type_name(value)
        why = f"an object of type {kind} is kept as its own text"
        text: Any = None
        try:
            if not self.limits.raises and is_enormous(value):
                why = f"an object of type {kind}, which is too large to be kept as its own text"
            else:
                text = self.call_methods(value, method)
        except MethodHangs:
            why = f"an object of type {kind}, whose own methods are not called or do not return"
        except MethodRaised as error:
            why = f"an object of type {kind}, whose own text raised {error}"
        self.reduce(path, why)
        if not issubclass(type(text), str):
            return f"<{kind}>"
        return self.text(str.__str__(text), path)

    # --- Output forms

    def json(self, plain: Any, path: str) -> str:
        """Return plain data as JSON: bytes in base64, times as text."""
        try:
            text = json.dumps(plain, allow_nan=False)
        except (TypeError, ValueError):
            text = json.dumps(self._for_json(plain, path), allow_nan=False)
        return self._cut(text, path)

    def _cut(self, text: str, path: str) -> str:
        """Shorten JSON, which may have several times as many bytes as its values."""
        most = self.limits.bytes
        if len(text) <= most:
            return text
        self.reduce(path, f"{most} of {len(text)} characters are kept")
        return f"{text[:most]}{ELLIPSIS}"

    def _for_json(self, plain: Any, path: str) -> Any:
        if type(plain) is dict:
            pairs = cast("dict[Any, Any]", plain).items()
            return {key: self._for_json(item, f"{path}.{key}") for key, item in pairs}
        if type(plain) is list:
            return [self._for_json(item, path) for item in cast("list[Any]", plain)]
        if type(plain) is bytes:
            return b64encode(plain).decode()
        if type(plain) is datetime:
            return plain.isoformat()
        if type(plain) is float and not math.isfinite(plain):
            self.reduce(path, f"{plain} is kept as text: JSON has no such number")
            return str(plain)
        return plain

    def attribute(self, plain: Any, path: str) -> Any:
        """Return plain data as an attribute of a span: text, bytes, a number, or a list of text and numbers.

        A dict becomes JSON, and so does a list or dict within a list. None means that there is no value, and is left
        out of a list.
        """
        if type(plain) is list:
            members = cast("list[Any]", plain)
            kept = [self._scalar(item, path) for item in members if item is not None]
            if len(kept) < len(members):
                self.reduce(path, f"{len(members) - len(kept)} of {len(members)} items are None and left out")
            return kept
        return plain if type(plain) is bytes else self._scalar(plain, path)

    def _scalar(self, plain: Any, path: str) -> Any:
        if type(plain) is dict or type(plain) is list:
            return self.json(plain, path)
        if type(plain) is bytes:
            return b64encode(plain).decode()
        return plain.isoformat() if type(plain) is datetime else plain


def _is_taken(kept: dict[Any, Any], name: str | int) -> bool:
    """Whether the key, or another key that is equal to it in JSON, is already used."""
    if isinstance(name, int):
        return name in kept or str(name) in kept
    return name in kept or (len(name) < _MOST_DIGITS and name.lstrip("-").isdecimal() and int(name) in kept)


def scalar_size(value: object) -> int:
    """Return the approximate bytes of a plain scalar; below 0 for any other value."""
    kind = type(value)
    # Compared one by one: a set would hash the class, whose metaclass may define its own `__hash__`.
    if kind is str:
        text = cast("str", value)
        return len(text) if is_well_formed(text) else -1
    if kind is int:
        return 9 if LEAST_WHOLE <= cast("int", value) <= MOST_WHOLE else -1
    if kind is float or kind is bool or value is None:
        return 9
    return len(cast("bytes", value)) if kind is bytes else -1

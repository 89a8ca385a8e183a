"""Plain data: converts any value of an agent into data that a span, result, task or note may hold.

Plain data is None, bool, whole numbers of 64 bits, floats, text, bytes, times with a zone, and lists and dicts of
these.
No function here raises, except `OverLimits` where the given limits request it. Each function has a limit of time and
bytes. Values that cannot be kept whole are shortened. The reasons name the shortened parts; callers store them as
`semconv.REDUCED`.
"""

import math
import traceback
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any, NamedTuple, cast

from leyden.core.data.encoding.text import is_well_formed
from leyden.core.data.plain.class_members import class_of, lineage_of
from leyden.core.data.plain.enormous_text import is_enormous
from leyden.core.data.plain.own_methods import METHODS, MethodHangs, MethodRaised, OwnMethods, TimeBudget, short_name
from leyden.core.data.plain.reading import FULL, OverLimits, Reading, ReadingLimits, scalar_size
from leyden.core.data.plain.value_kinds import kind_of, message
from leyden.core.masking import mask_text

MOST_CONTAINERS = 100_000
"""Largest number of lists and dicts in a value that `is_plain` accepts; values with more are read."""
MOST_PLAIN_BYTES = 48 << 20
MOST_MEMBERS = 10_000_000
MOST_LISTED = 1_000_000
"""Largest number of members taken from an iterable that is no list, since it may have no end."""
FEW_MEMBERS = 20_000
"""Largest number of members of a value that may be checked on an event loop."""
MOST_DEPTH = FULL.depth
_SHOWN = ReadingLimits(depth=4, items=100, bytes=1000, seconds=0.0)


class PlainResult(NamedTuple):
    """Result of reading a value: the plain value, and the reasons for incomplete parts."""

    value: Any
    reasons: list[str]
    """Why the value is incomplete; empty where it is whole."""


def reading(limits: ReadingLimits = FULL, methods: OwnMethods = METHODS, *, all_fields: bool = False) -> Reading:
    """Return a new `Reading`; `all_fields` includes fields that a class excludes from its `repr`."""
    return Reading(kind_of, limits, methods, all_fields=all_fields)


def plain(value: object, what: str = "", limits: ReadingLimits = FULL, *, all_fields: bool = False) -> PlainResult:
    """Return `value` as plain data; `what` is its name in the reasons."""
    read = reading(limits, all_fields=all_fields)
    return PlainResult(read.read(value, what), read.all_reasons())


def is_plain(value: object, most: int = MOST_MEMBERS) -> bool:
    """Whether `value` is plain already, as nearly all values are; False for more than `most` members in all.

    Checks classes only, and calls no methods of the values.
    """
    size = scalar_size(value)
    if size >= 0:
        return size <= MOST_PLAIN_BYTES
    left, levels, containers, size = cast("list[Any]", [value]), 0, 0, 0
    try:
        while left:
            levels, containers = levels + 1, containers + len(left)
            if levels > MOST_DEPTH or containers > MOST_CONTAINERS or size > MOST_PLAIN_BYTES:
                return False
            below: list[Any] = []
            for holder in left:
                if type(holder) is dict or type(holder) is list:
                    most -= len(cast("list[Any]", holder))
                if most < 0:
                    return False
                more = _size_of_members(holder, below)
                if more < 0:
                    return False
                size += more
            left = below
    except RuntimeError:  # another thread changes it
        return False
    return True


def _size_of_members(holder: Any, below: list[Any]) -> int:
    """Return the bytes of a list's or dict's scalar members, or -1 where it is not plain.

    Members that are no scalars are appended to `below`.
    """
    size = 0
    members: Any = holder
    if type(holder) is dict:
        for key in cast("dict[Any, Any]", holder):
            if type(key) is not str or not is_well_formed(key):
                return -1
            size += len(key)
        members = cast("dict[Any, Any]", holder).values()
    elif type(holder) is not list:
        return -1
    for member in cast("list[Any]", members):
        more = scalar_size(member)
        if more >= 0:
            size += more
        elif len(below) < MOST_CONTAINERS:
            below.append(member)
        else:
            return -1
    return size


def as_text(value: object, most: int, limits: ReadingLimits = FULL) -> PlainResult:
    """Return `value` as at most `most` characters: text unchanged, an object as its own text, other values as JSON."""
    read = reading(limits)
    found = read.read(value, "")
    text: str = found if type(found) is str else read.json(found, "")
    if len(text) > most:
        read.reduce("", f"{most} of {len(text)} characters are kept")
        text = f"{text[:most]}…"
    return PlainResult(text, read.all_reasons())


def as_json(value: object, what: str = "", limits: ReadingLimits = FULL) -> PlainResult:
    """Return `value` as JSON."""
    read = reading(limits)
    return PlainResult(read.json(read.read(value, what), what), read.all_reasons())


def number(value: object) -> float | None:
    """Return a number of any kind, or a zero-dimensional array, as a float; None for any other value.

    A number that is too large for a float becomes infinity.
    """
    try:
        if is_a(value, int):
            return float(cast("Any", int).__int__(value))
        if is_a(value, Decimal):
            return cast("Any", Decimal).__float__(value)
        if is_a(value, Fraction):
            return METHODS.call(class_of(value), lambda: float(cast("Fraction", value)), TimeBudget())
        found = reading(_SHOWN).read(value, "")
    except OverflowError:
        return math.inf
    except (MethodHangs, MethodRaised, ValueError):  # ValueError: a signaling NaN
        return None
    return float(found) if type(found) is float or type(found) is int or type(found) is bool else None


def pairs_of(value: object) -> list[tuple[Any, Any]] | None:
    """Return the unread pairs of a dict or other mapping; None for any other value, or where reading fails."""
    if is_a(value, dict):
        return list(cast("Any", dict).items(value))
    if not is_a(value, Mapping):
        return None
    try:
        return _unless_too_many(
            METHODS.call(class_of(value), lambda: _first(cast("Mapping[Any, Any]", value).items()), TimeBudget())
        )
    except (MethodHangs, MethodRaised):
        return None


def listed(value: object, limits: ReadingLimits = FULL) -> list[Any] | None:
    """Return the members of a list or any other iterable that is no text; None for any other value.

    Also returns None for an iterable of more than `MOST_LISTED` members. Raises OverLimits where `limits` forbid
    calling the iterable's own methods.
    """
    for base in (list, tuple, set, frozenset):
        if is_a(value, base):
            return list(cast("Any", base).__iter__(value))
    if is_a(value, str) or is_a(value, bytes) or is_a(value, bytearray):
        return None
    if limits.raises:
        raise OverLimits
    try:
        return _unless_too_many(METHODS.call(class_of(value), lambda: _first(cast("Any", value)), TimeBudget()))
    except (MethodHangs, MethodRaised):  # it is not iterable, or iterating fails
        return None


def _first(members: Iterable[Any]) -> list[Any]:
    return list(islice(members, MOST_LISTED + 1))


def _unless_too_many(members: list[Any]) -> list[Any] | None:
    return members if len(members) <= MOST_LISTED else None


def message_of(error: BaseException, most: int | None = None, methods: OwnMethods = METHODS) -> str:
    """Return the message of an exception, masked, with at most `most` characters; a group includes its errors."""
    text = mask_text(message(reading(methods=methods), error, ""))
    if is_a(error, BaseExceptionGroup):
        text = f"{text[:_GROUP_CHARACTERS]}: {_member_messages(error, methods)}"
    return text if most is None or len(text) <= most else text[:most]


_GROUP_ERRORS = 3
"""Largest number of errors of a group that are named; the others are counted."""
_GROUP_CHARACTERS = 500
"""Largest number of characters of a group's message, and of each error inside it."""
_errors_of: Callable[[BaseException], tuple[BaseException, ...]] = BaseExceptionGroup.__dict__["exceptions"].__get__


def _member_messages(group: BaseException, methods: OwnMethods) -> str:
    """Return the types and messages of the first errors inside a group, at any depth of nested groups."""
    left, seen, found = [group], set[int](), list[BaseException]()
    while left:
        error = left.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        if is_a(error, BaseExceptionGroup):
            left.extend(reversed(_errors_of(error)))
        else:
            found.append(error)
    named: list[str] = []
    for error in found[:_GROUP_ERRORS]:
        text = message_of(error, _GROUP_CHARACTERS, methods)
        named.append(f"{short_name(error)}: {text}" if text else short_name(error))
    others = len(found) - len(named)
    return "; ".join(named) + (f"; and {others} more" if others else "")


def stack_of(error: BaseException, methods: OwnMethods = METHODS) -> str:
    """Return an exception's traceback as Python prints it, with secrets masked.

    Where the text cannot be made or would be enormous, the traceback has the stack, the type and the message only.
    """
    try:
        if _has_enormous_text(error):
            raise MethodHangs
        text: Any = methods.call(class_of(error), lambda: "".join(traceback.format_exception(error)), TimeBudget())
    except (MethodHangs, MethodRaised):
        text = "".join([*traceback.format_tb(error.__traceback__), f"{short_name(error)}: {message_of(error)}\n"])
    return mask_text(reading(methods=methods).text(text, ""))


def _has_enormous_text(error: BaseException) -> bool:
    """Whether the text of an exception, or of its causes, contexts or members, would be enormous."""
    left, seen = [error], set[int]()
    while left:
        current = left.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if is_enormous(current):
            return True
        left += [each for each in (current.__cause__, current.__context__) if each is not None]
        if is_a(current, BaseExceptionGroup):
            left += cast("Any", BaseExceptionGroup).exceptions.__get__(current)
    return False


def shown(value: object, most: int = 120) -> str:
    """Return one line that shows a value in a message, without calling its own methods."""
    text = repr(reading(_SHOWN).read(value, ""))
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]}…"


def is_a(value: object, kind: type) -> bool:
    """Whether `value` is an instance of `kind` by its actual class; a claimed `__class__` is ignored."""
    return any(base is kind for base in lineage_of(value))

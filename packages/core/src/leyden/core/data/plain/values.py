"""Any value as plain data: what a span, a result, a task or a note may hold, whatever an agent put there.

Plain data is None, bool, whole numbers of 64 bits, floats, text, bytes, times with a zone, and lists and dicts of
these.
No function here raises, and each is bounded in time and bytes. What cannot be kept whole is kept shortened, and the
reasons say which part and why: `semconv.REDUCED` is where they are noted.
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
from leyden.core.data.plain.own_methods import METHODS, NoAnswer, OwnMethods, Raised, Time, short_name
from leyden.core.data.plain.reading import FULL, Limits, OverLimits, Reading, scalar_size
from leyden.core.data.plain.value_kinds import kind_of, message
from leyden.core.masking import mask_text

MOST_CONTAINERS = 100_000
"""Lists and dicts of a value that is taken as it is; one with more is read, and so is one of more bytes, or deeper."""
MOST_PLAIN_BYTES = 48 << 20
MOST_MEMBERS = 10_000_000
MOST_LISTED = 1_000_000
"""Members of what is no list and is taken as one: it may have no end."""
FEW_MEMBERS = 20_000
"""Of a value that an event loop may look at."""
MOST_DEPTH = FULL.depth
_SHOWN = Limits(depth=4, items=100, bytes=1000, seconds=0.0)


class Kept(NamedTuple):
    """What was kept of a value."""

    value: Any
    reasons: list[str]
    """Why it is not whole; empty where it is."""


def reading(limits: Limits = FULL, methods: OwnMethods = METHODS, *, all_fields: bool = False) -> Reading:
    """Begin to read values; `all_fields` includes those that a class keeps out of its `repr`."""
    return Reading(kind_of, limits, methods, all_fields=all_fields)


def plain(value: object, what: str = "", limits: Limits = FULL, *, all_fields: bool = False) -> Kept:
    """Return `value` as plain data; `what` it is called in the reasons."""
    read = reading(limits, all_fields=all_fields)
    return Kept(read.read(value, what), read.all_reasons())


def is_plain(value: object, most: int = MOST_MEMBERS) -> bool:
    """Whether `value` is plain already, as nearly all are; False, too, for one of more than `most` members in all.

    It looks at classes alone, and calls nothing.
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
    """Bytes of the members of a list or dict, of which those that hold others are added to `below`."""
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


def as_text(value: object, most: int, limits: Limits = FULL) -> Kept:
    """Return `value` as text of at most `most` characters: text itself, anything else as Python or JSON writes it."""
    read = reading(limits)
    found = read.read(value, "")
    text: str = found if type(found) is str else read.json(found, "")
    if len(text) > most:
        read.reduce("", f"{most} of {len(text)} characters are kept")
        text = f"{text[:most]}…"
    return Kept(text, read.all_reasons())


def as_json(value: object, what: str = "", limits: Limits = FULL) -> Kept:
    """Return `value` as JSON."""
    read = reading(limits)
    return Kept(read.json(read.read(value, what), what), read.all_reasons())


def number(value: object) -> float | None:
    """Return a number of any kind, one in an array of its own included, as a float; None where it is none.

    What is too large for a float is infinite.
    """
    try:
        if is_a(value, int):
            return float(cast("Any", int).__int__(value))
        if is_a(value, Decimal):
            return cast("Any", Decimal).__float__(value)
        if is_a(value, Fraction):
            return METHODS.call(class_of(value), lambda: float(cast("Fraction", value)), Time())
        found = reading(_SHOWN).read(value, "")
    except OverflowError:
        return math.inf
    except (NoAnswer, Raised, ValueError):  # the last for a signaling NaN
        return None
    return float(found) if type(found) is float or type(found) is int or type(found) is bool else None


def pairs_of(value: object) -> list[tuple[Any, Any]] | None:
    """Return the pairs of a dict, or of another mapping, as they are; None where it is none, or cannot be read."""
    if is_a(value, dict):
        return list(cast("Any", dict).items(value))
    if not is_a(value, Mapping):
        return None
    try:
        return _few(METHODS.call(class_of(value), lambda: _first(cast("Mapping[Any, Any]", value).items()), Time()))
    except (NoAnswer, Raised):
        return None


def listed(value: object, limits: Limits = FULL) -> list[Any] | None:
    """Return the members of a list, or of anything else that has members and is no text; None where it has none.

    Of what has no end it returns None, too.
    """
    for base in (list, tuple, set, frozenset):
        if is_a(value, base):
            return list(cast("Any", base).__iter__(value))
    if is_a(value, str) or is_a(value, bytes) or is_a(value, bytearray):
        return None
    if limits.raises:
        raise OverLimits
    try:
        return _few(METHODS.call(class_of(value), lambda: _first(cast("Any", value)), Time()))
    except (NoAnswer, Raised):  # it has no members, or does not give them
        return None


def _first(members: Iterable[Any]) -> list[Any]:
    return list(islice(members, MOST_LISTED + 1))


def _few(members: list[Any]) -> list[Any] | None:
    return members if len(members) <= MOST_LISTED else None


def message_of(error: BaseException, most: int | None = None, methods: OwnMethods = METHODS) -> str:
    """Return what an exception says, masked, of at most `most` characters; of a group, the errors inside it too."""
    text = mask_text(message(reading(methods=methods), error, ""))
    if is_a(error, BaseExceptionGroup):
        text = f"{text[:_GROUP_CHARACTERS]}: {_inside(error, methods)}"
    return text if most is None or len(text) <= most else text[:most]


_GROUP_ERRORS = 3
"""Errors of a group that are named; the others are counted."""
_GROUP_CHARACTERS = 500
"""Of the message of a group, and of each error inside it."""
_errors_of: Callable[[BaseException], tuple[BaseException, ...]] = BaseExceptionGroup.__dict__["exceptions"].__get__


def _inside(group: BaseException, methods: OwnMethods) -> str:
    """The types and messages of the first errors inside a group, however deep the groups in it go."""
    left, seen, found = [group], set[int](), list[BaseException]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if is_a(one, BaseExceptionGroup):
            left.extend(reversed(_errors_of(one)))
        else:
            found.append(one)
    named: list[str] = []
    for one in found[:_GROUP_ERRORS]:
        text = message_of(one, _GROUP_CHARACTERS, methods)
        named.append(f"{short_name(one)}: {text}" if text else short_name(one))
    others = len(found) - len(named)
    return "; ".join(named) + (f"; and {others} more" if others else "")


def stack_of(error: BaseException, methods: OwnMethods = METHODS) -> str:
    """Return an exception's traceback as Python prints it, secrets masked; without messages that cannot be read."""
    try:
        if _says_too_much(error):
            raise NoAnswer
        text: Any = methods.call(class_of(error), lambda: "".join(traceback.format_exception(error)), Time())
    except (NoAnswer, Raised):
        text = "".join([*traceback.format_tb(error.__traceback__), f"{short_name(error)}: {message_of(error)}\n"])
    return mask_text(reading(methods=methods).text(text, ""))


def _says_too_much(error: BaseException) -> bool:
    """Whether the text of an exception, or of one that it comes from or holds, would be enormous."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if is_enormous(one):
            return True
        left += [each for each in (one.__cause__, one.__context__) if each is not None]
        if is_a(one, BaseExceptionGroup):
            left += cast("Any", BaseExceptionGroup).exceptions.__get__(one)
    return False


def shown(value: object, most: int = 120) -> str:
    """Return one line that shows a value in a message, without calling its own methods."""
    text = repr(reading(_SHOWN).read(value, ""))
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]}…"


def is_a(value: object, kind: type) -> bool:
    """Whether `value` is of a class, by the class that it has and never by the `__class__` that it claims."""
    return any(base is kind for base in lineage_of(value))

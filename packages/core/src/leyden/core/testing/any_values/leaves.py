"""Leaf values by name: values that hold no others, each created anew on request."""

import datetime
import decimal
import fractions
import itertools
import pathlib
import uuid
import zoneinfo
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

from leyden.core.testing.any_values import hostile, records

Makers: TypeAlias = Mapping[str, Callable[[], Any]]


class _OddZone(datetime.tzinfo):
    """A time zone whose offset raises."""

    def utcoffset(self, moment: datetime.datetime | None) -> datetime.timedelta:
        raise hostile.Broken("utcoffset")


def _cycle() -> Any:
    held: list[Any] = [1]
    held.append(held)
    return held


def _ring() -> Any:
    inner: dict[Any, Any] = {}
    inner["outer"] = {"inner": inner, 1: "number", None: "none"}
    return inner


def _deep() -> Any:
    held: Any = "core"
    for _ in range(3000):
        held = [held]
    return held


def _deep_dicts() -> Any:
    held: Any = "core"
    for _ in range(500):
        held = {"in": held}
    return held


def _shared() -> Any:
    """Return billions of items made of a few shared lists."""
    held: Any = "lol"
    for _ in range(30):
        held = [held, held]
    return held


_of = hostile.SPOILED
_PLAIN: Makers = {
    "half of a surrogate pair": lambda: "a\ud800b",
    "both halves of a pair": lambda: "\ud83d" + "\ude00",
    "NUL": lambda: "a\0b",
    "2 KB of text": lambda: "é" * 1000,
    "2 MB of text": lambda: "x" * 2_000_000,
    "2^63": lambda: 1 << 63,
    "2^64": lambda: 1 << 64,
    "-2^63-1": lambda: -(1 << 63) - 1,
    "400 digits": lambda: 10**400,
    "a million digits": lambda: 1 << 3_400_000,
    "complex": lambda: 1j,
    "naive time": lambda: datetime.datetime(2024, 1, 2, 3, 4, 5),
    "aware time": lambda: datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
    "time of a zone": lambda: datetime.datetime(2024, 7, 2, tzinfo=zoneinfo.ZoneInfo("UTC")),
    "time of an odd zone": lambda: datetime.datetime(2024, 1, 2, tzinfo=_OddZone()),
    "last time": lambda: datetime.datetime.max.replace(tzinfo=datetime.UTC),
    "date": lambda: datetime.date.min,
    "time of day": lambda: datetime.time(1, 2),
    "span of time": lambda: datetime.timedelta.max,
    "Decimal": lambda: decimal.Decimal("1.50"),
    "Decimal sNaN": lambda: decimal.Decimal("sNaN"),
    "Decimal 1E+9999": lambda: decimal.Decimal("1E+9999"),
    "Fraction": lambda: fractions.Fraction(1, 3),
    "UUID": lambda: uuid.UUID(int=7),
    "path": lambda: pathlib.PurePosixPath("/a/b"),
    "range": lambda: range(10**12),
    "slice": lambda: slice(1, [2]),
    "Ellipsis": lambda: ...,
    "builtin function": lambda: len,
    "function": lambda: _cycle,
    "module": lambda: datetime,
    "class": lambda: type,
    "memoryview": lambda: memoryview(b"abc"),
    "bytearray": lambda: bytearray(b"\xff\x00"),
    "iterator without an end": itertools.count,
    "generator": lambda: (n for n in range(3)),
    "object": object,
    **{f"member {index}": lambda index=index: records.MEMBERS[index] for index in range(len(records.MEMBERS))},
    "holds itself": _cycle,
    "dicts that hold each other": _ring,
    "3,000 lists in one another": _deep,
    "500 dicts in one another": _deep_dicts,
    "2^30 items": _shared,
    "spoiled str": lambda: _of[str]("text"),
    "spoiled int": lambda: _of[int](7),
    "spoiled float": lambda: _of[float](0.5),
    "spoiled bytes": lambda: _of[bytes](b"\xff"),
    "spoiled bytearray": lambda: _of[bytearray](b"ab"),
    "spoiled list": lambda: _of[list]([1, "a"]),
    "spoiled tuple": lambda: _of[tuple]((1, 2)),
    "spoiled dict": lambda: _of[dict](a=1),
    "spoiled set": lambda: _of[set]([1]),
    "spoiled frozenset": lambda: _of[frozenset]([1]),
    **{kind.__name__: kind for kind in hostile.QUICK if kind is not hostile.OfHostileClass},
    "OfHostileClass": hostile.OfHostileClass,
}
_BLOCKING: Makers = {kind.__name__: kind for kind in hostile.BLOCKING}
_NUMPY: Mapping[str, Callable[[Any], Any]] = {
    "float64": lambda numpy: numpy.float64(0.5),
    "float32 NaN": lambda numpy: numpy.float32("nan"),
    "int8": lambda numpy: numpy.int8(-3),
    "uint64": lambda numpy: numpy.uint64(1 << 63),
    "bool_": lambda numpy: numpy.bool_(True),
    "str_": lambda numpy: numpy.str_("text"),
    "bytes_": lambda numpy: numpy.bytes_(b"x"),
    "datetime64": lambda numpy: numpy.datetime64("2024-01-02"),
    "longdouble": lambda numpy: numpy.longdouble(1.5),
    "array": lambda numpy: numpy.arange(6).reshape(2, 3),
    "empty array": lambda numpy: numpy.zeros(0),
    "array of no dimension": lambda numpy: numpy.array(3.5),
    "array of text": lambda numpy: numpy.array(["a", "b"]),
    "array of records": lambda numpy: numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "array of times": lambda numpy: numpy.array(["NaT"], dtype="M8[s]"),
    "2 million numbers": lambda numpy: numpy.zeros((2000, 1000)),
}


HEAVY = frozenset(
    {
        *("2 MB of text", "a million digits", "3,000 lists in one another", "500 dicts in one another", "2^30 items"),
        *("numpy 2 million numbers", "ReprIsEnormous", "ItemsNeverEnd", "ReprNeverEnds", "ReprBlocks", "ErrorBlocks"),
    }
)
"""Names of values that take long to create or to read."""


@cache
def leaves(*, blocking: bool) -> Makers:
    """Return a function that creates each value, by name; `blocking` includes those that wait for `hostile.RELEASE`."""
    found: dict[str, Callable[[], Any]] = {**_PLAIN, **(_BLOCKING if blocking else {})}
    if find_spec("numpy") is not None:
        numpy = import_module("numpy")
        found |= {f"numpy {name}": lambda make=make: make(numpy) for name, make in _NUMPY.items()}
    return found

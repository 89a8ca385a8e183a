"""Kinds of scalars that a recorded form keeps exactly, besides those of JSON: how each is written and restored."""

import base64
import datetime
import decimal
import fractions
import pathlib
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leyden.core.data.plain.class_members import lineage


@dataclass(frozen=True, slots=True)
class ExactKind:
    """A class whose objects a recorded form keeps; objects of its subclasses are no objects of this kind."""

    kind: type[Any]
    write: Callable[[Any], Any]
    """Returns what is recorded, text or a list; None for an object that cannot be kept."""
    restore: Callable[[Any], Any]
    """Returns the object. May raise LookupError, TypeError, ValueError or ArithmeticError for a forged record."""


def _zoned(value: Any) -> str | None:
    """Return a time as text; None if its zone is more than a difference from UTC."""
    return value.isoformat() if value.tzinfo is None or type(value.tzinfo) is datetime.timezone else None


def _bytes_text(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


_ALL: tuple[ExactKind, ...] = (
    ExactKind(bytes, _bytes_text, base64.b64decode),
    ExactKind(bytearray, _bytes_text, lambda text: bytearray(base64.b64decode(text))),
    ExactKind(complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    ExactKind(decimal.Decimal, str, decimal.Decimal),
    ExactKind(fractions.Fraction, str, fractions.Fraction),
    ExactKind(uuid.UUID, str, uuid.UUID),
    ExactKind(datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    ExactKind(datetime.datetime, _zoned, datetime.datetime.fromisoformat),
    ExactKind(datetime.time, _zoned, datetime.time.fromisoformat),
    ExactKind(
        datetime.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
    ExactKind(range, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    ExactKind(pathlib.PurePosixPath, str, pathlib.PurePosixPath),
    ExactKind(pathlib.PureWindowsPath, str, pathlib.PureWindowsPath),
)
EXACT_KINDS = {exact.kind.__name__: exact for exact in _ALL}
"""By name."""

_NUMPY_SCALARS = frozenset(
    {"bool", "str", "bytes", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


def numpy_scalar(kind: type[Any]) -> str | None:
    """Return the name of a class of numpy's scalars; None for any other class."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not any(base is numpy.generic for base in lineage(kind)):
        return None
    dtype = numpy.dtype(kind)
    return dtype.name if dtype.name in _NUMPY_SCALARS and numpy.dtype(dtype.name).type is kind else None


def as_numpy(name: str, value: Any) -> Any:
    """Return a value as a scalar of numpy if numpy is loaded in this process, else the value itself."""
    if name not in _NUMPY_SCALARS:
        raise LookupError(name)
    numpy: Any = sys.modules.get("numpy")
    return value if numpy is None else numpy.dtype(name).type(value)

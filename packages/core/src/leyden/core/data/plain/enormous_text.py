"""`is_enormous`: estimates, before a call of `repr`, whether an object's text would be enormous.

`repr` of a list runs in C code, holds the interpreter's lock, and cannot be interrupted.
"""

import collections
import sys
from collections.abc import Iterator
from types import FunctionType, MappingProxyType, SimpleNamespace
from typing import Any, cast

import msgspec

from leyden.core.data.plain.class_members import class_of, fields_of, lineage, members_of

MOST = 100_000
"""Largest number of nested members of an object whose `repr` is called."""
_HOLDERS: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)
_Dict: Any = dict
_EMPTY: dict[str, str] = {}
_VIEWS = frozenset(map(id, map(class_of, (_EMPTY.keys(), _EMPTY.values(), _EMPTY.items()))))
_SHOW_ALL = frozenset(map(id, (SimpleNamespace, msgspec.Struct)))
"""Classes written in C whose `repr` shows all members."""
_args: Any = BaseException.__dict__["args"].__get__


def is_enormous(value: object, most: int = MOST) -> bool:
    """Whether an object or exception holds more than `most` nested members, with shared ones counted again.

    Looks into lists, dicts and the like, and into objects with a `__repr__` written in Python. Calls none of their
    methods. Returns True where another thread changes the object meanwhile.
    """
    open_ones, within = [_held(value)], [id(value)]
    try:
        while open_ones:
            for member in open_ones[-1]:
                most -= 1
                if most < 0:
                    return True
                inner = _members(member)
                if inner is not None and id(member) not in within:
                    open_ones.append(inner)
                    within.append(id(member))
                    break
            else:
                open_ones.pop()
                within.pop()
    except RuntimeError:  # another thread changes it
        return True
    return False


def _held(value: Any) -> Iterator[Any]:
    return _members(value) or iter(list(fields_of(value).values()))


def _of_error(error: Any) -> Iterator[Any]:
    return iter([*_args(error), *fields_of(error).values()])


def _members(value: Any) -> Iterator[Any] | None:
    kind = class_of(value)
    if kind is str or kind is int or kind is float:
        return None
    if issubclass(kind, dict):
        return iter([part for pair in _Dict.items(value) for part in pair]) if _Dict.__len__(value) <= MOST else _many()
    for base in _HOLDERS:
        if issubclass(kind, base):
            return base.__iter__(value)
    if id(kind) in _VIEWS:
        return iter(list(value) if len(value) <= MOST else [None] * (MOST + 1))
    if kind is MappingProxyType or _is_table(value):  # their members cannot be counted without calling their methods
        return _many()
    if issubclass(kind, BaseException):
        return _of_error(value)
    return iter(list(fields_of(value).values())) if _shows_itself(kind) else None


def _is_table(value: object) -> bool:
    """Whether it is an array or table that may hold arbitrary objects, whose own `repr` would be called."""
    numpy: Any = sys.modules.get("numpy")
    kind = class_of(value)
    if numpy is not None and any(base is numpy.ndarray for base in lineage(kind)):
        dtype: Any = numpy.ndarray.dtype.__get__(value)
        return bool(dtype.hasobject)
    tables = _tables()
    return any(id(base) in tables for base in lineage(kind))


def _tables() -> set[int]:
    pandas: Any = sys.modules.get("pandas")
    names = ("DataFrame", "Series", "Index")
    held = {} if pandas is None else cast("dict[str, Any]", vars(pandas))
    return {id(held[name]) for name in names if name in held}


def _shows_itself(kind: type[Any]) -> bool:
    found = next((members_of(base)["__repr__"] for base in lineage(kind) if "__repr__" in members_of(base)), None)
    return type(found) is FunctionType or any(id(base) in _SHOW_ALL for base in lineage(kind))


def _many() -> Iterator[None]:
    return iter([None] * (MOST + 1))

"""Whether a text that an object makes of itself would be enormous: what it holds is counted before it is asked.

`repr` of a list runs outside of Python's own code, holds the interpreter's lock, and cannot be given up.
"""

import collections
import sys
from collections.abc import Iterator
from types import FunctionType, MappingProxyType, SimpleNamespace
from typing import Any, cast

import msgspec

from leyden.core.data.plain.class_members import class_of, fields_of, lineage, members_of

MOST = 100_000
"""Members of lists, dicts and the like, within one another, of an object that is asked for its text."""
_HOLDERS: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)
_Dict: Any = dict
_EMPTY: dict[str, str] = {}
_VIEWS = frozenset(map(id, map(class_of, (_EMPTY.keys(), _EMPTY.values(), _EMPTY.items()))))
_SHOW_ALL = frozenset(map(id, (SimpleNamespace, msgspec.Struct)))
"""Classes not written in Python whose text is that of all they hold."""
_args: Any = BaseException.__dict__["args"].__get__


def is_enormous(value: object, most: int = MOST) -> bool:
    """Whether what an object, or an exception, holds has more than `most` members, shared ones counted again.

    It looks into lists, dicts and the like, and into objects with a `__repr__` in Python. It calls nothing of them.
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
    if kind is MappingProxyType or _is_table(value):  # what is in it is not known without a call of its methods
        return _many()
    if issubclass(kind, BaseException):
        return _of_error(value)
    return iter(list(fields_of(value).values())) if _shows_itself(kind) else None


def _is_table(value: object) -> bool:
    """Whether it is an array or a table that may hold any objects, which write themselves as they like."""
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

"""`ClassRecord`: what a recorded form needs of an object's class."""

import collections
import enum
import pathlib
from typing import Any, NamedTuple, cast

import msgspec

from leyden.core.data.plain.class_members import class_of, lineage, members_of
from leyden.core.data.plain.own_methods import full_name
from leyden.core.data.plain.record_kinds import declared_fields

PLAIN_BASES = (
    *(str, int, float, bytes, list, tuple, set, frozenset),
    *(collections.OrderedDict, collections.defaultdict, collections.Counter, dict),
)
"""Classes of which the record also keeps objects of subclasses, by their value as an object of this class."""
_PATHS = ((pathlib.PosixPath, pathlib.PurePosixPath), (pathlib.WindowsPath, pathlib.PureWindowsPath))
"""A path without its file. Subclasses of these are not kept: their text is made by methods that they may define."""
NO_MEMBERS = frozenset(
    {
        *("__module__", "__qualname__", "__doc__", "__annotations__", "__annotate__", "__annotations_cache__"),
        *("__slots__", "__dict__", "__weakref__", "__static_attributes__", "__firstlineno__", "__type_params__"),
        *("__new__", "__init__", "__del__", "__init_subclass__", "__class_getitem__", "__subclasshook__"),
        *("__orig_bases__", "__parameters__", "__abstractmethods__", "_abc_impl", "__getnewargs__", "__set_name__"),
        *("__class__", "__getattribute__", "__mro_entries__", "__prepare__"),
    }
)
"""Names in a class that say nothing about what an object answers, or that a stand-in's class defines itself."""


class _Pair(NamedTuple):
    first: object


_ITEM: type[Any] = class_of(members_of(_Pair)["first"])
"""Class of a named tuple's fields."""


class ClassRecord(NamedTuple):
    """What the recorded form of an object needs of its class."""

    kind: type[Any]
    names: list[str]
    """Names of the class and its bases, nearest first, without `object`."""
    fields: list[str] | None
    """Declared fields that the class's `repr` shows; None for a class without declared fields."""
    has_own_truth: bool
    """Whether an object may count as false."""
    base: type[Any] | None
    """The plain class whose value the object has; None for any other object."""
    own: list[str]
    """Members that the class adds to `base`, or defines otherwise. The record does not have them."""
    items: list[str]
    """Fields of a named tuple."""
    is_enum: bool
    """Whether objects are members of an enumeration, with its `name` and `value`."""


_MOST_KNOWN = 4096
_known: dict[int, ClassRecord] = {}
"""Records by the class's id: a metaclass may have a `__hash__` that raises."""


def class_record(kind: type[Any]) -> ClassRecord:
    """Return the record of a class."""
    found = _known.get(id(kind))
    if found is not None and found.kind is kind:
        return found
    made = _made(kind)
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[id(kind)] = made
    return made


def _made(kind: type[Any]) -> ClassRecord:
    bases = [base for base in lineage(kind) if base is not object]
    base, is_enum = _plain_base(kind), _is_enum(kind)
    items = _items(kind) if base is tuple else []
    kept = {*items, *(["_fields"] if items else []), *(["name", "value"] if is_enum else [])}
    return ClassRecord(
        kind=kind,
        names=[full_name(base) for base in bases],
        fields=None if base is not None else _declared(kind),
        has_own_truth=any("__bool__" in members_of(base) or "__len__" in members_of(base) for base in bases),
        base=base,
        own=[] if base is None else [name for name in _own(kind, base) if name not in kept],
        items=items,
        is_enum=is_enum,
    )


def _declared(kind: type[Any]) -> list[str] | None:
    if any(base is plain for base in lineage(kind) for plain in (*PLAIN_BASES, type)):
        return None  # it may hold more than its fields
    if issubclass(kind, msgspec.Struct):
        return list(cast("Any", kind).__struct_fields__)
    shown, hidden = declared_fields(kind)
    return shown if shown or hidden else None


def _plain_base(kind: type[Any]) -> type[Any] | None:
    """Return the nearest plain class of which `kind` is a subclass; None if it may answer each attribute otherwise."""
    for path, pure in _PATHS:
        if kind is path:
            return pure
    found = (plain for base in lineage(kind) for plain in PLAIN_BASES if base is plain)
    base: type[Any] | None = next(found, None)
    if base is None or any(
        _member(kind, name) is not _member(base, name) for name in ("__getattribute__", "__class__")
    ):
        return None
    return base


def _own(kind: type[Any], base: type[Any]) -> list[str]:
    plain = lineage(base)
    own, seen = list[str](), set[str]()
    for each in lineage(kind):
        is_plain = any(each is one for one in plain)
        for name, member in list(members_of(each).items()):
            if type(cast("Any", name)) is not str or name in seen:
                continue
            seen.add(name)
            if not is_plain and name not in NO_MEMBERS and member is not _member(base, name):
                own.append(name)
    return own


_MISSING = object()


def _member(kind: type[Any], name: str) -> object:
    return next((members_of(base)[name] for base in lineage(kind) if name in members_of(base)), _MISSING)


def _items(kind: type[Any]) -> list[str]:
    fields = _member(kind, "_fields")
    if type(fields) is not tuple:
        return []
    names = cast("tuple[Any, ...]", fields)
    return list(names) if all(type(name) is str and type(_member(kind, name)) is _ITEM for name in names) else []


def _is_enum(kind: type[Any]) -> bool:
    if not any(base is enum.Enum for base in lineage(kind)):
        return False
    return all(_member(kind, name) is _member(enum.Enum, name) for name in ("name", "value"))

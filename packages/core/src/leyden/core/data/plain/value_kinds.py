"""Readers by class: builtin classes and their subclasses, records, arrays, and other objects.

An object of a subclass is read with the methods of its builtin class. The subclass's own `__str__`, `__iter__`,
`__len__` or `items` is not called. Records (dataclasses, attrs, pydantic, msgspec) are read by their declared fields.
Other objects are read by their own text, within limits, since their attributes may hold secrets that their text does
not show.
"""

import array
import collections
import collections.abc
import datetime
import decimal
import enum
import fractions
import pathlib
import types
import uuid
import zoneinfo
from collections.abc import Callable
from itertools import islice
from typing import Any, cast

from leyden.core.data.plain.class_members import class_of, fields_of, lineage, lineage_of, members_of
from leyden.core.data.plain.enormous_text import is_enormous
from leyden.core.data.plain.library_kinds import library_kind
from leyden.core.data.plain.own_methods import full_name, short_name, type_name
from leyden.core.data.plain.reading import Kind, OverLimits, Reading
from leyden.core.data.plain.record_kinds import record_kind

_List: Any = list
_Tuple: Any = tuple
_Dict: Any = dict
_Set: Any = set
_FrozenSet: Any = frozenset
_Deque: Any = collections.deque
_Array: Any = array.array
_DateTime: Any = datetime.datetime
"""Builtin classes whose methods are called on objects of subclasses."""
_MOST_KNOWN = 4096
_MESSAGE_ITEMS, _MESSAGE_BYTES = 100, 100_000
"""Limits for the arguments of an exception with enormous arguments."""
_MOST_BITS = 14_000
"""Largest size in bits of a whole number that Python writes in decimal."""
_FEW = 64
"""Lists with at most this many items are read one by one, without a first check for a flat list."""
_known: dict[int, tuple[type, Kind]] = {}
"""Reader of a class, by the class's id: a metaclass may have a `__hash__` that raises."""


def kind_of(kind: type) -> Kind:
    """Return the reader of a class."""
    found = _known.get(id(kind))
    if found is not None and found[0] is kind:
        return found[1]
    reader = _found(kind)
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[id(kind)] = (kind, reader)
    return reader


def _found(kind: type) -> Kind:
    if id(kind) in _EXACT:
        return _EXACT[id(kind)]
    for base in lineage(kind):
        if id(base) in _BASES:
            return _BASES[id(base)]
        reader = library_kind(base)
        if reader is not None:
            return reader
    return record_kind(kind) or _own_text


# --- Builtin classes; methods of subclasses are not called


def _itself(reading: Reading, value: Any, path: str) -> Any:
    return value


def _text(reading: Reading, value: Any, path: str) -> Any:
    return reading.text(str.__str__(value), path)


def _whole(reading: Reading, value: Any, path: str) -> Any:
    return reading.whole(int.__int__(value), path)


def _real(reading: Reading, value: Any, path: str) -> Any:
    return float.__float__(value)


def _bytes(reading: Reading, value: Any, path: str) -> Any:
    return reading.bytes(bytes.__getitem__(value, slice(None)), path)


def _bytearray(reading: Reading, value: Any, path: str) -> Any:
    most = reading.bytes_left
    return reading.bytes(bytes(bytearray.__getitem__(value, slice(most))), path, bytearray.__len__(value))


def _memoryview(reading: Reading, value: memoryview, path: str) -> Any:
    if value.nbytes > reading.bytes_left:
        return reading.own_text(value, lambda: repr(value), path)
    return reading.bytes(value.tobytes(), path)


def _list(reading: Reading, value: Any, path: str) -> Any:
    count = _List.__len__(value)
    flat = reading.flat(value) if class_of(value) is list and count > _FEW else None
    if flat is not None:
        return flat
    return reading.items(_List.__iter__(value), count, value, path)


def _tuple(reading: Reading, value: Any, path: str) -> Any:
    return reading.items(_Tuple.__iter__(value), _Tuple.__len__(value), value, path)


def _set(reading: Reading, value: Any, path: str) -> Any:
    base = _Set if issubclass(class_of(value), set) else _FrozenSet
    members = reading.first(base.__iter__(value))
    return reading.items(members, base.__len__(value), value, path)


def _deque(reading: Reading, value: Any, path: str) -> Any:
    members = reading.first(_Deque.__iter__(value))
    return reading.items(members, _Deque.__len__(value), value, path)


def _dict(reading: Reading, value: Any, path: str) -> Any:
    members = reading.first(_Dict.items(value))
    return reading.pairs(members, _Dict.__len__(value), value, path)


def _view(reading: Reading, value: Any, path: str) -> Any:
    """Read a view of a dict; these classes cannot be subclassed."""
    return reading.items(reading.first(value), len(value), value, path)


def _enum(reading: Reading, value: Any, path: str) -> Any:
    return reading.read(fields_of(value)["_value_"], path)


# --- Classes of the standard library with a text form


def _as_text(reading: Reading, value: Any, path: str) -> Any:
    return reading.text(str(value), path)


def _decimal(reading: Reading, value: Any, path: str) -> Any:
    return reading.text(decimal.Decimal.__str__(value), path)


def _date(reading: Reading, value: Any, path: str) -> Any:
    return reading.text(datetime.date.isoformat(value), path)


def _datetime(reading: Reading, value: Any, path: str) -> Any:
    zone = _DateTime.tzinfo.__get__(value)
    if zone is None:
        return reading.text(_DateTime.isoformat(value), path)
    if type(zone) is datetime.timezone or type(zone) is zoneinfo.ZoneInfo:
        return value if type(value) is datetime.datetime else reading.text(_DateTime.isoformat(value), path)
    reading.reduce(path, "a time zone that is not of the standard library is left out")
    return reading.text(_DateTime.isoformat(_DateTime.replace(value, tzinfo=None)), path)


def _array(reading: Reading, value: Any, path: str) -> Any:
    count = _Array.__len__(value)
    members: Any = _Array.__getitem__(value, slice(reading.items_left))
    return reading.items(_Array.tolist(members), count, value, path)


def _namespace(reading: Reading, value: Any, path: str) -> Any:
    fields = fields_of(value)
    return reading.pairs(list(fields.items()), len(fields), value, path)


def _wrapper(reading: Reading, value: Any, path: str) -> Any:
    """Read the content of a `UserDict`, `UserList` or `UserString`."""
    return reading.read(fields_of(value)["data"], path)


def _chain(reading: Reading, value: Any, path: str) -> Any:
    """Read a `ChainMap`; the first map that has a key gives its value."""
    joined: dict[Any, Any] = {}
    for held in reversed(cast("list[Any]", fields_of(value)["maps"])):
        joined |= dict(islice(_Dict.items(held), reading.items_left))
    return reading.pairs(list(joined.items()), len(joined), value, path)


def _mapping(reading: Reading, value: Any, path: str) -> Any:
    """Read a mapping that is no dict, by its own `items`."""
    most = reading.items_left
    members: list[Any] = reading.call_methods(value, lambda: list[Any](islice(value.items(), most)))
    return reading.pairs(members, len(members), value, path)


# --- Objects that are kept by name only


def _named(reading: Reading, value: Any, path: str) -> Any:
    reading.reduce(path, f"a {short_name(value)}, which is not read")
    return f"<{short_name(value)}{_name_of(value)}>"


def _name_of(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f" {name[:200]}" if type(name) is str else ""


def _class(reading: Reading, value: Any, path: str) -> Any:
    reading.reduce(path, "a class, which is not read")
    return f"<class {full_name(value)}>"


def _error(reading: Reading, value: Any, path: str) -> Any:
    return reading.text(f"{short_name(value)}: {message(reading, value, path)}", path)


def message(reading: Reading, error: BaseException, path: str) -> str:
    """Return the message of an exception; for a group, without the messages of the errors inside it."""
    args, str_method = _args(error), _str_of(type(error))
    if str_method == id(BaseExceptionGroup.__dict__["__str__"]):  # Python's own text: a message and a number of errors
        return reading.text(str(error), path)
    simple = str_method in _SHOWS_ARGS and all(id(class_of(one)) in _SIMPLE for one in args)
    if simple and not any(type(one) is int and one.bit_length() > _MOST_BITS for one in args):
        return reading.text(str(error), path)
    if simple or (not reading.limits.raises and is_enormous(error)):
        with reading.at_most(_MESSAGE_ITEMS, _MESSAGE_BYTES):
            held = reading.read(list(args), path)
            return reading.text(str(held[0] if len(held) == 1 else tuple(held)), path)
    try:
        text = reading.call_methods(error, lambda: str(error))
    except OverLimits:
        raise
    except Exception as broken:  # its own `__str__` raised, or did not return
        reading.reduce(path, f"the message of a {short_name(error)} cannot be read: {broken or 'no answer'}")
        return f"<{short_name(error)} whose message cannot be read>"
    return reading.text(str.__str__(text), path)


_args: Callable[[BaseException], tuple[Any, ...]] = BaseException.__dict__["args"].__get__
_SIMPLE = frozenset(map(id, (str, int, float, bool, type(None))))
_SHOWS_ARGS = frozenset(map(id, (BaseException.__dict__["__str__"], KeyError.__dict__["__str__"])))


def _str_of(kind: type) -> int:
    """Return the id of the method that makes an exception's text."""
    all_members = (members_of(base) for base in lineage(kind))
    return id(next(members["__str__"] for members in all_members if "__str__" in members))


def _own_text(reading: Reading, value: Any, path: str) -> Any:
    """Read an object by its own `repr` or `str`; an object that defines neither becomes the name of its type."""
    for base in lineage_of(value):
        if base is object:
            break
        members = members_of(base)
        if "__repr__" in members:
            return reading.own_text(value, lambda: repr(value), path)
        if "__str__" in members:
            return reading.own_text(value, lambda: str(value), path)
    reading.reduce(path, f"an object of type {type_name(value)}, which has neither __repr__ nor __str__")
    return f"<{type_name(value)}>"


_BY_BASE: list[tuple[Kind, tuple[Any, ...]]] = [
    (_text, (str,)),
    (_whole, (int,)),
    (_real, (float,)),
    (_bytes, (bytes,)),
    (_bytearray, (bytearray,)),
    (_list, (list,)),
    (_tuple, (tuple,)),
    (_set, (set, frozenset)),
    (_dict, (dict,)),
    (_deque, (collections.deque,)),
    (_datetime, (datetime.datetime,)),
    (_date, (datetime.date,)),
    (_decimal, (decimal.Decimal,)),
    (_enum, (enum.Enum,)),
    (_array, (array.array,)),
    (_namespace, (types.SimpleNamespace,)),
    (_wrapper, (collections.UserDict, collections.UserList, collections.UserString)),
    (_chain, (collections.ChainMap,)),
    (_error, (BaseException,)),
    (_class, (type,)),
    (_mapping, (collections.abc.Mapping,)),
]
_BASES: dict[int, Kind] = {id(kind): reader for reader, kinds in _BY_BASE for kind in kinds}
"""Readers by class, for its objects and those of subclasses; the nearest base counts."""

_EMPTY: dict[str, str] = {}
_VIEWS = tuple(map(class_of, (_EMPTY.keys(), _EMPTY.values(), _EMPTY.items())))
_EXACTLY: list[tuple[Kind, tuple[Any, ...]]] = [
    (_itself, (type(None), bool)),
    (_as_text, (complex, range, fractions.Fraction, uuid.UUID)),
    (_as_text, (datetime.time, datetime.timedelta, datetime.timezone, zoneinfo.ZoneInfo)),
    (_as_text, (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)),
    (_as_text, (type(Ellipsis), type(NotImplemented))),
    (_memoryview, (memoryview,)),
    (_view, _VIEWS),
    (_mapping, (types.MappingProxyType,)),
    (_named, (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)),
    (_named, (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)),
    (_named, (types.CodeType, types.FrameType, types.TracebackType)),
]
_EXACT: dict[int, Kind] = {id(kind): reader for reader, kinds in _EXACTLY for kind in kinds}
"""Readers by class, for objects of exactly this class."""

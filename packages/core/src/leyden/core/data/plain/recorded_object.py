"""Recorded objects: restores a recorded form. Objects become stand-ins that have their recorded fields.

A stand-in answers what the record answers, and refuses everything else: reading an attribute that was not recorded
raises `NotRecorded`, and `Restored.refused` keeps the reason, also where the reader catches the exception. Nothing is
imported. Where the object's class is loaded in this process, its methods and properties work on the recorded fields,
and `isinstance` is exact.
"""

import base64
import datetime
import decimal
import functools
import json
import sys
import types
import uuid
from collections.abc import Callable
from typing import Any, cast

from leyden.core.data.plain.class_members import lineage, members_of
from leyden.core.data.plain.own_methods import full_name
from leyden.core.data.plain.recorded_form import KIND


class NotRecorded(Exception):
    """The record does not have what was read."""


class Restored:
    """A restored value, and what of it was read that the record does not have.

    Raises ValueError for text that is not a recorded form.
    """

    def __init__(self, form: str) -> None:
        self.refused: list[str] = []
        """Reasons of every `NotRecorded` so far."""
        self._objects: dict[int, RecordedObject] = {}
        self._classes: list[tuple[str, ...]] = []
        try:
            self.value: Any = self._read(json.loads(form))
        except (LookupError, TypeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"it is not a recorded form: {type(error).__name__}") from error

    def refuse(self, reason: str) -> NotRecorded:
        """Note that something was read that the record does not have, and return the exception to raise."""
        self.refused.append(reason)
        return NotRecorded(reason)

    def _read(self, written: Any) -> Any:
        if isinstance(written, list):
            return [self._read(member) for member in cast("list[Any]", written)]
        if not isinstance(written, dict):
            return written
        fields = cast("dict[str, Any]", written)
        if KIND not in fields:
            return {key: self._read(member) for key, member in fields.items()}
        kind = fields[KIND]
        if kind == "object":
            return self._object(fields)
        if kind == "ref":
            return self._objects[fields["of"]]
        if kind == "secret":
            return _stand_in(self, ("str",), f"the value of {fields['of']!r} is not recorded: it has a secret's name")
        if kind == "dict":
            return {self._read(key): self._read(member) for key, member in fields["of"]}
        return _KINDS[kind](self._read(fields["of"]))

    def _object(self, written: dict[str, Any]) -> "RecordedObject":
        given = written["of"]
        if isinstance(given, list):
            self._classes.append(tuple(map(str, cast("list[Any]", given))))
        names = self._classes[given] if isinstance(given, int) else self._classes[-1]
        fields = written.get("fields")
        why = "" if fields is not None else f"the result has an object of type {names[0]}; the record has its text only"
        made = _stand_in(self, names, why, has_own_truth="truth" in written)
        self._objects[written["n"]] = made
        for name, value in cast("dict[str, Any]", fields or {}).items():
            _fields_of(made)[name] = self._read(value)
        return made


_KINDS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "float": float,
    "bytes": base64.b64decode,
    "Decimal": decimal.Decimal,
    "UUID": uuid.UUID,
    "date": datetime.date.fromisoformat,
    "datetime": datetime.datetime.fromisoformat,
}


class RecordedObject:
    """Stand-in for an object of an agent's result."""

    __slots__ = ("_leyden_fields", "_leyden_has_own_truth", "_leyden_names", "_leyden_of", "_leyden_why")

    _leyden_of: Restored
    _leyden_fields: dict[str, Any]
    _leyden_names: tuple[str, ...]
    """Names of the object's class and its bases, nearest first."""
    _leyden_why: str
    """Why the object has no fields; empty where it has."""
    _leyden_has_own_truth: bool

    def __getattr__(self, name: str) -> Any:
        fields = _fields_of(self)
        if name in fields:
            return fields[name]
        if not self._leyden_why:
            found = _member_of_class(self, name)
            if found is not _MISSING:
                return found
        raise _refusal(self, name)

    @property
    def __class__(self) -> type[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  # isinstance() reads it
        return _class_of(self)

    def __bool__(self) -> bool:
        if not self._leyden_has_own_truth:
            return True
        return bool(_special(self, "__bool__"))

    def __eq__(self, other: object) -> bool:
        return self is other or _special(self, "__eq__", other)


_OPERATORS = "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul"
_SPECIAL = (
    *(f"__{side}{name}__" for name in _OPERATORS.split() for side in ("", "r")),
    *("__str__", "__repr__", "__format__", "__bytes__", "__dir__", "__hash__", "__call__", "__fspath__"),
    *("__len__", "__iter__", "__next__", "__reversed__", "__contains__", "__getitem__", "__aiter__", "__await__"),
    *("__lt__", "__le__", "__gt__", "__ge__", "__int__", "__float__", "__complex__", "__index__", "__round__"),
    *("__neg__", "__pos__", "__abs__", "__invert__", "__enter__", "__exit__", "__aenter__", "__aexit__"),
)
"""Special methods that Python looks up on the class. Without them, it would raise TypeError, and a reward that catches
it would score something else than the result."""


def _special_method(name: str) -> Callable[..., Any]:
    def call(self: RecordedObject, *args: Any, **kwargs: Any) -> Any:
        return _special(self, name, *args, **kwargs)

    return call


for _name in _SPECIAL:
    setattr(RecordedObject, _name, _special_method(_name))

_MISSING = object()
_DATA = frozenset({str, int, float, complex, bytes, bytearray, list, dict, tuple, set, frozenset})
"""Classes whose objects functions in C read directly: a stand-in cannot take their place."""


def _stand_in(restored: Restored, names: tuple[str, ...], why: str, *, has_own_truth: bool = True) -> RecordedObject:
    """Return a stand-in without fields; its type has the name of the object's own class."""
    module, _, name = names[0].rpartition(".")
    members: dict[str, Any] = {"__slots__": (), "__module__": module or "builtins"}
    made: Any = object.__new__(type(name, (RecordedObject,), members))
    made._leyden_of, made._leyden_names, made._leyden_why = restored, names, why
    made._leyden_fields, made._leyden_has_own_truth = {}, has_own_truth
    return made


def _fields_of(held: RecordedObject) -> dict[str, Any]:
    return object.__getattribute__(held, "_leyden_fields")


def _refusal(held: RecordedObject, name: str) -> NotRecorded:
    short = held._leyden_names[0].rpartition(".")[2]  # pyright: ignore[reportPrivateUsage]
    why = held._leyden_why or f"the record of the {short} object has its declared fields only"  # pyright: ignore[reportPrivateUsage]
    return held._leyden_of.refuse(f"{why}, and {name!r} was read{_advice(held)}")  # pyright: ignore[reportPrivateUsage]


def _advice(held: RecordedObject) -> str:
    """Return what makes methods of an object with fields work: its class, loaded in this process."""
    name = held._leyden_names[0]  # pyright: ignore[reportPrivateUsage]
    if held._leyden_why or _loaded(name) is not None:  # pyright: ignore[reportPrivateUsage]
        return ""
    return f"; methods of {name} work if the reward's file imports it"


def _loaded(name: str) -> type[Any] | None:
    """Return the class of this name if its module is loaded here; None otherwise."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:cut]))
        if module is not None:
            found: Any = module
            for part in parts[cut:]:
                found = vars(found).get(part) if isinstance(found, type | types.ModuleType) else None
            return found if isinstance(found, type) and full_name(found) == name else None
    builtin = vars(sys.modules["builtins"]).get(name)
    return builtin if isinstance(builtin, type) else None


def _class_of(held: RecordedObject) -> type[Any]:
    """Return the nearest loaded class among the object's own and its bases.

    Raises NotRecorded where `isinstance` with it could be wrong for another loaded base.
    """
    names = held._leyden_names  # pyright: ignore[reportPrivateUsage]
    bases = [base for base in map(_loaded, names) if base is not None]
    nearest = bases[0] if bases else object
    if held._leyden_why and not _DATA.isdisjoint(lineage(nearest)):  # pyright: ignore[reportPrivateUsage]
        raise _refusal(held, "__class__")
    if not set(bases) <= set(lineage(nearest)):
        raise _refusal(held, "__class__")
    return nearest


def _member_of_class(held: RecordedObject, name: str) -> Any:
    """Return a method or a property of the object's class, where that is loaded; else `_MISSING`."""
    own = _loaded(held._leyden_names[0])  # pyright: ignore[reportPrivateUsage]
    for base in lineage(own) if own is not None else ():
        member = members_of(base).get(name, _MISSING)
        if member is _MISSING or _is_of_python(base):
            continue
        if isinstance(member, property) and member.fget is not None:
            return member.fget(held)
        if isinstance(member, functools.cached_property):
            return cast("Any", member).func(held)
        if isinstance(member, types.FunctionType):
            return types.MethodType(member, held)
        if isinstance(member, staticmethod | classmethod):
            return cast("Any", member).__get__(None, own)
        return _MISSING
    return _MISSING


def _is_of_python(kind: type[Any]) -> bool:
    """Whether a class is of the standard library: a forged record must not call the methods of such a class."""
    return full_name(kind).partition(".")[0] in sys.stdlib_module_names or kind.__module__ == "builtins"


def _special(held: RecordedObject, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a special method of the object's class. Raises NotRecorded where that is not loaded or has none."""
    method: Any = _MISSING
    if not held._leyden_why:  # pyright: ignore[reportPrivateUsage]
        method = _member_of_class(held, name)
    if method is _MISSING:
        raise _refusal(held, name)
    found: Any = method(*args, **kwargs)
    return False if name == "__eq__" and found is NotImplemented else found

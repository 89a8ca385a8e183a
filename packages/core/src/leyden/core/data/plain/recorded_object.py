"""Recorded objects: restores a recorded form. Objects become stand-ins that have their recorded fields.

A stand-in answers what the record answers, and refuses everything else: reading an attribute that was not recorded
raises `NotRecorded`, and `Restored.refused` keeps the reason, also where the reader catches the exception. Nothing is
imported. Where the object's class is loaded in this process, its methods and properties work on the recorded fields,
and `isinstance` is exact. An object of a subclass of a plain class is restored as an object of that plain class, which
refuses what the subclass adds or defines otherwise. A member of an enumeration that is loaded is that member.
"""

import collections
import enum
import functools
import json
import operator
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from leyden.core.data.plain.class_members import class_of, fields_of, lineage, members_of
from leyden.core.data.plain.exact_kinds import EXACT_KINDS, as_numpy
from leyden.core.data.plain.own_methods import full_name
from leyden.core.data.plain.recorded_class import NO_MEMBERS, PLAIN_BASES
from leyden.core.data.plain.recorded_form import FACTORIES, KIND, recorded_form


class NotRecorded(Exception):
    """The record does not have what was read."""


class _Class(NamedTuple):
    """The record of a class."""

    names: tuple[str, ...]
    """Names of the class and its bases, nearest first."""
    own: tuple[str, ...]
    """Members that a subclass of a plain class has, and that are not recorded."""
    items: tuple[str, ...]
    """Fields of a named tuple."""


class Restored:
    """A restored value, and what of it was read that the record does not have.

    Raises ValueError for text that is not a recorded form.
    """

    def __init__(self, form: str) -> None:
        self.refused: list[str] = []
        """Reasons of every `NotRecorded` so far."""
        self._objects: dict[int, Any] = {}
        self._classes: list[_Class] = []
        self._subclasses: dict[tuple[_Class, type[Any], bool], type[Any]] = {}
        self._readers: dict[Any, Callable[[dict[str, Any]], Any]] = {
            "object": self._object,
            "ref": self._ref,
            "secret": self._secret,
            "dict": self._dict,
            "defaultdict": self._default_dict,
            "deque": lambda written: collections.deque(self._read(written["of"]), written["most"]),
            "numpy": lambda written: as_numpy(written["type"], self._read(written["of"])),
            "subclass": self._of_subclass,
        }
        try:
            self.value: Any = self._read(json.loads(form))
        except NotRecorded as error:  # for example a key of a dict whose `__hash__` is not recorded
            raise ValueError(str(error)) from error
        except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
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
        if kind in self._readers:
            return self._readers[kind](fields)
        restore = EXACT_KINDS[kind].restore if kind in EXACT_KINDS else _KINDS[kind]
        return restore(self._read(fields["of"]))

    def _dict(self, written: dict[str, Any]) -> dict[Any, Any]:
        return {self._read(key): self._read(member) for key, member in written["of"]}

    def _default_dict(self, written: dict[str, Any]) -> collections.defaultdict[Any, Any]:
        factory = FACTORIES.get(written["factory"], self._no_factory)
        return collections.defaultdict(factory, self._read(written["of"]))

    def _ref(self, written: dict[str, Any]) -> Any:
        return self._objects[written["of"]]

    def _secret(self, written: dict[str, Any]) -> Any:
        return _stand_in(self, ("str",), f"the value of {written['of']!r} is not recorded: it has a secret's name")

    def _no_factory(self) -> Any:
        raise self.refuse("the record of a defaultdict does not have its function, and a key that it lacks was read")

    def _class(self, written: dict[str, Any], key: str) -> _Class:
        given = written[key]
        if isinstance(given, int):
            return self._classes[given]
        names, own, items = (
            tuple(map(str, each)) for each in (given, written.get("own", ()), written.get("items", ()))
        )
        self._classes.append(_Class(names, own, items))
        return self._classes[-1]

    def _object(self, written: dict[str, Any]) -> Any:
        names = self._class(written, "of").names
        fields = written.get("fields")
        why = "" if fields is not None else f"the result has an object of type {names[0]}; the record has its text only"
        made = _stand_in(self, names, why, has_own_truth="truth" in written)
        self._objects[written["n"]] = made
        for name, value in cast("dict[str, Any]", fields or {}).items():
            _fields_of(made)[name] = self._read(value)
        if (member := _enum_member(names, fields)) is not None:
            self._objects[written["n"]] = member
            return member
        return made

    def _of_subclass(self, written: dict[str, Any]) -> Any:
        recorded = self._class(written, "class")
        fields = written.get("fields")
        if (member := _enum_member(recorded.names, fields)) is not None:
            return member
        value = self._read(written["of"])
        base, has_more = class_of(value), "attributes" in written
        if base not in _SUBCLASSED:
            raise LookupError(base.__name__)
        if fields is not None:
            held = {name: self._read(fields[name]) for name in ("name", "value")}
            kind = _subclass(self, recorded, base, held, has_more=has_more)
        else:
            kind = self._subclasses.get((recorded, base, has_more))
            if kind is None:
                kind = _subclass(self, recorded, base, {}, has_more=has_more)
                self._subclasses[recorded, base, has_more] = kind
        return kind(value.default_factory, value) if base is collections.defaultdict else kind(value)


_KINDS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "float": float,
    "Counter": collections.Counter,
    "OrderedDict": collections.OrderedDict,
}
_SUBCLASSED = (*PLAIN_BASES, pathlib.PurePosixPath, pathlib.PureWindowsPath)


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
    _leyden_kept = "its declared fields"

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
    if "enum.Enum" in names:
        members["_leyden_kept"] = "its name and value"
    made: Any = object.__new__(type(name, (RecordedObject,), members))
    made._leyden_of, made._leyden_names, made._leyden_why = restored, names, why
    made._leyden_fields, made._leyden_has_own_truth = {}, has_own_truth
    return made


def _fields_of(held: RecordedObject) -> dict[str, Any]:
    return object.__getattribute__(held, "_leyden_fields")


def _refusal(held: RecordedObject, name: str) -> NotRecorded:
    short = held._leyden_names[0].rpartition(".")[2]  # pyright: ignore[reportPrivateUsage]
    why = held._leyden_why or f"the record of the {short} object has {held._leyden_kept} only"  # pyright: ignore[reportPrivateUsage]
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


# --- Objects of subclasses of plain classes


def _subclass(restored: Restored, recorded: _Class, base: type[Any], fields: dict[str, Any], *, has_more: bool) -> Any:
    """Return a subclass of a plain class that refuses the members which the record does not have.

    `has_more`: the object has attributes, none of which is recorded.
    """
    module, _, name = recorded.names[0].rpartition(".")

    def get_attribute(self: Any, name: str) -> Any:
        is_special = name.startswith("__") and name.endswith("__")
        if "__getattr__" in recorded.own or (has_more and (not is_special or name == "__dict__")):
            raise _refusal(self, name)
        raise AttributeError(f"{recorded.names[0]!r} object has no attribute {name!r}")

    members: dict[str, Any] = {each: _not_recorded(each) for each in recorded.own}
    if recorded.items:
        members |= {each: property(operator.itemgetter(place)) for place, each in enumerate(recorded.items)}
        members["_fields"] = recorded.items
    members = {name: member for name, member in members.items() if name not in NO_MEMBERS} | fields
    members |= {"__slots__": (), "__module__": module or "builtins"}
    members |= {"__class__": property(_class_of), "__getattr__": get_attribute}
    members |= {"_leyden_of": restored, "_leyden_names": recorded.names, "_leyden_why": ""}
    members["_leyden_kept"] = f"its value as {base.__name__}"
    return type(name, (base,), members)


def _not_recorded(name: str) -> Any:
    """Return a member of a stand-in's class: that of the object's own class where this is loaded, else a refusal."""
    if name.startswith("__") and name.endswith("__"):
        return _special_method(name)

    def get(self: Any) -> Any:
        found = _member_of_class(self, name)
        if found is _MISSING:
            raise _refusal(self, name)
        return found

    return property(get)


def _enum_member(names: tuple[str, ...], fields: Any) -> Any:
    """Return the member of an enumeration that is loaded in this process and has the recorded value; else None."""
    kind = _loaded(names[0])
    if fields is None or kind is None or not issubclass(class_of(kind), enum.EnumType):
        return None
    member = members_of(kind)["_member_map_"].get(fields.get("name"))
    if member is None:
        return None
    written = json.dumps(fields["value"], ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return member if recorded_form(fields_of(member)["_value_"]).text == written else None

"""Objects whose own methods raise, block, return wrong values, or never end, since agents may store any object."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

RELEASE = threading.Event()
"""Event that releases blocked methods; `clear` it before the next one that must block."""
LONG = 200_000
"""Length of a text that is enormous for an object's `repr`."""


class Broken(Exception):
    """Error that hostile objects raise."""


def _raises(*args: object, **named: object) -> Any:
    raise Broken("not to be called")


_ALL = (
    *("__repr__", "__str__", "__format__", "__bytes__", "__len__", "__iter__", "__contains__", "__getitem__"),
    *("__bool__", "__eq__", "__ne__", "__lt__", "__int__", "__index__", "__float__", "__reversed__"),
    *("keys", "items", "values", "get", "copy", "encode", "isascii", "isoformat", "tolist", "item"),
)
"""Methods of builtin classes that the subclasses override."""


def _spoiled(base: type) -> type:
    """Return a subclass in which every overridable method raises."""
    members: dict[str, Any] = {name: _raises for name in _ALL}
    if base.__hash__ is not None:
        members["__hash__"] = base.__hash__
    return type(f"Spoiled{base.__name__.title()}", (base,), members)


SPOILED: dict[type, Any] = {
    base: _spoiled(base) for base in (str, int, float, bytes, bytearray, list, tuple, dict, set, frozenset)
}
"""By builtin class: a subclass whose every method raises."""


class ReprRaises:
    """Its `repr` raises."""

    __repr__ = _raises


class ReprIsEnormous:
    """Its `repr` is an enormous text."""

    def __repr__(self) -> str:
        return "x" * LONG


class ReprIsNoText:
    """Its `repr` returns a number."""

    __repr__ = lambda self: 7  # type: ignore[reportAssignmentType] # noqa: E731 -- which is the point


class ReprExits:
    """Its `repr` raises SystemExit, which would end the process."""

    def __repr__(self) -> str:
        raise SystemExit(3)


class ReprNeverEnds:
    """Its `repr` calls itself."""

    def __repr__(self) -> str:
        return f"<{self!r}>"


class ReprBlocks:
    """Its `repr` waits until `RELEASE` is set."""

    def __repr__(self) -> str:
        RELEASE.wait()
        return "released"


class StrRaises:
    """Its `str` raises; it has no `repr` of its own."""

    __str__ = _raises


class LooksRaise:
    """Every access to an attribute raises."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        raise Broken(name)

    __repr__ = __len__ = __iter__ = __bool__ = __eq__ = _raises
    __hash__ = None  # type: ignore[reportAssignmentType] as with any class that has an __eq__


class ClaimsToBeText:
    """Its `__class__` is `str`, although it is none."""

    @property
    def __class__(self) -> type:  # type: ignore[reportIncompatibleMethodOverride] as mocks have it
        return str


class ClassRaises:
    """Its `__class__` raises."""

    @property
    def __class__(self) -> type:  # type: ignore[reportIncompatibleMethodOverride] as mocks have it
        raise Broken("class")


class DictRaises:
    """Its `__dict__` raises."""

    @property
    def __dict__(self) -> Any:  # type: ignore[reportIncompatibleVariableOverride] as proxies have it
        raise Broken("dict")


class ItemsNeverEnd(Mapping[str, int]):
    """A mapping with infinitely many items."""

    def __getitem__(self, name: str) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        number = 0
        while True:
            number += 1
            yield str(number)

    def __len__(self) -> int:
        return 1 << 60


class KeysRaise(Mapping[str, int]):
    """A mapping whose keys and length raise."""

    __getitem__ = __iter__ = __len__ = keys = items = _raises


class _HostileMeta(type):
    __hash__ = __eq__ = __repr__ = __instancecheck__ = __subclasscheck__ = _raises


class OfHostileClass(metaclass=_HostileMeta):
    """An object whose class raises when it is hashed, compared or shown."""


class ErrorRaises(Exception):
    """An exception whose text raises."""

    __str__ = __repr__ = _raises


class ErrorBlocks(Exception):
    """An exception whose text waits until `RELEASE` is set."""

    def __str__(self) -> str:
        RELEASE.wait()
        return "released"


QUICK: tuple[type[Any], ...] = (
    *(ReprRaises, ReprIsEnormous, ReprIsNoText, ReprExits, ReprNeverEnds, StrRaises, LooksRaise, ClaimsToBeText),
    *(ClassRaises, DictRaises, ItemsNeverEnd, KeysRaise, OfHostileClass, ErrorRaises),
)
"""Classes of objects whose methods return or raise at once."""
BLOCKING: tuple[type[Any], ...] = (ReprBlocks, ErrorBlocks)
"""Classes of objects whose methods block until `RELEASE` is set."""

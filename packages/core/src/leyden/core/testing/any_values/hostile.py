"""Objects whose own methods raise, block, lie, or never come to an end, as agents may put them anywhere."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

RELEASE = threading.Event()
"""Set it, and what blocks goes on; `clear` it for the next that is to block."""
LONG = 200_000
"""Characters of a text that is enormous for one."""


class Broken(Exception):
    """What hostile objects raise."""


def _raises(*args: object, **named: object) -> Any:
    raise Broken("not to be called")


_ALL = (
    *("__repr__", "__str__", "__format__", "__bytes__", "__len__", "__iter__", "__contains__", "__getitem__"),
    *("__bool__", "__eq__", "__ne__", "__lt__", "__int__", "__index__", "__float__", "__reversed__"),
    *("keys", "items", "values", "get", "copy", "encode", "isascii", "isoformat", "tolist", "item"),
)
"""Methods of builtin classes that subclasses may spoil."""


def _spoiled(base: type) -> type:
    """Return a subclass of which every method raises that can be replaced."""
    members: dict[str, Any] = {name: _raises for name in _ALL}
    if base.__hash__ is not None:
        members["__hash__"] = base.__hash__
    return type(f"Spoiled{base.__name__.title()}", (base,), members)


SPOILED: dict[type, Any] = {
    base: _spoiled(base) for base in (str, int, float, bytes, bytearray, list, tuple, dict, set, frozenset)
}
"""By builtin class, a subclass of it that raises whatever is done with it."""


class ReprRaises:
    """It does not say what it is."""

    __repr__ = _raises


class ReprIsEnormous:
    """It says more than anybody reads."""

    def __repr__(self) -> str:
        return "x" * LONG


class ReprIsNoText:
    """It says what is no text."""

    __repr__ = lambda self: 7  # type: ignore[reportAssignmentType] # noqa: E731 -- which is the point


class ReprExits:
    """It ends the process, if it is let."""

    def __repr__(self) -> str:
        raise SystemExit(3)


class ReprNeverEnds:
    """It calls itself."""

    def __repr__(self) -> str:
        return f"<{self!r}>"


class ReprBlocks:
    """It waits until `RELEASE` is set."""

    def __repr__(self) -> str:
        RELEASE.wait()
        return "released"


class StrRaises:
    """Its text raises; it has no other."""

    __str__ = _raises


class LooksRaise:
    """Whatever of it is looked at raises."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        raise Broken(name)

    __repr__ = __len__ = __iter__ = __bool__ = __eq__ = _raises
    __hash__ = None  # type: ignore[reportAssignmentType] as with any class that has an __eq__


class ClaimsToBeText:
    """It says that it is a `str`, and is none."""

    @property
    def __class__(self) -> type:  # type: ignore[reportIncompatibleMethodOverride] as mocks have it
        return str


class ClassRaises:
    """Its class cannot be asked for."""

    @property
    def __class__(self) -> type:  # type: ignore[reportIncompatibleMethodOverride] as mocks have it
        raise Broken("class")


class DictRaises:
    """Its attributes cannot be asked for."""

    @property
    def __dict__(self) -> Any:  # type: ignore[reportIncompatibleVariableOverride] as proxies have it
        raise Broken("dict")


class ItemsNeverEnd(Mapping[str, int]):
    """A mapping without an end."""

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
    """A mapping that says neither its keys nor their number."""

    __getitem__ = __iter__ = __len__ = keys = items = _raises


class _HostileMeta(type):
    __hash__ = __eq__ = __repr__ = __instancecheck__ = __subclasscheck__ = _raises


class OfHostileClass(metaclass=_HostileMeta):
    """Its class cannot be hashed, compared or shown."""


class ErrorRaises(Exception):
    """An error that does not say what went wrong."""

    __str__ = __repr__ = _raises


class ErrorBlocks(Exception):
    """An error whose text waits until `RELEASE` is set."""

    def __str__(self) -> str:
        RELEASE.wait()
        return "released"


QUICK: tuple[type[Any], ...] = (
    *(ReprRaises, ReprIsEnormous, ReprIsNoText, ReprExits, ReprNeverEnds, StrRaises, LooksRaise, ClaimsToBeText),
    *(ClassRaises, DictRaises, ItemsNeverEnd, KeysRaise, OfHostileClass, ErrorRaises),
)
"""Classes of objects that answer at once, or raise."""
BLOCKING: tuple[type[Any], ...] = (ReprBlocks, ErrorBlocks)
"""Those that do not answer before `RELEASE` is set."""

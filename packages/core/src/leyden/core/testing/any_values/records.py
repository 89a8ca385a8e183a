"""Record classes of every kind, with instances that hold any value; of libraries, only the installed ones."""

import collections
import dataclasses
import enum
import types
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import msgspec

Maker = Callable[[Any], Any]
"""Creates a record that holds a value."""


class Pair(NamedTuple):
    """A named tuple."""

    left: Any
    right: Any


class Struct(msgspec.Struct):
    """A msgspec struct."""

    held: Any


class TaggedStruct(msgspec.Struct, tag="tagged", array_like=True):
    """A struct that msgspec encodes as a list."""

    held: Any


@dataclasses.dataclass
class Data:
    """A dataclass, with a field that its `repr` hides."""

    held: Any
    secret: str = dataclasses.field(default="hidden", repr=False)


@dataclasses.dataclass(slots=True, frozen=True)
class SlottedData:
    """A dataclass with slots, without a `__dict__`."""

    held: Any


class Colour(enum.Enum):
    """An enum whose values have several types."""

    RED = "red"
    MANY = ("a", 1)


class Level(enum.IntEnum):
    """An enum whose members are numbers."""

    LOW = 1


class Name(enum.StrEnum):
    """An enum whose members are text."""

    FIRST = "first"


class Rights(enum.Flag):
    """An enum whose members can be combined."""

    READ = 1
    WRITE = 2


class Plain:
    """An object without a `repr` of its own."""

    def __init__(self, held: Any) -> None:
        self.held = held


class WithRepr(Plain):
    """An object whose `repr` shows what it holds."""

    def __repr__(self) -> str:
        return f"WithRepr({self.held!r})"


MEMBERS: list[Any] = [Colour.RED, Colour.MANY, Level.LOW, Name.FIRST, Rights.READ | Rights.WRITE]


@cache
def makers() -> list[Maker]:
    """Return functions that create records of every available kind."""
    found: list[Maker] = [
        lambda held: Pair(held, held),
        Struct,
        TaggedStruct,
        Data,
        SlottedData,
        Plain,
        WithRepr,
        lambda held: types.SimpleNamespace(held=held),
        lambda held: collections.UserDict({"held": held}),
        lambda held: collections.UserList([held]),
        lambda held: collections.ChainMap({"held": held}, {"more": held}),
        lambda held: types.MappingProxyType({"held": held}),
        lambda held: collections.OrderedDict[str, Any](held=held),
        lambda held: collections.defaultdict(list, held=held),
        lambda held: {"held": held}.values(),
        lambda held: ValueError("wrong", held),
        lambda held: (item for item in [held]),
        lambda held: iter([held]),
    ]
    found += [make() for library, make in _OF_LIBRARIES.items() if find_spec(library) is not None]
    return found


def _pydantic() -> Maker:
    pydantic: Any = import_module("pydantic")
    any_type: Any = Any
    secret = (pydantic.SecretStr, pydantic.SecretStr("secret"))
    config = pydantic.ConfigDict(extra="allow")
    model = pydantic.create_model("Model", held=(any_type, ...), key=secret, __config__=config)
    return lambda held: model.model_construct(held=held, more=[held])


def _attrs() -> Maker:
    attrs: Any = import_module("attrs")
    return attrs.make_class("Attrs", {"held": attrs.field(), "secret": attrs.field(default="hidden", repr=False)})


def _pandas() -> Maker:
    pandas: Any = import_module("pandas")
    return lambda held: pandas.DataFrame({"column": pandas.Series([held, 1], dtype=object)})


def _numpy() -> Maker:
    numpy: Any = import_module("numpy")

    def make(held: Any) -> Any:
        array = numpy.empty(2, dtype=object)
        array[0], array[1] = held, 1
        return array

    return make


_OF_LIBRARIES: dict[str, Callable[[], Maker]] = {
    "pydantic": _pydantic,
    "attrs": _attrs,
    "pandas": _pandas,
    "numpy": _numpy,
}

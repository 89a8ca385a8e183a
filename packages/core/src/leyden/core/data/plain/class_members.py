"""Members of classes and objects, read without calling any method that they define themselves."""

import types
from collections.abc import Mapping
from typing import Any, TypeAlias

Members: TypeAlias = Mapping[str, Any]

_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_mro: Any = type.__dict__["__mro__"]
_members: Any = type.__dict__["__dict__"]


def class_of(value: object) -> type[Any]:
    """Return the actual class of an object, even where its `__class__` claims another."""
    return type(value)


def lineage(kind: type[Any]) -> tuple[type[Any], ...]:
    """Return a class with its bases, nearest first, without calling its metaclass."""
    return _mro.__get__(kind)


def lineage_of(value: object) -> tuple[type[Any], ...]:
    """Return an object's class with its bases, nearest first."""
    return lineage(type(value))


def members_of(kind: type[Any]) -> Members:
    """Return the members that a class itself defines, by name."""
    return _members.__get__(kind)


def fields_of(value: Any) -> dict[str, Any]:
    """Return an object's own attributes, without calling a `__getattribute__` or `__dict__` that its class defines."""
    fields: dict[str, Any] = {}
    for base in reversed(lineage_of(value)):
        for name, member in list(members_of(base).items()):
            if name == "__dict__" and type(member) in _DESCRIPTORS:
                held: Any = member.__get__(value)
                fields |= {key: held[key] for key in list(held) if type(key) is str}
            elif type(member) is types.MemberDescriptorType:
                try:
                    fields[name] = member.__get__(value)
                except AttributeError:  # a slot without a value
                    continue
    return fields

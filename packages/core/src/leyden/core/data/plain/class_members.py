"""What a class and an object are made of, without a call of anything that they define themselves."""

import types
from collections.abc import Mapping
from typing import Any, TypeAlias

Members: TypeAlias = Mapping[str, Any]

_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_mro: Any = type.__dict__["__mro__"]
_members: Any = type.__dict__["__dict__"]


def class_of(value: object) -> type[Any]:
    """Return the class that an object has, whatever class it claims to have."""
    return type(value)


def lineage(kind: type[Any]) -> tuple[type[Any], ...]:
    """Return a class with its bases, nearest first, whatever its metaclass does."""
    return _mro.__get__(kind)


def lineage_of(value: object) -> tuple[type[Any], ...]:
    """Return an object's class with its bases."""
    return lineage(type(value))


def members_of(kind: type[Any]) -> Members:
    """Return what a class itself defines, by name."""
    return _members.__get__(kind)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the attributes that an object has by itself, without its own `__getattribute__` or `__dict__`."""
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

"""Readers of records: objects of classes with declared fields (dataclasses, attrs, pydantic, msgspec)."""

from typing import Any, cast

import msgspec

from leyden.core.data.plain.class_members import class_of, fields_of, lineage, members_of
from leyden.core.data.plain.reading import Kind, Reading

_Dict: Any = dict
_Tuple: Any = tuple


def record_kind(kind: type[Any]) -> Kind | None:
    """Return a reader for a class with declared fields; None for any other class."""
    if issubclass(kind, msgspec.Struct):
        return _struct
    shown, hidden = declared_fields(kind)
    if not shown and not hidden:
        return None

    def read(reading: Reading, value: Any, path: str) -> Any:
        fields = fields_of(value)
        names = [name for name in ((*shown, *hidden) if reading.all_fields else shown) if name in fields]
        pairs = [(name, fields[name]) for name in names]
        extra = fields.get("__pydantic_extra__")
        if type(extra) is dict:
            pairs += cast("dict[Any, Any]", extra).items()
        return reading.pairs(pairs, len(pairs), value, path)

    return read


def _struct(reading: Reading, value: Any, path: str) -> Any:
    """Read a msgspec struct in the form in which msgspec would encode it."""
    kind: Any = class_of(value)
    fields, config = fields_of(value), kind.__struct_config__
    names = [name for name in kind.__struct_fields__ if name in fields]
    if config.array_like:
        return reading.items([fields[name] for name in names], len(names), value, path)
    tag = [] if config.tag is None else [(config.tag_field, config.tag)]
    return reading.pairs([*tag, *((name, fields[name]) for name in names)], len(names), value, path)


def declared_fields(kind: type[Any]) -> tuple[list[str], list[str]]:
    """Return the names of a class's fields: those that its `repr` shows, and the others."""
    for base in lineage(kind):
        members = members_of(base)
        for marker in _MARKERS:
            fields = _shown(members.get(marker))
            if fields:
                return [name for name, shown in fields if shown], [name for name, shown in fields if not shown]
    return [], []


_MARKERS = ("__pydantic_fields__", "__attrs_attrs__", "__dataclass_fields__", "__fields__")
"""Class members in which pydantic, attrs, dataclasses and pydantic 1 keep the declared fields."""


def _shown(declared: Any) -> list[tuple[str, bool]]:
    """Return the names of declared fields, each with whether the class's `repr` shows it."""
    if issubclass(class_of(declared), dict):
        pairs: list[tuple[Any, Any]] = list(_Dict.items(declared))
        return [(name, fields_of(field).get("repr") is not False) for name, field in pairs if type(name) is str]
    if not issubclass(class_of(declared), tuple):
        return []
    fields = [fields_of(field) for field in _Tuple.__iter__(declared)]
    return [(field["name"], field.get("repr") is not False) for field in fields if type(field.get("name")) is str]

"""What an agent can see, as plain values: two runs that differ in ids, times and token counts alone are equal."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

LEFT_OUT = re.compile(
    r"(?:\w*_)?(?:usage\w*|tokens|obfuscation|created|date|timestamp|datetime|duration|elapsed|ttl|expiry)|\w+_(?:at|ms|seconds|tokens_details)"
)
"""Names of fields whose values are times, numbers of tokens or random fillings."""
_VARYING = re.compile(
    r"(?:[A-Za-z]+[-_]+)*(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,})(?:[-_]\d+)?"
    r"|\b0x[0-9a-f]{6,}\b|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.]*(?:Z|[+-]\d\d:\d\d)?"
)
"""Ids, addresses and times in a text."""


class Visible:
    """Converts the values of one run; equal ids are equal numbers, in the order in which they are first seen."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def of(self, value: Any) -> Any:
        """Return a value as plain values."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return _VARYING.sub(lambda found: f"<{self._ids.setdefault(found[0], len(self._ids) + 1)}>", value)
        if isinstance(value, bytes):
            return self.of(value.decode(errors="backslashreplace"))
        if isinstance(value, Mapping):
            return self._fields(cast("Mapping[Any, Any]", value).items())
        if isinstance(value, list | tuple):
            return [self.of(member) for member in cast("list[Any]", value)]
        if isinstance(value, set | frozenset):
            return sorted(repr(self.of(member)) for member in cast("set[Any]", value))
        return self._object(value)

    def _object(self, value: Any) -> Any:
        name = type(value).__name__
        if isinstance(value, type):
            return f"class {value.__name__}"
        if isinstance(value, BaseException):
            body = {key: getattr(value, key, None) for key in ("status_code", "code", "param", "type", "body")}
            cause = None if value.__cause__ is value else value.__cause__  # a framework may raise an error from itself
            return [name, self.of(str(value)), self._fields(body.items()), self.of(cause)]
        if hasattr(value, "model_dump"):  # a model of Pydantic, also with fields that it does not declare
            extra: dict[str, Any] = getattr(value, "model_extra", None) or {}
            declared: dict[str, Any] = getattr(cast("Any", type(value)), "model_fields", {})
            fields: dict[str, Any] = {key: getattr(value, key) for key in declared}
            return [name, self._fields((fields | extra).items())]
        if dataclasses.is_dataclass(value):
            fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
            return [name, self._fields(fields.items())]
        return [name, self.of(repr(value))]

    def _fields(self, fields: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
        return {self.of(str(key)): self.of(value) for key, value in fields if not LEFT_OUT.fullmatch(str(key))}


def difference(one: Any, other: Any, path: str = "") -> str:
    """Return the first place at which two plain values differ, with both."""
    if isinstance(one, list) and isinstance(other, list):
        ones, others = cast("list[Any]", one), cast("list[Any]", other)
        for index, (first, second) in enumerate(zip(ones, others, strict=False)):
            if first != second:
                return difference(first, second, f"{path}[{index}]")
        return f"{path} has {len(ones)} and {len(others)} members"
    if isinstance(one, dict) and isinstance(other, dict):
        fields, others_fields = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        for key in sorted(fields.keys() | others_fields.keys()):
            if fields.get(key) != others_fields.get(key):
                return difference(fields.get(key), others_fields.get(key), f"{path}.{key}")
    return f"{path}: {one!r} and {other!r}"

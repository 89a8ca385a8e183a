"""`as_row`: a task given in Python as the row of JSON that the agent receives."""

import dataclasses
import enum
import json
import math
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from leyden.core.data.plain.class_members import class_of
from leyden.core.data.plain.exact_kinds import numpy_scalar
from leyden.core.data.plain.own_methods import type_name
from leyden.core.data.rollout import Task
from leyden.core.errors import TaskError

_BYTES = (bytes, bytearray, memoryview)


def as_row(task: object) -> Task:
    """Return a task as the values of JSON; other values become those that `msgspec` would write.

    Raises TaskError, with the key, for a value that JSON does not have.
    """
    try:
        row = _converted(task, "task")
    except RecursionError:
        raise TaskError("task: its lists and objects are nested too deeply") from None
    if not row or type(row) not in (dict, str):
        form = "an object with at least one key, or a text that is not empty"
        raise TaskError(f"a task is {form}, not a value of type {type_name(task)}")
    return row


def _converted(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return _converted(value.value, path)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return _finite(float.__float__(value), path)
    if isinstance(value, Mapping):
        return _mapping(cast("Mapping[Any, Any]", value), path)
    if isinstance(value, set | frozenset):
        return _members(_in_order(cast("set[Any]", value), path), path)
    if isinstance(value, list | tuple | deque):
        return _members(cast("list[Any]", value), path)
    return _object(value, path)


def _finite(number: float, path: str) -> float:
    if not math.isfinite(number):
        raise TaskError(f"{path}: {json.dumps(number)} is no number that JSON can hold; leave the key out")
    return number


def _mapping(value: Mapping[Any, Any], path: str) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, member in value.items():
        if not isinstance(key, str):
            raise TaskError(f"{path}: the key {key!r} is no text, which the keys of JSON are; write it as text")
        row[str.__str__(key)] = _converted(member, f"{path}.{key}")
    return row


def _members(members: list[Any], path: str) -> list[Any]:
    return [_converted(member, f"{path}[{number}]") for number, member in enumerate(members)]


def _in_order(members: set[Any] | frozenset[Any], path: str) -> list[Any]:
    try:
        return sorted(members)
    except TypeError:
        raise TaskError(f"{path}: a set whose members have no order; give a list") from None


def _object(value: Any, path: str) -> Any:
    if isinstance(value, _BYTES):
        raise TaskError(f"{path}: JSON has no bytes; give text, such as base64, and decode it in the agent")
    if numpy_scalar(class_of(value)) is not None:
        return _converted(value.item(), path)
    if dataclasses.is_dataclass(class_of(value)):
        return _mapping({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, path)
    if hasattr(class_of(value), "__pydantic_fields__"):
        return _converted(value.model_dump(), path)
    try:
        written = msgspec.to_builtins(value, builtin_types=_BYTES)
    except (TypeError, ValueError, ArithmeticError):
        written = value
    if written is value:
        raise TaskError(f"{path}: JSON has no value for an object of type {type_name(value)}; give text, or a dict")
    return _converted(written, path)

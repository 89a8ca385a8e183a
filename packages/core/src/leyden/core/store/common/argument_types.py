"""`ArgumentChecks`: validates the arguments of a store's methods, so that the methods get the types of the interface.

Every backend, and the HTTP client, accepts and refuses the same arguments. Documents (task, metadata, config,
statistics) are read by `data.plain.values`, and their incomplete parts are recorded beside them. An invalid id, number
or status is refused with a message of one line before anything is written.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from leyden.core.data import semconv
from leyden.core.data.plain.class_members import class_of, fields_of
from leyden.core.data.plain.own_methods import type_name
from leyden.core.data.plain.reading import FULL, QUICK, OverLimits, ReadingLimits
from leyden.core.data.plain.values import (
    FEW_MEMBERS,
    MOST_MEMBERS,
    PlainResult,
    is_plain,
    listed,
    plain,
    reading,
    shown,
)
from leyden.core.errors import CallRefused, WrongType
from leyden.core.store.arguments import UNSET
from leyden.core.store.rpc import methods

_NOT_CHECKED = frozenset({"add_span", "add_many_spans"})
"""Methods for spans, which `span_entry` checks."""
_METADATA = "metadata"
"""Name of the argument that records the incomplete parts of a document beside it."""
_MOST = 1 << 63
"""Whole numbers are below this, which every store can hold."""
_MAY_BE_INFINITE = frozenset({"timeout"})

Check: TypeAlias = "Callable[[Any, str, ReadingLimits], Any]"
"""`check(value, path, limits)` returns the value for the method, or raises CallRefused."""


class ArgumentChecks:
    """Checks the arguments of the interface's methods that a subclass defines."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name, function in list(vars(cls).items()):
            is_own = inspect.iscoroutinefunction(function) and not getattr(function, "__isabstractmethod__", False)
            if is_own and name in methods() and name not in _NOT_CHECKED:
                setattr(cls, name, _checked(name, function))


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def call(self: object, *args: Any, **named: Any) -> Any:
        plan = _plan(name)
        is_complete = not named and len(args) == len(plan.checks)
        if plan.takes_text_alone and is_complete and all(type(arg) is str for arg in args):
            return await function(self, *args)  # the case of every model call
        try:
            given = plan.signature.bind(*args, **named).arguments
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from error
        try:
            checked = plan.check(given, QUICK)
        except OverLimits:
            checked = await asyncio.to_thread(plan.check, given, FULL)
        return await function(self, **checked)

    return call


@dataclass(frozen=True, slots=True)
class _Plan:
    """Checks for the arguments of one method."""

    signature: inspect.Signature
    takes_text_alone: bool
    checks: Mapping[str, Check]

    def check(self, given: Mapping[str, Any], limits: ReadingLimits) -> dict[str, Any]:
        """Return the arguments for the method."""
        if _METADATA in self.checks and _METADATA not in given:
            given = {**given, _METADATA: self.signature.parameters[_METADATA].default}
        return _checked_fields(given, self.checks, "", limits)


@cache
def _plan(name: str) -> _Plan:
    method = methods()[name]
    hints = get_type_hints(method.function)
    checks = {name: _check_of(hints[name], name) for name in method.signature.parameters}
    return _Plan(method.signature, all(hints[name] is str for name in checks), checks)


# --- Documents: values that the store keeps for the caller without interpreting them


def _document(value: Any, path: str, limits: ReadingLimits) -> Any:
    """Return a document, as `PlainResult` with the reasons for incomplete parts."""
    most = FEW_MEMBERS if limits.raises else MOST_MEMBERS
    return PlainResult(value, []) if is_plain(value, most) else plain(value, _field(path), limits, all_fields=True)


def _notes(value: Any, path: str, limits: ReadingLimits) -> Any:
    """Return a dict of plain values; the reasons for incomplete parts are an entry of it."""
    kept = _document(value, path, limits)
    found: Any = kept.value
    if type(found) is not dict:
        raise WrongType(f"{path} is {shown(value)}; it must be a dict")
    return _with_reasons(cast("dict[Any, Any]", found), kept.reasons)


def _texts(value: Any, path: str, limits: ReadingLimits) -> Any:
    """Return a dict of text; the reasons for incomplete parts are an entry of it."""
    notes = _notes(value, path, limits)
    return {name: note if type(note) is str else _joined(note) for name, note in notes.items()}


def _joined(note: Any) -> str:
    return "; ".join(map(str, cast("list[Any]", note))) if type(note) is list else str(note)


def _field(path: str) -> str:
    """Return the last field name of a place, since reasons beside a document name only the field."""
    return path.rpartition(".")[2]


def _with_reasons(notes: dict[Any, Any], reasons: Sequence[str]) -> dict[str, Any]:
    keys = {key: str(key) for key in notes if type(key) is int}
    if keys:
        notes = {keys.get(key, key): item for key, item in notes.items()}
    if not reasons:
        return notes
    known = notes.get(semconv.REDUCED)
    return {**notes, semconv.REDUCED: [*(cast("list[Any]", known) if isinstance(known, list) else ()), *reasons]}


def _checked_fields(
    given: Mapping[str, Any], checks: Mapping[str, Check], path: str, limits: ReadingLimits
) -> dict[str, Any]:
    """Return checked fields; the reasons for a document's incomplete parts are added to the `metadata` beside it.

    Raises CallRefused where there are reasons and the call does not set `metadata`.
    """
    checked = {
        name: value if value is UNSET else checks[name](value, f"{path}{name}", limits) for name, value in given.items()
    }
    reasons: list[str] = []
    for name, value in checked.items():
        if type(value) is PlainResult:
            checked[name] = value.value
            reasons += value.reasons
    if not reasons:
        return checked
    notes = checked.get(_METADATA, UNSET)
    if notes is UNSET:
        raise CallRefused(f"{reasons[0]}; also give metadata, where this change is recorded")
    return {**checked, _METADATA: _with_reasons(notes or {}, reasons)}


# --- All other arguments


def _text(value: Any, path: str, limits: ReadingLimits) -> str:
    if not issubclass(class_of(value), str):
        raise WrongType(f"{path} is {shown(value)}, a {type_name(value)}; it must be text")
    return str.__str__(value)


def _whole(value: Any, path: str, limits: ReadingLimits) -> int:
    number = _scalar(value)
    if type(number) is not int:
        raise WrongType(f"{path} is {shown(value)}, a {type_name(value)}; it must be a whole number")
    if not -_MOST <= number < _MOST:
        raise CallRefused(f"{path} is {shown(value)}; it must be below 2^63")
    return number


def _truth(value: Any, path: str, limits: ReadingLimits) -> bool:
    if type(value) is not bool:
        raise WrongType(f"{path} is {shown(value)}, a {type_name(value)}; it must be True or False")
    return value


def _real(value: Any, path: str, limits: ReadingLimits) -> float:
    number = _scalar(value)
    if type(number) is not int and type(number) is not float:
        raise WrongType(f"{path} is {shown(value)}, a {type_name(value)}; it must be a number")
    try:
        return float(number)
    except OverflowError:  # a whole number beyond the range of floats
        return math.inf if number > 0 else -math.inf


def _scalar(value: Any) -> Any:
    return value if type(value) is int or type(value) is float else reading(_ONE, all_fields=False).read(value, "")


_ONE = ReadingLimits(depth=1, items=2, bytes=1000, seconds=0.0)


def _finite(value: Any, path: str, limits: ReadingLimits) -> float:
    number = _real(value, path, limits)
    if math.isnan(number) or (math.isinf(number) and path not in _MAY_BE_INFINITE):
        raise CallRefused(f"{path} is {number}; it must be a finite number")
    return number


def _one_of(allowed: Sequence[str]) -> Check:
    def check(value: Any, path: str, limits: ReadingLimits) -> str:
        text = _text(value, path, limits)
        if text not in allowed:
            raise CallRefused(f"{path} is {shown(value)}; it must be one of {', '.join(allowed)}")
        return text

    return check


def _each(check: Check) -> Check:
    def each(value: Any, path: str, limits: ReadingLimits) -> list[Any]:
        members = listed(value, limits)
        if members is None:
            raise WrongType(f"{path} is {shown(value)}; it must be a list")
        return [check(item, f"{path}[{number}]", limits) for number, item in enumerate(members)]

    return each


def _tuple_of(checks: Sequence[Check]) -> Check:
    def several(value: Any, path: str, limits: ReadingLimits) -> tuple[Any, ...]:
        items = tuple(value) if issubclass(class_of(value), (list, tuple)) else ()
        if len(items) != len(checks):
            raise WrongType(f"{path} is {shown(value)}; it must be {len(checks)} values")
        pairs = zip(checks, items, strict=True)
        return tuple(check(item, f"{path}[{number}]", limits) for number, (check, item) in enumerate(pairs))

    return several


def _by_name(check: Check) -> Check:
    def each(value: Any, path: str, limits: ReadingLimits) -> dict[str, Any]:
        if not issubclass(class_of(value), dict):
            raise WrongType(f"{path} is {shown(value)}; it must be a dict")
        pairs = list(cast("dict[Any, Any]", value).items())
        return {_text(name, f"a name in {path}", limits): check(item, f"{path}.{name}", limits) for name, item in pairs}

    return each


def _struct(kind: type[msgspec.Struct]) -> Check:
    def check(value: Any, path: str, limits: ReadingLimits) -> Any:
        if not issubclass(class_of(value), kind):
            raise WrongType(f"{path} is {shown(value)}; it must be a {kind.__name__}")
        given = {name: item for name, item in fields_of(value).items() if name in _fields(kind)}
        fields = _checked_fields(given, _fields(kind), f"{path}.", limits)
        return value if class_of(value) is kind and _is_same(given, fields) else kind(**fields)

    return check


def _is_same(given: Mapping[str, Any], checked: Mapping[str, Any]) -> bool:
    return all(given.get(name) is value for name, value in checked.items())


@cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, Check]:
    hints = get_type_hints(kind)
    return {name: _check_of(hints[name], name) for name in kind.__struct_fields__}


def _any_of(kinds: Sequence[type[msgspec.Struct]]) -> Check:
    def check(value: Any, path: str, limits: ReadingLimits) -> Any:
        for kind in kinds:
            if issubclass(class_of(value), kind):
                return _exactly(_struct(kind)(value, path, limits), path)
        raise WrongType(f"{path} is {shown(value)}; it must be one of {', '.join(kind.__name__ for kind in kinds)}")

    return check


def _exactly(resource: Any, path: str) -> Any:
    """Return a resource; raises CallRefused where it is incomplete, since resources have no field for reasons."""
    for name in resource.__struct_fields__:
        value = getattr(resource, name)
        reasons: Any = cast("dict[str, Any]", value).get(semconv.REDUCED) if isinstance(value, dict) else None
        if reasons:
            raise CallRefused(f"{reasons[0]}; resources must be plain JSON values")
    return resource


def _check_of(hint: Any, name: str) -> Check:
    """Return the check for an annotation."""
    parts = [part for part in _parts(hint) if part is not msgspec.UnsetType]
    kinds = [part for part in parts if part is not NoneType]
    check = _any_of(kinds) if len(kinds) > 1 else _check_of_one(kinds[0], name)
    if NoneType not in parts:
        return check
    return lambda value, path, limits: None if value is None else check(value, path, limits)


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _check_of_one(hint: Any, name: str) -> Check:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return _document
    if hint in _SCALARS:
        return _SCALARS[hint]
    if origin is Literal:
        return _one_of(inner)
    if origin is dict:
        return _DICTS[inner[1]] if inner[1] in _DICTS else _by_name(_check_of(inner[1], name))
    if origin is tuple and inner[-1] is not Ellipsis:
        return _tuple_of([_check_of(one, name) for one in inner])
    if origin is tuple:
        each = _each(_check_of(inner[0], name))
        return lambda value, path, limits: tuple(each(value, path, limits))
    return _struct(hint) if origin is None else _each(_check_of(inner[0], name))


_SCALARS: Mapping[Any, Check] = {str: _text, int: _whole, float: _finite, bool: _truth}
_DICTS: Mapping[Any, Check] = {Any: _notes, str: _texts, float: _by_name(_real)}
"""Checks for dicts by the type of their values.

For measured numbers, `records` checks that they are finite, since it has their name and step for the message.
"""

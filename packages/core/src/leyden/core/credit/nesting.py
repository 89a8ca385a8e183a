"""Nested schemes: finds out whether a credit scheme needs a critic, and what that critic should learn.

All functions are pure functions of the schemes' options.
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import msgspec

from leyden.core.credit.base import CreditAssigner


def needs_values(scheme: CreditAssigner) -> bool:
    """Return whether the scheme, or a scheme among its options, needs a critic."""
    return expected_returns(scheme) is not scheme


def expected_returns(scheme: CreditAssigner) -> CreditAssigner:
    """Return the scheme whose returns a critic should learn: `scheme` itself if it reads no values.

    Otherwise each part that reads values is replaced by its base, so that no value depends on values.
    """
    learned = scheme.learned()
    return _with_parts(scheme) if learned is scheme else expected_returns(learned)


def _with_parts(whole: Any) -> Any:
    """Return `whole` with each scheme among its options replaced by `expected_returns`; itself if nothing changes."""
    if isinstance(whole, tuple):
        members = cast("tuple[Any, ...]", whole)
        new = tuple(_replaced(member) for member in members)
        return new if any(a is not b for a, b in zip(new, members, strict=True)) else members
    if isinstance(whole, msgspec.Struct):
        changes = _changes(whole, whole.__struct_fields__)
        return msgspec.structs.replace(whole, **changes) if changes else whole
    if is_dataclass(whole) and not isinstance(whole, type):
        changes = _changes(whole, [field.name for field in fields(whole) if field.init])
        return replace(whole, **changes) if changes else whole
    return whole


def _changes(whole: Any, names: "tuple[str, ...] | list[str]") -> dict[str, Any]:
    options = {name: getattr(whole, name) for name in names}
    return {name: new for name, option in options.items() if (new := _replaced(option)) is not option}


def _replaced(option: Any) -> Any:
    return expected_returns(option) if isinstance(option, CreditAssigner) else _with_parts(option)

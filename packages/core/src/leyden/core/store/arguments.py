"""Common arguments of store methods: the unset marker, changes of fields, sort orders, and how filters are joined."""

from typing import Any, Final, Literal

import msgspec

from leyden.core.errors import CallRefused

UNSET: Final = msgspec.UNSET
"""Default of an argument that leaves a field unchanged; None clears the field."""
Unset = msgspec.UnsetType
SortOrder = Literal["asc", "desc"]
FilterLogic = Literal["and", "or"]


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are set, by name."""
    return {name: value for name, value in fields.items() if value is not UNSET}


def not_none(**fields: Any) -> dict[str, Any]:
    """Return the fields that are set, by name. Raises CallRefused for None, which these fields cannot be."""
    for name, value in fields.items():
        if value is None:
            raise CallRefused(f"{name} cannot be None; leave it out to keep it")
    return given(**fields)

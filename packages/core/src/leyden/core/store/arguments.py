"""Common argument types of store methods: the unset marker, sort orders, and how filters are joined."""

from typing import Final, Literal

import msgspec

UNSET: Final = msgspec.UNSET
"""Default of an argument that leaves a field unchanged; None clears the field."""
Unset = msgspec.UnsetType
SortOrder = Literal["asc", "desc"]
FilterLogic = Literal["and", "or"]

"""What methods of a store take beside nouns: how to leave a field as it is, how to sort, how to join filters."""

from typing import Final, Literal

import msgspec

UNSET: Final = msgspec.UNSET
"""Leaves a field as it is; None clears it."""
Unset = msgspec.UnsetType
SortOrder = Literal["asc", "desc"]
FilterLogic = Literal["and", "or"]

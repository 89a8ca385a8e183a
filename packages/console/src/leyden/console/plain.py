"""Values as what JSON and a page can hold: plain data, one line of text, and counts with their noun."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from leyden.core.masking import mask_text

DEPTH = 40
"""Deepest nesting that is shown."""


def plain(value: Any, depth: int = 0) -> Any:
    """Return `value` with everything that JSON cannot hold as text."""
    if depth > DEPTH:
        return "…"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes | bytearray):
        return counted(len(value), "byte")
    if isinstance(value, Mapping):
        items = cast("Mapping[object, Any]", value).items()
        return {str(name): plain(own, depth + 1) for name, own in items}
    if isinstance(value, Sequence):
        return [plain(own, depth + 1) for own in cast("Sequence[Any]", value)]
    return str(value)


def one_line(error: Exception) -> str:
    """Return an error's message as one line with secrets masked; its type if it has none."""
    return mask_text(" ".join(str(error).split())) or type(error).__name__


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `1 rollout`, `2 rollouts`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"

"""Values of agents as plain data that JSON can hold: bytes and numbers that are not finite become text."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

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
        return f"{len(value):,} bytes"
    if isinstance(value, Mapping):
        items = cast("Mapping[object, Any]", value).items()
        return {str(name): plain(own, depth + 1) for name, own in items}
    if isinstance(value, Sequence):
        return [plain(own, depth + 1) for own in cast("Sequence[Any]", value)]
    return str(value)

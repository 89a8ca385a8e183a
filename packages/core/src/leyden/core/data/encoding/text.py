"""Well-formed text: checks and repairs text with lone surrogates, which UTF-8 cannot encode.

Python's `str` may hold halves of surrogate pairs. They come from JSON whose escapes were cut in two, and from file
names.
"""

from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")

REPLACEMENT = "\ufffd"
"""Replacement for a lone surrogate."""


def is_well_formed(text: str) -> bool:
    """Whether the text has no lone surrogate, so that it can be encoded."""
    if text.isascii():  # the interpreter knows this without a scan
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def well_formed(value: T) -> T:
    """Return a value with all of its text well-formed.

    Two surrogates that form a pair become one character; a lone one becomes `REPLACEMENT`. Lists, tuples, dicts (with
    their keys) and structs are processed recursively. Any other value is returned unchanged.
    """
    return cast("T", _well_formed(value))


def _well_formed(value: Any) -> Any:
    if isinstance(value, str):
        if is_well_formed(value):
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_well_formed(item) for item in cast("list[Any]", value)]
    if isinstance(value, tuple):
        return tuple(_well_formed(item) for item in cast("tuple[Any, ...]", value))
    if isinstance(value, dict):
        return {_well_formed(key): _well_formed(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, msgspec.Struct):
        fields = {name: _well_formed(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    return value

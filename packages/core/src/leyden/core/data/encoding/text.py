"""Text as Unicode has it. Python's `str` may hold halves of surrogate pairs, which no encoding has: UTF-8 refuses them.

They come from JSON whose escapes were cut in two, and from names of files. Knows nothing of who said what.
"""

from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")

REPLACEMENT = "\ufffd"
"""Stands for what is no character."""


def is_well_formed(text: str) -> bool:
    """Whether every character of it is one, so that it can be encoded."""
    if text.isascii():  # known without a look at it
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def well_formed(value: T) -> T:
    """Return a value with all of its text well-formed.

    Two halves that belong together become one character, a lone one `REPLACEMENT`. Looks into lists, tuples, dicts
    (their keys, too) and structs; anything else is returned as it is.
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

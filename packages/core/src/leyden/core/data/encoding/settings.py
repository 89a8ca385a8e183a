"""Conversion of settings into their types, with errors in the words of the reader of a YAML file."""

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import getitem
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import msgspec

YAML_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}
"""msgspec's names of types, in the words of a run file's reader."""
_TYPES = re.compile(r"Expected `([a-z |]+)`, got `([a-z]+)`")
_UNIONS = (Union, UnionType)
_A_KEY = "`key` in "
"""How msgspec begins the place of a mapping's key."""
_ANY_KEY = "[...]"
"""How msgspec writes the place of a mapping's value."""


class SettingError(ValueError):
    """A setting has a wrong value: `place`, such as `sampling.temperature`, and what is wrong."""

    def __init__(self, place: str, text: str) -> None:
        super().__init__(f"{place}: {text}" if place else text)
        self.place, self.text = place, text


def converted(value: Any, kind: Any) -> Any:
    """Return `value` as a `kind`; raises SettingError."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        is_key = where.startswith(_A_KEY)
        place = _with_key(where.removeprefix(_A_KEY).strip("`").removeprefix("$").removeprefix("."), value, kind)
        text = f"{_in_yaml_words(what)}{_choices(kind, place)}"
        raise SettingError(place, f"a key {text}; put it in quotes" if is_key else text) from None


def inner_settings(place: str, value: Any, kind: Any) -> Iterator[tuple[str, dict[str, Any], type[msgspec.Struct]]]:
    """Yield the mappings in a setting that are settings themselves, each with its place and its struct."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if isinstance(value, dict):
            yield place, cast("dict[str, Any]", value), kind
    elif get_origin(kind) in _UNIONS:
        for one in get_args(kind):
            yield from inner_settings(place, value, one)
    elif get_origin(kind) is dict and isinstance(value, dict):
        for name, part in cast("dict[str, Any]", value).items():
            yield from inner_settings(f"{place}.{name}", part, get_args(kind)[1])
    elif get_origin(kind) is tuple and isinstance(value, list):
        for number, part in enumerate(cast("list[Any]", value)):
            yield from inner_settings(f"{place}[{number}]", part, get_args(kind)[0])


def _with_key(place: str, value: Any, kind: Any) -> str:
    """Return a place with the first key whose value is wrong, where msgspec writes only that one is."""
    before, found, after = place.partition(_ANY_KEY)
    if not found or "[" in before:
        return place
    parts = before.split(".") if before else []
    for key, part in cast("dict[str, Any]", reduce(getitem, parts, value)).items():
        try:
            msgspec.convert(_with_part(value, parts, {key: part}), kind)
        except msgspec.ValidationError as error:
            if _ANY_KEY in str(error):
                return f"{before}.{key}{after}".removeprefix(".")
    return place


def _with_part(value: Any, parts: Sequence[str], part: Any) -> Any:
    """Return a copy of nested mappings with another part."""
    if not parts:
        return part
    return {**value, parts[0]: _with_part(value[parts[0]], parts[1:], part)}


def _choices(kind: Any, place: str) -> str:
    """Return the values that the field at `place` allows; empty if it allows any."""
    for part in place.split(".") if place else ():
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            return ""
        kind = get_type_hints(kind).get(part)
    kinds = get_args(kind) if get_origin(kind) in _UNIONS else (kind,)
    allowed = [text for one in kinds if get_origin(one) is Literal for text in get_args(one)]
    return f"; it must be {' or '.join(map(str, allowed))}" if allowed else ""


def _in_yaml_words(text: str) -> str:
    """Return a message of msgspec about a value's type in the words of YAML's readers."""
    if (found := _TYPES.fullmatch(text)) is None:
        return f"{text[:1].lower()}{text[1:]}"
    expected, given = found.groups()
    words = [YAML_WORDS.get(kind, kind) for kind in expected.split(" | ") if kind != "null"]
    return f"must be {' or '.join(words)}, not {YAML_WORDS.get(given, given)}"

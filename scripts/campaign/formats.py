"""The formats that agents require of answers: how each dialect names them, and which answers fit them."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import jsonschema

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "sum": {"type": "integer", "minimum": -99, "maximum": 999},
        "unit": {"enum": ["apples", "shells", None]},
        "sure": {"type": "boolean"},
    },
    "required": ["sum", "unit"],
    "additionalProperties": False,
}
REGEX = r"(is|are) [1-9][0-9]{0,2}"
CHOICES = ["none", "some", "many"]


def named_schema(schema: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """Return a `response_format`."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


_RESPONSE_FORMATS: dict[str, dict[str, Any]] = {
    "json object": {"type": "json_object"},
    "schema": named_schema(SCHEMA, strict=False),
    "strict": named_schema(SCHEMA, strict=True),
}
_EXTRAS: dict[str, dict[str, Any]] = {
    "guided json": {"guided_json": SCHEMA},
    "guided regex": {"guided_regex": REGEX},
    "guided choice": {"guided_choice": CHOICES},
    "structured outputs": {"structured_outputs": {"json": SCHEMA}},
}
FORMATS: Mapping[str, tuple[str, ...]] = {
    "chat": (*_RESPONSE_FORMATS, *_EXTRAS),
    "completions": tuple(_EXTRAS),
    "responses": tuple(_RESPONSE_FORMATS),
    "messages": ("strict",),
}
"""What each dialect has."""


def chat_format(name: str) -> dict[str, Any]:
    """Return the fields of Chat Completions that require a format."""
    return {"response_format": _RESPONSE_FORMATS[name]} if name in _RESPONSE_FORMATS else _EXTRAS.get(name, {})


def completions_format(name: str) -> dict[str, Any]:
    """Return the fields of Completions that require a format."""
    return _EXTRAS.get(name, {})


def text_format(name: str) -> dict[str, Any]:
    """Return the fields of Responses that require a format."""
    if name not in _RESPONSE_FORMATS:
        return {}
    found = _RESPONSE_FORMATS[name]
    return {"text": {"format": {"type": found["type"], **found.get("json_schema", {})}}}


def messages_format(name: str) -> dict[str, Any]:
    """Return the fields of Messages that require a format."""
    if name != "strict":
        return {}
    return {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}


def fits(name: str, text: str) -> bool:
    """Whether a whole answer has the format."""
    return _FITS.get(name, _fits_schema)(text)


def is_valid(schema: Mapping[str, Any], text: str) -> bool:
    """Whether a text is JSON of the schema."""
    try:
        return jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))  # pyright: ignore[reportUnknownMemberType]
    except ValueError:
        return False


def _fits_schema(text: str) -> bool:
    return is_valid(SCHEMA, text)


_FITS: Mapping[str, Callable[[str], bool]] = {
    "json object": lambda text: is_valid({"type": "object"}, text),
    "guided regex": lambda text: re.fullmatch(REGEX, text) is not None,
    "guided choice": lambda text: text in CHOICES,
}

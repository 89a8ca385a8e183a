"""Grammar rules: writes grammars in llguidance's Lark format, from JSON schemas and the other formats of an answer."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeGuard, cast

import msgspec

from leyden.core.errors import GrammarError
from leyden.core.grammar.compiler import check_grammar, check_size

ANY_OBJECT = '{"type": "object"}'
"""Text of the schema of any JSON object."""
_WHITESPACE: dict[str, object] = {"whitespace_flexible": True, "whitespace_pattern": "[ ]?"}
"""At most one space between two JSON tokens: unlimited white space would let an answer end at its length limit."""
_ANNOTATIONS = frozenset({"title", "description", "examples", "default", "deprecated", "$comment"})
"""Keywords that do not limit the JSON."""
_OF_SCHEMAS = ("properties", "$defs", "definitions", "patternProperties")
"""Keywords whose value maps names to schemas."""
_LISTS = ("anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains", "propertyNames")
_COMBINING = frozenset({"allOf", "not", "if", "dependentSchemas", "unevaluatedProperties"})
"""Keywords of schemas in which another part of the schema may need properties that one part does not name."""
_BESIDE_PROPERTIES = frozenset({"anyOf", "oneOf", "$ref", "patternProperties"})
"""Keywords that do the same where they are beside `properties`."""


class AnswerFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The format that an answer must have."""

    kind: Literal["json", "regex", "choice", "grammar"]
    text: str
    """A JSON schema, a regular expression, a JSON list of texts, or a grammar with a rule `start`."""
    field: str = ""
    """Name of the field of the request that requires the format, for messages."""

    def rule(self) -> str:
        """Return the expression of the format; GrammarError for a `grammar`, which has rules of its own."""
        if self.kind == "json":
            return json_rule(self.text)
        if self.kind == "choice":
            return "/" + "|".join(map(_exactly, json.loads(self.text))) + "/"
        if self.kind == "regex":
            return "/" + _IN_REGEX.sub(lambda found: _ESCAPED.get(found[0], found[0]), self.text) + "/"
        raise GrammarError("a grammar cannot be combined with tools or with another format")

    def grammar(self) -> str:
        """Return the whole grammar of an answer in this format."""
        return self.text if self.kind == "grammar" else f"start: {self.rule()}"

    def check(self) -> None:
        """Raise GrammarError, with the reason, if no grammar can be made of the format. This may take a second."""
        check_size(self.text)
        _check(self.grammar())


_IN_REGEX = re.compile(r"\\.|/|\n|\r", re.DOTALL)
_ESCAPED = {"/": "\\/", "\n": "\\n", "\r": "\\r", "\\\n": "\\n", "\\\r": "\\r"}
"""What must be written otherwise between the slashes of a regular expression."""


def _exactly(text: str) -> str:
    """Return the regular expression of a fixed text. A grammar may have only few alternatives, but these are one."""
    return "".join(one if one.isalnum() else f"\\x{{{ord(one):x}}}" for one in text)


def text_rule(text: str) -> str:
    """Return the expression of a fixed text."""
    return json.dumps(text, ensure_ascii=False) if text else '""'


@lru_cache(maxsize=128)
def json_rule(schema: str) -> str:
    """Return the expression of JSON that fits `schema`, which is JSON text itself.

    Properties that the schema does not name are left out, unless it mentions them, or combines parts that may need each
    other's properties. Everything that the rule allows fits the schema. Raises GrammarError for a text that is not a
    schema, or that is too long or too deep.
    """
    check_size(schema)
    try:
        found: object = msgspec.json.decode(schema)
        if isinstance(found, bool):
            found = {} if found else {"enum": []}
        if not isinstance(found, dict):
            raise GrammarError("a JSON schema must be an object")
        given = cast("dict[str, Any]", found)
        closed = _closed(given) if _is_closable(given) else given
        return "%json " + json.dumps(closed | {"x-guidance": _WHITESPACE}, ensure_ascii=False)
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise GrammarError(f"the schema is not JSON: {error}") from None


@lru_cache(maxsize=128)
def why_not(schema: str) -> str | None:
    """Return why no grammar can be made of a JSON schema; None if one can. This may take a second."""
    try:
        _check(f"start: {json_rule(schema)}")
    except GrammarError as error:
        return str(error)
    return None


@lru_cache(maxsize=128)
def _check(grammar: str) -> None:
    check_grammar(grammar)


def _is_closable(schema: Mapping[str, Any]) -> bool:
    """Whether no part of the schema needs properties that only another part names."""
    if _COMBINING & schema.keys() or ("properties" in schema and _BESIDE_PROPERTIES & schema.keys()):
        return False
    return all(_is_closable(part) for part in _parts(schema))


def _parts(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for key in _OF_SCHEMAS:
        if isinstance(schema.get(key), dict):
            yield from filter(_is_object, schema[key].values())
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            yield from filter(_is_object, schema[key])
    yield from (schema[key] for key in _SINGLE if _is_object(schema.get(key)))


def _is_object(part: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(part, dict)


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without unnamed properties, in all of its parts."""
    found = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
    for key in _OF_SCHEMAS:
        if isinstance(found.get(key), dict):
            found[key] = {name: _closed_part(part) for name, part in found[key].items()}
    for key in _LISTS:
        if isinstance(found.get(key), list):
            found[key] = [_closed_part(part) for part in found[key]]
    for key in _SINGLE:
        if key in found:
            found[key] = _closed_part(found[key])
    named, required = found.get("properties"), found.get("required")
    if _is_object(named) and "additionalProperties" not in found and _has_all(named, required):
        found["additionalProperties"] = False
    return found


def _has_all(named: Mapping[str, Any], required: object) -> bool:
    return not isinstance(required, list) or all(name in named for name in cast("list[object]", required))


def _closed_part(part: object) -> object:
    return _closed(part) if _is_object(part) else part

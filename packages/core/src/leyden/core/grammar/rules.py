"""Grammar rules: writes grammars in llguidance's Lark format, from JSON schemas and the other formats of an answer."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, cast

import msgspec

from leyden.core.errors import GrammarError
from leyden.core.grammar.compiler import check_grammar

ANY_OBJECT = '{"type": "object"}'
"""Text of the schema of any JSON object."""
_WHITESPACE: dict[str, object] = {"whitespace_flexible": True, "whitespace_pattern": "[ ]?"}
"""At most one space between two JSON tokens: unlimited white space would let an answer end at its length limit."""
_COMPOSED = frozenset({"allOf", "anyOf", "oneOf", "$ref", "patternProperties", "not", "if"})
"""Keywords beside which other properties must stay possible."""
_ANNOTATIONS = frozenset({"title", "description", "examples", "default", "deprecated", "$comment"})
"""Keywords that do not limit the JSON."""
_OF_SCHEMAS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
"""Keywords whose value maps names to schemas."""
_LISTS = ("anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains", "propertyNames", "if", "then", "else")


class AnswerFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The format that an answer must have."""

    kind: Literal["json", "regex", "choice", "grammar"]
    text: str
    """A JSON schema, a regular expression, a JSON list of texts, or a grammar with a rule `start`."""

    def rule(self) -> str:
        """Return the expression of the format; GrammarError for a `grammar`, which has rules of its own."""
        if self.kind == "json":
            return json_rule(self.text)
        if self.kind == "choice":
            return "(" + " | ".join(text_rule(text) for text in json.loads(self.text)) + ")"
        if self.kind == "regex":
            return "/" + self.text.replace("/", "\\/").replace("\n", "\\n") + "/"
        raise GrammarError("a grammar cannot be combined with tools or with another format")

    def grammar(self) -> str:
        """Return the whole grammar of an answer in this format."""
        return self.text if self.kind == "grammar" else f"start: {self.rule()}"

    def check(self) -> None:
        """Raise GrammarError, with the reason, if no grammar can be made of the format."""
        _check(self.grammar())


def text_rule(text: str) -> str:
    """Return the expression of a fixed text."""
    return json.dumps(text, ensure_ascii=False) if text else '""'


@lru_cache(maxsize=512)
def json_rule(schema: str) -> str:
    """Return the expression of JSON that fits `schema`, which is JSON text itself.

    Properties that the schema does not name are left out, where it does not mention them: everything that the rule
    allows fits the schema, and a model cannot add properties without end.
    """
    options: dict[str, Any] = {"x-guidance": _WHITESPACE}
    found: object = json.loads(schema)
    if isinstance(found, bool):
        found = {} if found else {"enum": []}
    if not isinstance(found, dict):
        raise GrammarError("a JSON schema must be an object")
    return "%json " + json.dumps(options | _closed(cast("dict[str, Any]", found)))


@lru_cache(maxsize=512)
def why_not(schema: str) -> str | None:
    """Return why no grammar can be made of a JSON schema; None if one can."""
    try:
        _check(f"start: {json_rule(schema)}")
    except GrammarError as error:
        return str(error)
    return None


@lru_cache(maxsize=512)
def _check(grammar: str) -> None:
    check_grammar(grammar)


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without unnamed properties, in all of its parts but those of an `allOf`."""
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
    if "properties" in found and "additionalProperties" not in found and not _COMPOSED & found.keys():
        found["additionalProperties"] = False
    return found


def _closed_part(part: object) -> object:
    return _closed(cast("dict[str, Any]", part)) if isinstance(part, dict) else part

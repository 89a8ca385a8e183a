"""JSON schemas for grammars: rewrites a schema so that a grammar can be made of it, and programs can read its values.

The rewritten schema allows no value that the given one does not allow, unless it is rewritten leniently.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeAlias, cast

from leyden.core.errors import GrammarError

Schema: TypeAlias = dict[str, Any]

LARGEST = (1 << 63) - 1024
"""Largest integer where a schema has no limit: databases and most JSON parsers read no larger ones.

The grammar library reads limits as floats; this is the largest one below 2^63.
"""
LARGEST_MULTIPLE = 10_000
"""Largest `multipleOf`, without its decimal point: the grammar library needs a state for each remainder.

The time to compile a grammar grows faster than this number. For 60 million, it is minutes.
"""
_INTERSECTING = frozenset({"allOf", "$ref", "patternProperties"})
"""Keywords with which several `multipleOf` may limit the same number."""
_COMPOSED = frozenset({"allOf", "anyOf", "oneOf", "$ref", "patternProperties", "not", "if"})
"""Keywords beside which other properties must stay possible."""
_OF_SCHEMAS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
"""Keywords whose value maps names to schemas."""
_COMBINING = frozenset({"not", "if", "dependentSchemas", "unevaluatedProperties"})
"""Keywords of schemas in which another part of the schema may need properties that one part does not name."""
_ANNOTATIONS = frozenset({"title", "description", "examples", "default", "deprecated", "$comment"})
"""Keywords that do not limit the JSON."""
_VALUES = frozenset({"const", "enum"})
"""Keywords that have values, not schemas."""
_DEFINITIONS = ("$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains", "propertyNames", "if", "then", "else")
_LOWER, _UPPER = frozenset({"minimum", "exclusiveMinimum"}), frozenset({"maximum", "exclusiveMaximum"})

_YEAR = r"([1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])"
_LEAP_YEAR = r"(\d{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    rf"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_CLOCK = r"T(\d{1,6}H(\d{1,6}M)?(\d{1,6}S)?|\d{1,6}M(\d{1,6}S)?|\d{1,6}S)"
_UUID = "[0-9a-f]{{8}}-[0-9a-f]{{4}}-{}[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}}"
FORMATS: Mapping[str, str] = {
    "date": _DAY,
    "time": _TIME,
    "date-time": f"{_DAY}T{_TIME}",
    "duration": f"P(\\d{{1,6}}W|((\\d{{1,6}}Y)?(\\d{{1,6}}M)?\\d{{1,6}}D|\\d{{1,6}}Y|\\d{{1,6}}M)({_CLOCK})?|{_CLOCK})",
    "base64": "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    **{f"uuid{version}": _UUID.format(version) for version in range(1, 9)},
}
"""Regular expressions of formats, by name.

The first four are narrower than RFC 3339: no leap seconds, no 29 February in other years, no year 0, no number of
enormous length. Classes of programming languages have no such dates, and their parsers raise an error.
"""
_KNOWN_FORMATS = frozenset({"email", "hostname", "ipv4", "ipv6", "uri", "uuid", "unknown"})
"""Formats that the grammar library knows."""


class SchemaRewriter:
    """Rewrites schemas; `has_grammar` returns whether a grammar can be made of a regular expression.

    `lenient`: limits of which no grammar can be made are left out. Otherwise they stay, and the grammar is refused.
    """

    def __init__(self, has_grammar: Callable[[str], bool], *, lenient: bool) -> None:
        self._has_grammar, self._lenient = has_grammar, lenient
        self._closes = True

    def rewrite(self, schema: Schema) -> Schema:
        """Return the schema of the values that a grammar allows.

        - Properties that a part of the schema does not name are left out, where it does not mention them. A model then
          cannot add properties without end.
        - Integers without a limit have 64 bits.
        - A format of `FORMATS` becomes a pattern. Other formats that the library does not know are left out: JSON
          Schema defines a format as an annotation.
        - An alternative of an `anyOf` is left out if no grammar can be made of its pattern.
        - Property names that must be in a list become properties.

        Raises GrammarError for a `multipleOf` that would take too long; with `lenient`, it is left out.
        """
        if not self._lenient:
            check_multiples(schema)
        elif not _has_small_multiples(schema):
            schema = cast("Schema", _without_multiples(schema))
        self._closes = not _mentions(schema, _COMBINING)
        return self._rewrite(schema, closes_definitions=not _has_intersection(schema))

    def _rewrite(self, schema: Schema, *, closes_definitions: bool = True) -> Schema:
        found = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        for key in _OF_SCHEMAS:
            if isinstance(found.get(key), dict) and (closes_definitions or key not in _DEFINITIONS):
                found[key] = {name: self._part(part) for name, part in found[key].items()}
        for key in _LISTS:
            if isinstance(found.get(key), list):
                found[key] = [self._part(part) for part in self._alternatives(key, found[key])]
        for key in _SINGLE:
            if key in found:
                found[key] = self._part(found[key])
        self._limit_text(found)
        _limit_integers(found)
        _name_properties(found)
        if self._closes and "additionalProperties" not in found and not _COMPOSED & found.keys() and _names_all(found):
            found["additionalProperties"] = False
        return found

    def _part(self, part: object) -> object:
        return self._rewrite(cast("Schema", part)) if isinstance(part, dict) else part

    def _alternatives(self, key: str, parts: list[Any]) -> list[Any]:
        """Return the alternatives of an `anyOf` whose patterns a grammar can express; all if there is none."""
        if key != "anyOf":
            return parts
        return [
            part for part in parts if not isinstance(part, dict) or self._has_pattern(cast("Schema", part))
        ] or parts

    def _has_pattern(self, schema: Schema) -> bool:
        pattern = schema.get("pattern")
        return not isinstance(pattern, str) or self._has_grammar(pattern)

    def _limit_text(self, found: Schema) -> None:
        """Replace the format of a text by a pattern, or leave it out."""
        name = found.get("format")
        if isinstance(name, str):
            if name in FORMATS and "pattern" not in found:
                found["pattern"] = f"^{FORMATS[name]}$"
            if name not in _KNOWN_FORMATS:
                del found["format"]
        if self._lenient and not self._has_pattern(found):
            del found["pattern"]


def check_multiples(schema: object) -> None:
    """Raise GrammarError for a `multipleOf` of which a grammar would take too long."""
    if not _has_small_multiples(schema):
        raise GrammarError(
            f"a multipleOf is too large; without its decimal point, it must be at most {LARGEST_MULTIPLE}"
        )


def _has_small_multiples(schema: object) -> bool:
    """Whether every `multipleOf` is small, and their common multiple too if several may limit the same number."""
    given = _multiples(schema)
    multiples = [Decimal(one if isinstance(one, int) else str(one)).normalize() for one in given]
    if not all(abs(one.adjusted()) <= 20 for one in multiples):
        return False
    places = [max(-int(one.as_tuple().exponent), 0) for one in multiples]
    if any(one.scaleb(count) > LARGEST_MULTIPLE for one, count in zip(multiples, places, strict=True)):
        return False
    if not multiples or not _mentions(schema, _INTERSECTING):
        return True
    return math.lcm(*(int(one.scaleb(max(places))) for one in multiples)) <= LARGEST_MULTIPLE


def _without_multiples(schema: object) -> object:
    """Return a copy of a schema without any `multipleOf`."""
    if isinstance(schema, list):
        return [_without_multiples(part) for part in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    parts = cast("Schema", schema).items()
    kept = ((key, part) for key, part in parts if key != "multipleOf" or not isinstance(part, int | float))
    return {key: part if key in _VALUES else _without_multiples(part) for key, part in kept}


def _multiples(schema: object) -> Iterator[int | float]:
    """Yield every `multipleOf` in `schema` above 0; others are invalid, and the grammar library refuses them."""
    if isinstance(schema, list):
        for part in cast("list[object]", schema):
            yield from _multiples(part)
    elif isinstance(schema, dict):
        found = cast("Schema", schema)
        multiple: object = found.get("multipleOf")
        if isinstance(multiple, int | float) and 0 < multiple < math.inf:
            yield multiple
        for part in found.values():
            yield from _multiples(part)


def _limit_integers(found: Schema) -> None:
    if found.get("type") == "integer" and not {"enum", "const"} & found.keys():
        if not _LOWER & found.keys():
            found["minimum"] = -LARGEST
        if not _UPPER & found.keys():
            found["maximum"] = LARGEST


def _name_properties(found: Schema) -> None:
    """Replace a list of the possible names of properties by properties with these names."""
    names: object = found.get("propertyNames")
    listed: object = cast("Schema", names).get("enum") if isinstance(names, dict) else None
    if isinstance(listed, list) and not {"properties", "patternProperties"} & found.keys():
        value: object = found.get("additionalProperties", True)
        found["properties"] = {name: value for name in cast("list[object]", listed) if isinstance(name, str)}
        found["additionalProperties"] = False
        del found["propertyNames"]


def _has_intersection(schema: object) -> bool:
    """Whether an `allOf` of several schemas is in `schema`: a value may have the properties of all of them."""
    if isinstance(schema, list):
        return any(map(_has_intersection, cast("list[object]", schema)))
    if not isinstance(schema, dict):
        return False
    found = cast("Schema", schema)
    parts: object = found.get("allOf")
    return (isinstance(parts, list) and len(cast("list[object]", parts)) > 1) or any(
        map(_has_intersection, found.values())
    )


def _mentions(schema: object, keywords: frozenset[str]) -> bool:
    """Whether one of the keywords is anywhere in `schema`."""
    if isinstance(schema, list):
        return any(_mentions(part, keywords) for part in cast("list[object]", schema))
    if not isinstance(schema, dict):
        return False
    found = cast("Schema", schema)
    return bool(keywords & found.keys()) or any(_mentions(part, keywords) for part in found.values())


def _names_all(schema: Schema) -> bool:
    """Whether a schema names properties, and among them all that it requires."""
    named, required = schema.get("properties"), schema.get("required")
    if not isinstance(named, dict):
        return False
    return not isinstance(required, list) or set(cast("list[str]", required)) <= cast("Schema", named).keys()

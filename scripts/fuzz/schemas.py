"""Hostile formats: JSON schemas, regular expressions and grammars, as the JSON text of a field."""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Schema = dict[str, Any]

PATTERNS = (
    "(a+)+$", "(x+x+)+y", "(a|a)*b", "(.*a){40}", "(a?){60}a{60}", "[^a]{1,3000}(.*b.*){20}", "(a|b)*a(a|b){18}", "(",
    "[", "a{5,2}", "a{99999999}", "(?=a)b", "(?<=a)b", "(a)\\1", "\\p{L}+", "\\p{Nope}", "(?i)straße", "^$", "", "/",
    "\\", "\\ud800", "\u0000", "[\ud800]", "(?s:.*)", "a" * 3000, "(" * 500 + ")" * 500, "|".join(["ab"] * 2000),
    ".{0,20000}", "[\\s\\S]*", "\\b", "(?P<n>a)", "a**", "^^a$$", "é" * 200,
)  # fmt: skip
GRAMMARS = (
    "start: /a/", "start: start", "start: a\na: b\nb: a", "start: (/a/ | /b/)*", "start: x", "start:", "", "x: /a/",
    'start: "a"{1000000}', "start: /(a+)+/ start | /b/", "start: <[99999999]>", "start: <|im_end|>", "start: <|nope|>",
    'start: %json {"$ref": "#"}', 'start: %json {"type": "integer", "multipleOf": 62615533}', "start: %json",
    "%llguidance",
    'start: %json {"type": "string", "minLength": 100000}', "start: %regex {}", "start: gen\ngen[stop=/a/]: /.*/",
    "start: " + " | ".join(f'"v{n}"' for n in range(5000)), "start: " + "(" * 3000, "\u0000", "\ud800",
    "start: a\n" + "\n".join(f"a{n}: a{n + 1}" for n in range(2000)), 'root ::= "a" root | "b"', "start: @other",
    "start: " + "/a?/ " * 3000, "start: (" + "/[a-z]*/ " * 60 + ")*", "start: %import common.INT",
)  # fmt: skip
REFERENCES: list[Any] = [
    "#", "#/nowhere", "#/$defs/a", "#/$defs/a%2Fb", "#/properties/a", "http://elsewhere.invalid/schema.json",
    "file:///etc/passwd", "", "#" + "/a" * 3000, "other.json#/a", 7, None, [], "#/$defs/\ud800",
]  # fmt: skip
TYPES: list[Any] = [
    "object",
    "array",
    "string",
    "integer",
    "number",
    "boolean",
    "null",
    "any",
    "",
    5,
    None,
    [],
    ["string", 5],
    {},
]
KEYWORDS: dict[str, list[Any]] = {
    "properties": [[], 3, {"": {}}, {"\ud800": True}, {"a": 1}, {f"p{n}": {"type": "string"} for n in range(400)}],
    "required": [{}, ["a", "a"], ["nowhere"], [1], "a", [f"p{n}" for n in range(400)]],
    "items": [7, [], False, {"type": "array"}, [{"type": "string"}, 3]],
    "enum": [[], {}, [1, "a", None, {"b": []}], ["\ud800"], [f"v{n}" for n in range(20_000)], list(range(3000))],
    "const": [None, {}, "\u0000", 1e308, [[]], "x" * 20_000],
    "anyOf": [[], {}, [{}] * 300, [3], [{"type": "string"}, {"type": "string"}]],
    "oneOf": [[], [{"const": n} for n in range(200)], [{"properties": {"a": {"const": n}}} for n in range(30)]],
    "allOf": [[], [{"type": "string"}, {"type": "integer"}], [{"properties": {f"a{n}": {}}} for n in range(60)]],
    "not": [{}, {"type": "object"}, 3],
    "if": [{"properties": {"a": {"const": 1}}}, True],
    "additionalProperties": ["x", True, {}, {"type": "array", "items": {"$ref": "#"}}],
    "patternProperties": [{"(": {}}, {"^a": {"type": "string"}, "a$": {"type": "integer"}}, []],
    "propertyNames": [{"enum": ["a", 1]}, {"pattern": "(a+)+"}, 3],
    "dependentRequired": [{"a": ["b"]}, []],
    "unevaluatedProperties": [False, {}],
    "prefixItems": [[{"type": "string"}] * 300, {}, [3]],
    "minItems": [-1, 5000, 10**9, "3", 1e400],
    "maxItems": [-1, 0, 10**9, 0.5],
    "uniqueItems": [True, "yes"],
    "contains": [{"const": 3}],
    "minLength": [-1, 10**6, 10**12, "9" * 40, 0.5],
    "maxLength": [-1, 0, 10**6, 10**12],
    "minProperties": [-1, 30, 10**9],
    "minimum": ["3", 1e308, 10**40, -(10**400), 0.1],
    "maximum": [-1e308, 10**40, 0.1, "9" * 40],
    "exclusiveMinimum": [True, 0, 1e300],
    "multipleOf": [0, -1, 0.01, 1e-7, 7, 9973, 62_615_533, 10**300, 1e400],
    "format": ["date-time", "uuid", "nosuch", "", 3, "regex", "email", "ipv6", "\ud800"],
    "x-guidance": [{"lenient": True}, 3, {"whitespace_pattern": "(a+)+"}],
    "$id": ["http://elsewhere.invalid/", "#", 3],
    "$schema": ["http://json-schema.org/draft-03/schema#", 3],
    "$defs": [{"a": {"$ref": "#/$defs/a"}}, {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, []],
}
"""Keywords, each with values that are wrong, that contradict others, or that take long."""


def schema_text(rng: Random) -> str:
    """Return a hostile JSON schema; it need not be one."""
    make = rng.choice((_random, _random, _random, _nested, _nested_text, _recursive, _wide, _no_schema))
    return make(rng)


def pattern_text(rng: Random) -> str:
    """Return a hostile regular expression, as JSON."""
    return json.dumps(rng.choice(PATTERNS))


def grammar_text(rng: Random) -> str:
    """Return a hostile grammar, as JSON."""
    return json.dumps(rng.choice(GRAMMARS))


def choice_text(rng: Random) -> str:
    """Return a hostile list of choices, as JSON."""
    choices: Sequence[Any] = (
        [], [""], [1], ["a"] * 5000, [f"v{n}" for n in range(20_000)], ["\ud800"], ["\u0000"], {}, "a", ["x" * 50_000],
        ["/", "\\", '"', "\n"], [None], [["a"]],
    )  # fmt: skip
    return json.dumps(rng.choice(choices))


def _random(rng: Random) -> str:
    return json.dumps(_part(rng, rng.choice((1, 2, 3, 4))))


def _part(rng: Random, depth: int) -> Any:
    """Return a schema with some keywords, which has others within it down to `depth`."""
    if rng.random() < 0.04:
        return rng.choice((True, False, None, 3, [], "object"))
    found: Schema = {}
    if rng.random() < 0.8:
        found["type"] = rng.choice(TYPES[:7] if rng.random() < 0.85 else TYPES)
    if rng.random() < 0.08:
        found["$ref"] = rng.choice(REFERENCES)
    if rng.random() < 0.12:
        found["pattern"] = rng.choice((*PATTERNS, 7))
    for keyword, values in rng.sample(list(KEYWORDS.items()), rng.choice((0, 1, 1, 2, 3))):
        found[keyword] = rng.choice(values)
    return found | (_inner(rng, depth - 1) if depth and rng.random() < 0.8 else {})


def _inner(rng: Random, depth: int) -> Schema:
    """Return a keyword with schemas within it."""
    inner = _part(rng, depth)
    match rng.randrange(5):
        case 0:
            properties = {name: _part(rng, depth) for name in rng.sample("abcdef", rng.randint(1, 3))}
            return {"properties": properties, "required": list(properties)}
        case 1:
            return {"items": inner}
        case 2:
            return {rng.choice(("anyOf", "oneOf", "allOf")): [inner, _part(rng, depth)]}
        case 3:
            return {"$defs": {"a": inner}, "properties": {"a": {"$ref": "#/$defs/a"}}}
        case _:
            return {"additionalProperties": inner}


def _nested(rng: Random) -> str:
    """A schema within a schema, many times."""
    schema: Any = {"type": "string"}
    wrap: Callable[[Any], Schema] = rng.choice((
        lambda inner: {"type": "object", "properties": {"a": inner}, "required": ["a"]},
        lambda inner: {"type": "array", "items": inner},
        lambda inner: {"anyOf": [inner, {"type": "null"}]},
        lambda inner: {"allOf": [inner]},
        lambda inner: {"not": inner},
    ))  # fmt: skip
    for _ in range(rng.choice((10, 40, 120, 240))):
        schema = wrap(schema)
    return json.dumps(schema)


def _nested_text(rng: Random) -> str:
    """The same, deeper than Python can write it."""
    depth = rng.choice((400, 900, 1100, 20_000))
    begin, end = rng.choice(
        (('{"items":', "}"), ('{"properties":{"a":', "}}"), ('{"anyOf":[', "]}"), ('{"$defs":{"a":', "}}"))
    )
    return begin * depth + "{}" + end * depth


def _recursive(rng: Random) -> str:
    node: Schema = {
        "type": "object",
        "properties": {"left": {"$ref": "#/$defs/node"}, "value": {"type": "integer"}},
        "required": rng.choice((["value"], ["left"], ["left", "value"])),
    }
    other = rng.choice((node, {"$ref": "#/$defs/node"}, {"allOf": [{"$ref": "#/$defs/node"}, node]}, True))
    return json.dumps(
        {"$ref": rng.choice(("#/$defs/node", "#/$defs/other", "#")), "$defs": {"node": node, "other": other}}
    )


def _wide(rng: Random) -> str:
    count = rng.choice((100, 1000, 4000))
    name = rng.choice(("properties", "anyOf", "$defs"))
    part: Schema = rng.choice(({"type": "string"}, {"type": "integer", "minimum": 3}, {"$ref": "#"}, {"enum": ["a"]}))
    parts: Any = [part] * count if name == "anyOf" else {f"p{n}": part for n in range(count)}
    return json.dumps({"type": "object", name: parts})


def _no_schema(rng: Random) -> str:
    return rng.choice(("null", "true", "false", "3", "[]", '"object"', "{", "1e400", '{"type": 1e400}', '{"a": NaN}'))

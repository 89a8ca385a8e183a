"""Grammar rules: writes grammars in llguidance's Lark format, from JSON schemas and the other formats of an answer."""

import json
import re
from functools import lru_cache
from typing import Any, Literal, cast

import msgspec

from leyden.core.errors import GrammarError
from leyden.core.grammar.compiler import check_grammar, check_size
from leyden.core.grammar.schemas import SchemaRewriter, check_multiples

ANY_OBJECT = '{"type": "object"}'
"""Text of the schema of any JSON object."""
_OPTIONS: dict[str, object] = {"whitespace_flexible": True, "whitespace_pattern": "[ ]?"}
"""At most one space between two JSON tokens: unlimited white space would let an answer end at its length limit."""


class AnswerFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The format that an answer must have."""

    kind: Literal["json", "regex", "choice", "grammar"]
    text: str
    """A JSON schema, a regular expression, a JSON list of texts, or a grammar with a rule `start`."""
    field: str = ""
    """Name of the field of the request that requires the format, for messages."""
    lenient: bool = False
    """Whether limits of a schema of which no grammar can be made are left out, if there are such."""

    def rule(self) -> str:
        """Return the expression of the format; GrammarError for a `grammar`, which has rules of its own."""
        if self.kind == "json":
            return json_rule(self.text, lenient=self.lenient and why_not(self.text) is not None)
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
        if self.kind == "grammar":
            _check_schemas(self.text)
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
def json_rule(schema: str, *, lenient: bool = False) -> str:
    """Return the expression of JSON that fits `schema`, which is JSON text itself; see `SchemaRewriter`.

    With `lenient`, the rule leaves out the limits of which no grammar can be made. Raises GrammarError for a text that
    is not a schema, or that is too long or too deep.
    """
    check_size(schema)
    try:
        found: object = msgspec.json.decode(schema)
        if isinstance(found, bool):
            found = {} if found else {"enum": []}
        if not isinstance(found, dict):
            raise GrammarError("a JSON schema must be an object")
        rewritten = SchemaRewriter(_has_grammar, lenient=lenient).rewrite(cast("dict[str, Any]", found))
        return "%json " + json.dumps(rewritten | {"x-guidance": _OPTIONS | {"lenient": lenient}}, ensure_ascii=False)
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise GrammarError(f"the schema is not JSON: {error}") from None


@lru_cache(maxsize=128)
def why_not(schema: str, *, lenient: bool = False) -> str | None:
    """Return why no grammar can be made of a JSON schema; None if one can. This may take a second."""
    try:
        _check(f"start: {json_rule(schema, lenient=lenient)}")
    except GrammarError as error:
        return str(error)
    return None


def _check_schemas(grammar: str) -> None:
    """Raise GrammarError for a JSON schema within a grammar that would take too long."""
    for part in grammar.split("%json")[1:]:
        try:
            schema, _ = json.JSONDecoder().raw_decode(part.lstrip())
            check_multiples(schema)
        except (ValueError, RecursionError):
            raise GrammarError("it has a %json that is not followed by a JSON schema") from None


def _has_grammar(pattern: str) -> bool:
    """Whether a grammar can be made of a schema's regular expression."""
    try:
        _check("start: %json " + json.dumps({"type": "string", "pattern": pattern}))
    except GrammarError:
        return False
    return True


@lru_cache(maxsize=128)
def _check(grammar: str) -> None:
    check_grammar(grammar)

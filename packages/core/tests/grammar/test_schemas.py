"""Schemas as frameworks and pydantic write them, with the values that their grammars allow."""

import datetime
import decimal
import json
import pathlib
import re
import uuid
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field, TypeAdapter, create_model

from leyden.core.errors import GrammarError
from leyden.core.grammar.compiler import GrammarCompiler
from leyden.core.grammar.rules import json_rule, why_not
from leyden.core.grammar.schemas import FORMATS, LARGEST, SchemaRewriter
from leyden.core.testing.tiny_tokenizers import CHATML, save_tiny_tokenizer

VOCABULARY, LONGEST = 400, 300
Price = Annotated[decimal.Decimal, Field(max_digits=10, decimal_places=2)]


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Writer:
    """Writes texts that a grammar allows, each token drawn with a weight of its own."""

    def __init__(self, folder: str, stop: int) -> None:
        self._compiler = GrammarCompiler(folder, VOCABULARY)
        self._stop, self._random = stop, np.random.default_rng(0)
        self._weights = np.exp(3 * self._random.random(VOCABULARY))

    def text(self, schema: dict[str, Any], decode: Any) -> str | None:
        """Return a text; None for one that does not end."""
        state, ids = self._compiler.begin(f"start: {json_rule(json.dumps(schema))}"), list[int]()
        bits_W = np.zeros(self._compiler.width, dtype=np.int32)
        while len(ids) < LONGEST:
            state.write_allowed(bits_W)
            allowed = np.unpackbits(bits_W.view(np.uint8), bitorder="little")[:VOCABULARY].nonzero()[0]
            weights = self._weights[allowed]
            token = int(self._random.choice(allowed, p=weights / weights.sum()))
            if token == self._stop:
                return decode(ids)
            state.take(token)
            ids.append(token)
        return None


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return texts that the grammar of a schema allows."""
    import transformers

    folder = tmp_path_factory.mktemp("tokenizer")
    save_tiny_tokenizer(folder, None, CHATML)
    auto: Any = transformers.AutoTokenizer
    tokenizer = auto.from_pretrained(str(folder))
    writer = Writer(str(folder), tokenizer.eos_token_id)

    def write(schema: dict[str, Any], count: int = 40) -> list[str]:
        return [text for _ in range(count) if (text := writer.text(schema, tokenizer.decode)) is not None]

    return write


@pytest.mark.parametrize(
    "kind",
    [
        int, float, datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID,
        Annotated[uuid.UUID, Field(json_schema_extra={"format": "uuid4"})], Annotated[int, Field(multiple_of=5)],
        Annotated[str, Field(pattern=r"^\d{3}-\d{4}$")], dict[Literal["a", "b"], int], Literal[1, "a", None, True],
        int | None, Node,
    ],
)  # fmt: skip
def test_pydantic_takes_every_value_that_is_written(kind: Any, written: Any) -> None:
    model = create_model("Answer", value=(kind, Field(description="of any kind")), level=(int, 3))
    texts = written(model.model_json_schema())
    assert texts
    for text in texts:
        model.model_validate_json(text)


@pytest.mark.parametrize("kind", [pathlib.Path, bytes, Price, re.Pattern])
def test_formats_and_patterns_of_pydantic_are_no_reason_to_refuse(kind: Any) -> None:
    assert why_not(json.dumps(TypeAdapter(kind).json_schema())) is None


def test_integers_have_64_bits(written: Any) -> None:
    for schema in ({"type": "integer"}, {"type": "integer", "minimum": 1}, {"type": "integer", "exclusiveMaximum": 0}):
        values = [json.loads(text) for text in written(schema)]
        assert values and all(-LARGEST <= value <= LARGEST for value in values)
    assert all(0 <= json.loads(text) < 10**21 for text in written({"type": "integer", "minimum": 0, "maximum": 10**21}))


def test_dates_exist(written: Any) -> None:
    day = re.compile(FORMATS["date"])
    assert all(day.fullmatch(date) for date in ("2024-02-29", "2000-02-29", "0400-02-29", "2023-02-28", "0001-12-31"))
    missing = ("2023-02-29", "1900-02-29", "2023-04-31", "0000-01-01", "2023-13-01")
    assert not any(day.fullmatch(date) for date in missing)
    for text in written({"type": "string", "format": "date-time"}):
        datetime.datetime.fromisoformat(json.loads(text))


def test_unnamed_properties_are_not_written(written: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    assert all(set(json.loads(text)) <= {"a"} for text in written(schema))


def test_definitions_of_an_intersection_stay_open(written: Any) -> None:
    definitions = {name: {"type": "object", "properties": {name: {"type": "boolean"}}} for name in "ab"}
    schema = {
        "$defs": {name: found | {"required": [name]} for name, found in definitions.items()},
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    }
    for text in written(schema):
        assert {"a", "b"} <= set(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "pattern": r"\bfoo"}, "lookarounds"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ],
)
def test_limits_without_a_grammar_are_a_reason_unless_they_are_left_out(schema: dict[str, Any], reason: str) -> None:
    assert reason in str(why_not(json.dumps(schema)))
    assert why_not(json.dumps(schema), lenient=True) is None


@pytest.mark.parametrize(
    ("schema", "possible"),
    [
        ({"type": "integer", "multipleOf": 10_000}, True),
        ({"type": "integer", "multipleOf": 10_001}, False),
        ({"type": "integer", "multipleOf": 62_615_533}, False),
        ({"type": "integer", "multipleOf": 10**5000}, False),
        ({"type": "number", "multipleOf": 1e308}, False),
        ({"type": "number", "multipleOf": 0.0001}, True),
        ({"allOf": [{"type": "integer", "multipleOf": 6}, {"type": "integer", "multipleOf": 4}]}, True),
        ({"allOf": [{"type": "integer", "multipleOf": 9973}, {"type": "integer", "multipleOf": 9967}]}, False),
    ],
)
def test_multiples_that_would_take_minutes_are_refused_or_left_out(schema: dict[str, Any], possible: bool) -> None:
    strict = SchemaRewriter(lambda _: True, lenient=False)
    if possible:
        assert "multipleOf" in str(strict.rewrite(schema))
        return
    with pytest.raises(GrammarError, match="a multipleOf is too large"):
        strict.rewrite(schema)
    assert "multipleOf" not in str(SchemaRewriter(lambda _: True, lenient=True).rewrite(schema))

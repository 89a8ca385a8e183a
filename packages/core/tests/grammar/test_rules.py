"""Rules: which answers a format allows, held against the formats' own definitions."""

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.errors import GrammarError
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.grammar.compiler import GrammarCompiler, is_allowed
from leyden.core.grammar.rules import AnswerFormat, json_rule, why_not
from leyden.core.testing.finite_language import SIZE, FiniteLanguage

STRING = {"type": "string"}


@pytest.fixture(scope="module")
def accepts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = FiniteLanguage.save(tmp_path_factory.mktemp("policy"))
    codec, compiler = HuggingFaceCodec(folder), GrammarCompiler(str(folder), SIZE)

    texts = {token: codec.token_bytes(token) for token in range(3, SIZE)}

    def accepts(found: AnswerFormat, text: str) -> bool:
        """Whether the text can be written token by token; of several tokens for it, the grammar may allow only one."""
        rest, state = text.encode(), compiler.begin(found.grammar())
        while True:
            bits_W = np.zeros(compiler.width, dtype=np.int32)
            assert state.write_allowed(bits_W), state.error
            if not rest:
                return is_allowed(bits_W, codec.stop_ids[0])
            fitting = [n for n, one in texts.items() if one and rest.startswith(one) and is_allowed(bits_W, n)]
            if not fitting:
                return False
            state.take(fitting[0])
            rest = rest[len(texts[fitting[0]]) :]

    return accepts


def schema(**keywords: Any) -> AnswerFormat:
    return AnswerFormat(kind="json", text=json.dumps(keywords))


@given(
    choices=st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4),
    other=st.text(min_size=1, max_size=5),
)
def test_choices_are_exactly_the_answers(accepts: Any, choices: list[str], other: str) -> None:
    """Whatever their characters are: slashes, quotes, newlines, marks of regular expressions."""
    found = AnswerFormat(kind="choice", text=json.dumps(choices))

    assert all(accepts(found, choice) for choice in choices)
    assert accepts(found, other) == (other in choices)


@pytest.mark.parametrize("pattern", [r"a/b", r"a\/b", r"\\/", "a\nb", "a\\\nb", r"[/]x", r"(a|b)/(c|d)", r'"\d+"'])
@pytest.mark.parametrize("text", ["a/b", "\\/", "a\nb", "/x", "b/c", '"12"', "a", "/"])
def test_regular_expressions_mean_what_they_mean_elsewhere(accepts: Any, pattern: str, text: str) -> None:
    """Slashes end a regular expression of the grammar, so they must not end the agent's."""
    found = AnswerFormat(kind="regex", text=pattern)

    assert accepts(found, text) == (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize(
    ("found", "fitting", "unfitting"),
    [
        (schema(properties={"a": STRING}), {"a": "x"}, {"a": "x", "b": 1}),
        (schema(properties={"a": STRING}, additionalProperties=True), {"a": "x", "b": 1}, {"a": 1}),
        (schema(properties={"a": STRING}, required=["a", "b"]), {"a": "x", "b": 1}, {"a": "x"}),
        (
            schema(allOf=[{"properties": {"a": STRING}}, {"properties": {"b": STRING}, "required": ["a", "b"]}]),
            {"a": "x", "b": "y"},
            {"a": "x"},
        ),
        (
            schema(
                type="object", properties={"a": STRING}, anyOf=[{"properties": {"b": STRING}, "required": ["a", "b"]}]
            ),
            {"a": "x", "b": "y"},
            {"b": "y"},
        ),
        (
            schema(**{"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"a": STRING}, "required": ["a"]}}}),
            {"a": "x"},
            {},
        ),
        (
            schema(properties={"a": {"type": "array", "items": {"properties": {"b": STRING}}}}),
            {"a": [{"b": "x"}]},
            {"a": [{"c": "x"}]},
        ),
    ],
)
def test_properties_without_a_name_are_left_out_only_where_no_part_needs_them(
    accepts: Any, found: AnswerFormat, fitting: Any, unfitting: Any
) -> None:
    assert accepts(found, json.dumps(fitting))
    assert not accepts(found, json.dumps(unfitting))


def test_a_schema_cannot_set_the_options_of_the_grammar(accepts: Any) -> None:
    found = schema(**{"type": "object", "x-guidance": {"whitespace_pattern": "[ \n]*"}})

    assert accepts(found, "{ }")
    assert not accepts(found, "{\n\n}")


def deep(levels: int) -> str:
    return '{"properties": {"a": ' * levels + "{}" + "}}" * levels


PRODUCT = [{"anyOf": [{"properties": {f"x{i}": {"const": j}}} for j in range(3)]} for i in range(12)]
"""Its parts would be multiplied out."""


@pytest.mark.parametrize(
    "text",
    [
        deep(200),
        deep(2_000),
        '{"items": ' * 100_000 + "{}" + "}" * 100_000,
        json.dumps({"enum": [f"value{n}" for n in range(100_000)]}),
        json.dumps({"description": "x" * (16 << 20)}),
        "[" * 100_000,
        "[]",
        "1",
        "",
        '{"$ref": "https://example.com/schema"}',
        '{"type": "no type"}',
        json.dumps({"allOf": PRODUCT}),
    ],
)
def test_schemas_without_a_grammar_are_refused_quickly(text: str) -> None:
    began = time.process_time()

    with pytest.raises(GrammarError) as refused:
        AnswerFormat(kind="json", text=text).check()

    assert len(str(refused.value)) < 500
    assert time.process_time() - began < 5


def test_true_and_false_are_schemas(accepts: Any) -> None:
    assert accepts(AnswerFormat(kind="json", text="true"), '{"a": [1, null]}')
    assert why_not("false") is not None
    assert json_rule("{}").startswith("%json {")

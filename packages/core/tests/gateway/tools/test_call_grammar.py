"""Grammars of calls: everything that one allows is read back, by the family's own parser, as calls that fit."""

import json
import random
import re
from pathlib import Path
from typing import Any, cast

import jsonschema
import numpy as np
import pytest

from leyden.core.errors import GrammarError
from leyden.core.gateway.codec import Forced
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.gateway.tools.call_grammar import calls_grammar
from leyden.core.gateway.tools.registry import FAMILIES
from leyden.core.grammar.compiler import MAX_GRAMMAR_CHARACTERS, GrammarCompiler, check_grammar, is_allowed
from leyden.core.grammar.rules import AnswerFormat, text_rule
from leyden.core.testing.tiny_tokenizers import CHATML, save_tiny_tokenizer

SIZE = 420
WITH_SYNTAX = [family for family in FAMILIES.values() if family.syntax is not None]
SCHEMAS: dict[str, dict[str, Any]] = {
    "add": {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": -9, "maximum": 99},
            "how": {"enum": ["up", 'qu"ote', "naïve"]},
            "also": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
        "required": ["n", "how"],
    },
    "and": {"type": "object", "properties": {"s": {"type": "string", "maxLength": 4}}, "required": ["s"]},
    "none": {"type": "object", "properties": {}},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": one}} for name, one in SCHEMAS.items()]
CASES = [(Forced(name="and"), True), (Forced(name="add"), False), (Forced(), True), (Forced(), False)]


def codec_of(family: Any, folder: Path, special: bool) -> HuggingFaceCodec:
    """A codec whose template has the family's marks, which are special tokens or plain text."""
    folder.mkdir()
    marks = json.dumps("".join(family.marks), ensure_ascii=False)
    template = f"{{{{ {marks} if false }}}}{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}"
    save_tiny_tokenizer(folder, template, [*CHATML, *(family.tokens if special else ())], end="<|im_end|>")
    return HuggingFaceCodec(folder)


def written(compiler: GrammarCompiler, grammar: str, ends: tuple[int, ...], draw: random.Random) -> list[int] | None:
    """The tokens of a random answer; None for one that does not end soon."""
    ids, state = list[int](), compiler.begin(grammar)
    while len(ids) < 400:
        bits_W = np.zeros(compiler.width, dtype=np.int32)
        assert state.write_allowed(bits_W), state.error
        allowed = [token for token in range(SIZE) if is_allowed(bits_W, token)]
        end = [token for token in allowed if token in ends]
        token = end[0] if end and draw.random() < 0.5 else draw.choice(allowed)
        ids.append(token)
        if token in ends:
            return ids
        state.take(token)
    return None


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("family", WITH_SYNTAX, ids=[name for name, one in FAMILIES.items() if one.syntax])
def test_what_a_grammar_allows_is_read_as_calls_that_fit_their_schemas(
    tmp_path: Path, family: Any, special: bool
) -> None:
    codec, draw = codec_of(family, tmp_path / "policy", special), random.Random(0)
    compiler, several = GrammarCompiler(str(tmp_path / "policy"), SIZE), 0
    for forced, only_one in CASES:
        grammar = codec.grammar(TOOLS, forced, None, only_one_call=only_one)
        found = [written(compiler, grammar, codec.stop_ids, draw) for _ in range(12)]
        answers = [codec.decode([token for token in ids if token not in codec.stop_ids]) for ids in found if ids]
        assert len(answers) > 5
        for text in answers:
            answer = codec.parse(text, TOOLS, forced)
            assert answer.content is None, text
            assert answer.tool_calls[0].name == (forced.name or answer.tool_calls[0].name)
            assert len(answer.tool_calls) == 1 or not only_one
            several += len(answer.tool_calls) > 1
            for call in answer.tool_calls:
                jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
                assert json.loads(call.arguments).keys() <= SCHEMAS[call.name]["properties"].keys()
        if special and (marks := [mark for mark in family.tokens if mark in family.syntax.after]):
            ids = set(compiler._tokenizer.tokenize_str(marks[0], parse_special=True))  # pyright: ignore[reportPrivateUsage]
            assert len(ids) == 1
            assert all(ids & set(one) for one in found if one)

    assert several


@pytest.mark.parametrize("family", WITH_SYNTAX, ids=[name for name, one in FAMILIES.items() if one.syntax])
def test_an_answer_in_a_format_may_be_calls_instead(tmp_path: Path, family: Any) -> None:
    codec, draw = codec_of(family, tmp_path / "policy", special=True), random.Random(1)
    compiler = GrammarCompiler(str(tmp_path / "policy"), SIZE)
    grammar = codec.grammar(TOOLS, None, AnswerFormat(kind="choice", text='["yes", "no"]'))
    kinds = set[str]()
    for _ in range(60):
        ids = written(compiler, grammar, codec.stop_ids, draw)
        if ids is not None:
            answer = codec.parse(codec.decode([token for token in ids if token not in codec.stop_ids]), TOOLS)
            assert bool(answer.tool_calls) != (answer.content in ("yes", "no"))
            kinds.add("calls" if answer.tool_calls else "format")

    assert kinds == {"calls", "format"}


def test_a_grammar_of_the_agent_cannot_be_combined_with_tools(tmp_path: Path) -> None:
    codec = codec_of(WITH_SYNTAX[0], tmp_path / "policy", special=True)
    own = AnswerFormat(kind="grammar", text="start: /a/")

    assert codec.grammar([], None, own) == "start: /a/"
    with pytest.raises(GrammarError, match="cannot be combined"):
        codec.grammar(TOOLS, None, own)


@pytest.mark.parametrize(
    "parameters",
    cast(
        "list[Any]",
        [
            None,
            {},
            {"type": "no type"},
            {"allOf": [{"if": {}}]},
            {"properties": {"a": {"enum": ["x" * MAX_GRAMMAR_CHARACTERS]}}},
            {"$ref": "https://example.com"},
        ],
    ),
)
def test_arguments_without_a_grammar_are_any_object(parameters: Any) -> None:
    syntax: Any = WITH_SYNTAX[0].syntax
    tool: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    lines = calls_grammar(syntax, [tool], None, "", text_rule, only_one=False)

    check_grammar("\n".join(["start: calls", *lines]))
    assert '"type": "object"' in lines[-1]


def test_the_grammar_of_many_large_tools_is_not_too_long() -> None:
    syntax: Any = WITH_SYNTAX[0].syntax
    large = {"type": "object", "properties": {f"p{n}": {"enum": [f"v{n}"]} for n in range(300)}}
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": f"f{n}", "parameters": large}} for n in range(40)
    ]
    grammar = "\n".join(["start: calls", *calls_grammar(syntax, tools, None, "", text_rule, only_one=False)])

    assert MAX_GRAMMAR_CHARACTERS // 4 < len(grammar) < MAX_GRAMMAR_CHARACTERS
    assert len(re.findall(r"^arguments\d+:", grammar, re.MULTILINE)) == 40
    check_grammar(grammar)

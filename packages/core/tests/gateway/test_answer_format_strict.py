"""Formats that a request names, and what is refused with which words."""

import json
from typing import Any

import msgspec
import pytest

from leyden.core.gateway.answer_format import (
    check_format,
    one_format,
    read_guided,
    read_response_format,
    read_text_format,
)
from leyden.core.gateway.model_request import SamplingFields
from leyden.core.gateway.refusal import Refusal
from leyden.core.grammar.rules import ANY_OBJECT

UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


def named(schema: Any, strict: bool | None) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


def test_plain_text_is_no_format() -> None:
    for value in (None, {"type": "text"}):
        assert read_response_format(value) is None and read_text_format(value) is None


def test_both_dialects_read_the_same_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    chat = read_response_format(named(schema, True))
    text = read_text_format({"type": "json_schema", "name": "answer", "schema": schema, "strict": True})
    assert chat is not None and text == msgspec.structs.replace(chat, field="text.format")
    assert json.loads(chat.text) == schema and not chat.lenient
    found = read_response_format({"type": "json_object"})
    assert found is not None and found.text == ANY_OBJECT


def test_a_strict_schema_without_a_grammar_is_refused_with_the_reason() -> None:
    found = read_response_format(named(UNIQUE, True))
    assert found is not None
    with pytest.raises(Refusal, match="uniqueItems") as refused:
        check_format(found)
    assert (refused.value.status, refused.value.body.param) == (400, "response_format.json_schema")


@pytest.mark.parametrize("strict", [None, False])
def test_a_schema_that_is_not_strict_is_followed_as_well_as_possible(strict: bool | None) -> None:
    found = read_response_format(named(UNIQUE, strict))
    assert found is not None and found.lenient
    found.check()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"type": "xml"}, "Invalid value: 'xml'"),
        ({"type": "json_schema", "json_schema": {"name": "no spaces"}}, "letters, digits"),
        ({"type": "json_schema", "json_schema": {"name": "answer"}}, "Missing required parameter"),
        ({"type": "json_schema"}, "Invalid 'response_format.json_schema'"),
    ],
)
def test_an_invalid_format_is_refused(value: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal, match=words):
        read_response_format(value)


def test_only_one_format_is_taken() -> None:
    choice = read_guided(SamplingFields(guided_choice=["yes", "no"]))
    assert choice is not None and choice.rule() == "/yes|no/"
    with pytest.raises(Refusal, match="Only one format"):
        one_format("response_format", choice, read_response_format({"type": "json_object"}))
    with pytest.raises(Refusal, match="guided_choice, guided_json"):
        read_guided(SamplingFields(guided_choice=["yes"], guided_json={}))


@pytest.mark.parametrize(
    "schema", ['{"type": "integer", "multipleOf": 62615533}', '{"mult\\u0069pleOf": 62615533}', "{", "[" * 100_000]
)
def test_a_schema_within_a_grammar_is_checked_too(schema: str) -> None:
    found = read_guided(SamplingFields(guided_grammar=f"start: %json {schema}"))
    assert found is not None
    with pytest.raises(Refusal, match=r"multipleOf|JSON schema"):
        check_format(found)

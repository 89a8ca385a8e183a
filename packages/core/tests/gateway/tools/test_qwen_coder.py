import json
from typing import Any

import pytest

from leyden.core.gateway.codec import Forced, ToolCall
from leyden.core.gateway.tools.family import answer_parser, parse_answer
from leyden.core.gateway.tools.qwen_coder import QWEN_CODER

SCHEMAS: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": ["number", "null"]},
    "flag": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    "note": {"type": ["string", "null"]},
    "items": {"type": "array"},
    "free": {"description": "no type"},
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": SCHEMAS}}}]


def call(*parameters: tuple[str, str]) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function=f>\n{written}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "written", "arguments"),
    [
        ("text", "12", '"12"'),
        ("text", "two\n lines \n", '"two\\n lines \\n"'),
        ("text", 'a "quoted" \\ 語', '"a \\"quoted\\" \\\\ 語"'),
        ("text", "", '""'),
        ("count", "12", "12"),
        ("count", "-1.50e3", "-1.50e3"),
        ("count", "twelve", '"twelve"'),
        ("count", "NaN", '"NaN"'),
        ("count", "1e999", '"1e999"'),
        ("ratio", "None", "null"),
        ("flag", "True", "true"),
        ("flag", "false", "false"),
        ("flag", "null", "null"),
        ("note", "null", "null"),
        ("note", "true", '"true"'),
        ("items", '[1, {"a": "}"}]', '[1, {"a": "}"}]'),
        ("items", "[1, 2", '"[1, 2"'),
        ("free", "12", '"12"'),
        ("unknown", "12", '"12"'),
    ],
)
def test_a_value_is_read_by_the_tools_schema(key: str, written: str, arguments: str) -> None:
    (found,) = parse_answer(answer_parser(QWEN_CODER, TOOLS), call((key, written))).tool_calls
    assert found == ToolCall(name="f", arguments=f'{{"{key}": {arguments}}}')
    json.loads(found.arguments)


@pytest.mark.parametrize("function", [{"name": "f"}, {"name": "f", "parameters": None}, {"name": "g"}])
def test_a_tool_that_says_nothing_of_its_parameters_gets_strings(function: dict[str, Any]) -> None:
    parser = answer_parser(QWEN_CODER, [{"type": "function", "function": function}])
    assert parse_answer(parser, call(("count", "1"))).tool_calls[0].arguments == '{"count": "1"}'


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=f>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>1</parameter></function>",
        "<tool_call>\n<function=f>\ntext</function>\n</tool_call>",
        "<function=f>\n</function>",
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    ],
)
def test_what_is_not_exactly_a_call_stays_content(text: str) -> None:
    answer = parse_answer(answer_parser(QWEN_CODER, TOOLS), text)
    assert (answer.content, answer.tool_calls) == (text, ())


def test_a_forced_call_without_the_end_of_its_function_is_whole() -> None:
    text = "<parameter=text>\none\n</parameter>\n</tool_call>"
    answer = parse_answer(answer_parser(QWEN_CODER, TOOLS, Forced("f")), text)
    assert answer.tool_calls == (ToolCall(name="f", arguments='{"text": "one"}'),)
    assert answer.content is None

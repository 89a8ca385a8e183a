import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.gateway.codec import AnswerPart, ToolCall
from leyden.core.gateway.tools.family import CallParser, collect, parse_answer
from leyden.core.gateway.tools.registry import FAMILIES, tool_family

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, "x"]}}\n</tool_call>'
ADD_CALL = ToolCall(name="add", arguments='{"a": 1, "b": [2, "x"]}')
PIECES = st.sampled_from([
    ADD, "<tool_call>", "</tool_call>", "<tool", "_call>", '{"name": "f", "arguments": {}}', '"arguments"', "{", "}",
    '<tool_call>{"name": "f", "arguments": {"s": "</tool_call><tool_call>"}}</tool_call>',
    " ", "\n\n", "é", "text", "<",
])  # fmt: skip
ANSWERS = st.lists(PIECES, max_size=12).map("".join)


def parsed(text: str) -> tuple[str | None, list[ToolCall]]:
    answer = parse_answer(CallParser(FAMILIES["hermes"], []), text)
    return answer.content, list(answer.tool_calls)


def test_a_call_is_read_and_its_arguments_stay_as_written() -> None:
    assert parsed(ADD) == (None, [ADD_CALL])


def test_content_around_calls_is_kept_and_the_space_between_is_not() -> None:
    assert parsed(f" Let me see.\n{ADD}\n {ADD}\n Done. ") == (" Let me see.Done. ", [ADD_CALL, ADD_CALL])


def test_tags_inside_a_string_do_not_end_the_call() -> None:
    arguments = json.dumps({"s": "</tool_call> <tool_call>"})
    text = f'<tool_call>{{"name": "echo", "arguments": {arguments}}}</tool_call>'
    assert parsed(text) == (None, [ToolCall(name="echo", arguments=arguments)])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just text",
        '<tool_call>{"name": "add", "arguments": {}}',
        '{"name": "add", "arguments": {}}</tool_call>',
        "<tool_call>add(1, 2)</tool_call>",
        '<tool_call>{"name": "add"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": }}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {}} and more</tool_call>',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
        '<tool_call>{"name": "add", "arguments": {"a": ' + "[" * 100_000 + "</tool_call>",
        " <tool_call> ",
    ],
)
def test_what_is_not_exactly_a_call_stays_content(text: str) -> None:
    assert parsed(text) == (text, [])


def test_a_good_call_after_a_bad_one_is_read() -> None:
    assert parsed(f"<tool_call>oops {ADD}") == ("<tool_call>oops", [ADD_CALL])


@given(ANSWERS, st.data())
def test_the_way_the_text_is_cut_changes_nothing(text: str, data: st.DataObject) -> None:
    parser, parts = CallParser(FAMILIES["hermes"], []), list[AnswerPart]()
    rest = text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        parts += parser.push(rest[:size])
        rest = rest[size:]
    parts += parser.finish()
    assert collect(parts) == parse_answer(CallParser(FAMILIES["hermes"], []), text)


@given(ANSWERS)
def test_nothing_but_space_is_lost_or_invented(text: str) -> None:
    content, calls = parsed(text)
    written = "".join(call.name + call.arguments for call in calls)
    kept = (content or "") + written + '<tool_call>{"name":"","arguments":}</tool_call>' * len(calls)
    assert sorted("".join(kept.split())) == sorted("".join(text.split()))


def test_content_streams_before_the_end_but_not_what_may_become_a_call() -> None:
    parser = CallParser(FAMILIES["hermes"], [])
    assert parser.push("Hello <tool") == ["Hello"]
    assert parser.push("box> and <") == [" <toolbox> and"]
    assert parser.finish() == [" <"]


def test_a_family_is_known_by_its_template() -> None:
    assert (
        tool_family('{% for t in tools %}<tool_call>{"name": ..., "arguments": ...}</tool_call>') is FAMILIES["hermes"]
    )
    assert tool_family("{{ messages }}") is None

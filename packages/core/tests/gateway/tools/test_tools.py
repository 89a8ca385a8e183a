"""What holds for every family of tool calls: each is written here the way its templates write it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leyden.core.gateway.codec import AnswerParser, AnswerPart, Codec, Forced, ParsedAnswer, ToolCall, ToolDefinition
from leyden.core.gateway.tools import deepseek
from leyden.core.gateway.tools.cursor import Cursor, Reading
from leyden.core.gateway.tools.family import CallParser, answer_parser, collect, parse_answer
from leyden.core.gateway.tools.registry import FAMILIES, tool_family
from leyden.core.testing.byte_codec import ByteCodec

Arguments = dict[str, Any]
Writer = Callable[[Sequence[tuple[str, Arguments]]], str]

STRING = {"type": "string"}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {"a": STRING, "b": STRING}}}}
    for name in ("add", "find")
]


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def hermes(calls: Sequence[tuple[str, Arguments]]) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {dumps(arguments)}}}\n</tool_call>' for name, arguments in calls
    )


def qwen_coder(calls: Sequence[tuple[str, Arguments]]) -> str:
    def one(name: str, arguments: Arguments) -> str:
        written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"

    return "\n".join(one(*call) for call in calls)


def llama(calls: Sequence[tuple[str, Arguments]]) -> str:
    return "; ".join(f'{{"name": "{name}", "parameters": {dumps(arguments)}}}' for name, arguments in calls)


def pythonic(calls: Sequence[tuple[str, Arguments]]) -> str:
    def one(name: str, arguments: Arguments) -> str:
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"

    return f"[{', '.join(one(*call) for call in calls)}]"


def mistral(calls: Sequence[tuple[str, Arguments]], space: str = " ") -> str:
    listed = ", ".join(f'{{"name": "{name}", "arguments": {dumps(arguments)}}}' for name, arguments in calls)
    return f"[TOOL_CALLS]{space}[{listed}]"


def mistral_args(calls: Sequence[tuple[str, Arguments]], call_id: str = "") -> str:
    return "".join(f"[TOOL_CALLS]{name}{call_id}[ARGS]{dumps(arguments)}" for name, arguments in calls)


def deepseek_v3(calls: Sequence[tuple[str, Arguments]]) -> str:
    written = "\n".join(
        f"{deepseek.CALL}function{deepseek.SEPARATOR}{name}\n```json\n{dumps(arguments)}\n```{deepseek.END_CALL}"
        for name, arguments in calls
    )
    return deepseek.CALLS + written + deepseek.END_CALLS


def deepseek_31(calls: Sequence[tuple[str, Arguments]]) -> str:
    written = "".join(
        f"{deepseek.CALL}{name}{deepseek.SEPARATOR}{dumps(arguments)}{deepseek.END_CALL}" for name, arguments in calls
    )
    return deepseek.CALLS + written + deepseek.END_CALLS


WRITERS: dict[str, Writer] = {
    "qwen-coder": qwen_coder,
    "hermes": hermes,
    "mistral-call-id": lambda calls: mistral_args(calls, "[CALL_ID]a1B2c3D4e"),
    "mistral-args": mistral_args,
    "mistral": mistral,
    "mistral-tekken": lambda calls: mistral(calls, ""),
    "deepseek": deepseek_v3,
    "deepseek-3.1": deepseek_31,
    "pythonic": pythonic,
    "llama": llama,
    "llama-4": llama,
}
ANY_FAMILY = st.sampled_from(sorted(FAMILIES))
FRAGMENTS = [
    *"{}[]()\"'\\:;,= \n", "add", "find", '"name": "add"', '"arguments": {}', '{"name": "add", "parameters": {"a": 1}}',
    "</function>", "<function=add>", "<parameter=a>", "</parameter>", "[CALL_ID]", "[ARGS]", "```json\n", "\n```",
    "add(a=1)", "text", "語", "a=", "}}\n", *(token for family in FAMILIES.values() for token in family.tokens),
]  # fmt: skip
TRICKY = st.text(st.sampled_from('ab {}[]()"\\;,=:<>語🙂\n\t\u2028'), max_size=12) | st.sampled_from(
    ["</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", deepseek.END_CALL, "```", "<tool_call>", "true", "1"]
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["add", "find"]), st.dictionaries(st.sampled_from("ab"), TRICKY)), min_size=1, max_size=3
)


def parser_of(family: str, forced: Forced | None = None) -> AnswerParser:
    return answer_parser(FAMILIES[family], TOOLS, forced)


def parsed_in_pieces(parser: AnswerParser, text: str, data: st.DataObject) -> ParsedAnswer:
    parts = list[AnswerPart]()
    while text:
        size = data.draw(st.integers(1, min(len(text), 9)))
        parts += parser.push(text[:size])
        text = text[size:]
    return collect([*parts, *parser.finish()])


def decoded(calls: Sequence[ToolCall]) -> list[tuple[str, Arguments]]:
    return [(call.name, json.loads(call.arguments)) for call in calls]


def broken(text: str) -> st.SearchStrategy[str]:
    """Texts near `text`: cut off, or with something in it that does not belong there."""
    positions, wrong = st.integers(0, len(text)), st.sampled_from(FRAGMENTS)
    return st.tuples(positions, wrong, st.booleans()).map(
        lambda change: text[: change[0]] + (change[1] + text[change[0] :] if change[2] else "")
    )


@given(ANY_FAMILY, CALLS, st.data())
def test_calls_are_read_as_they_were_meant_however_they_arrive(
    family: str, calls: list[tuple[str, Arguments]], data: st.DataObject
) -> None:
    text = WRITERS[family](calls)
    answer = parsed_in_pieces(parser_of(family), text, data)
    assert decoded(answer.tool_calls) == calls
    assert answer.content is None


@pytest.mark.parametrize("family", FAMILIES)
def test_content_may_stand_around_calls(family: str) -> None:
    marked = FAMILIES[family].mark if family in ("pythonic", "llama", "llama-4") else ""
    text = f" Let me see. \n{marked}{WRITERS[family]([('add', {'a': '1'})])}\nDone. "
    answer = parse_answer(parser_of(family), text)
    assert answer.content == " Let me see.Done. "
    assert decoded(answer.tool_calls) == [("add", {"a": "1"})]


@settings(max_examples=200)
@given(ANY_FAMILY, CALLS, st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join), st.data())
def test_the_way_the_text_is_cut_changes_nothing(
    family: str, calls: list[tuple[str, Arguments]], noise: str, data: st.DataObject
) -> None:
    text = data.draw(broken(WRITERS[family](calls)))
    text = data.draw(st.sampled_from([noise, text, noise + text, text + noise]))
    whole = parse_answer(parser_of(family), text)
    assert parsed_in_pieces(parser_of(family), text, data) == whole
    assert whole.tool_calls or whole.content == text
    for call in whole.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_tools_nothing_is_a_call(family: str) -> None:
    text = WRITERS[family]([("add", {})])
    assert parse_answer(answer_parser(FAMILIES[family], []), text).content == text


@given(ANY_FAMILY, CALLS, st.booleans(), st.data())
def test_a_forced_call_goes_on_from_its_opening(
    family: str, calls: list[tuple[str, Arguments]], named: bool, data: st.DataObject
) -> None:
    text, forced = WRITERS[family](calls), Forced(calls[0][0] if named else None)
    opening = FAMILIES[family].opening(forced)
    assert text.startswith(opening)
    answer = parsed_in_pieces(parser_of(family, forced), text.removeprefix(opening), data)
    assert decoded(answer.tool_calls) == calls


@settings(max_examples=200)
@given(ANY_FAMILY, CALLS, st.booleans(), st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join), st.data())
def test_a_forced_answer_always_calls(
    family: str, calls: list[tuple[str, Arguments]], named: bool, noise: str, data: st.DataObject
) -> None:
    forced = Forced("add" if named else None)
    rest = WRITERS[family]([("add", calls[0][1])]).removeprefix(FAMILIES[family].opening(forced))
    text = data.draw(st.sampled_from([noise, data.draw(broken(rest)), noise + rest]))
    whole = parse_answer(parser_of(family, forced), text)
    assert whole.tool_calls
    assert not named or whole.tool_calls[0].name == "add"
    assert parsed_in_pieces(parser_of(family, forced), text, data) == whole


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("named", [True, False])
def test_a_forced_call_that_is_cut_off_keeps_what_was_written(family: str, named: bool) -> None:
    forced = Forced("add" if named else None)
    rest = WRITERS[family]([("add", {"a": "one; two [3] words"})]).removeprefix(FAMILIES[family].opening(forced))
    (call,) = parse_answer(parser_of(family, forced), rest[: rest.index("words")]).tool_calls
    assert call.name == "add"
    assert call.arguments.endswith("one; two [3] ")
    with pytest.raises(json.JSONDecodeError):
        json.loads(call.arguments)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forced_call_that_is_cut_off_in_its_name_has_the_name_so_far(family: str) -> None:
    (call,) = parse_answer(parser_of(family, Forced()), "ad").tool_calls
    assert (call.name, call.arguments) == ("ad", "{" if family == "qwen-coder" else "")


def test_a_forced_call_that_forgets_to_close_is_whole_and_what_follows_is_read() -> None:
    text = f' {{"a": 1}}\n</tool_call>\n{hermes([("find", {})])}'
    answer = parse_answer(parser_of("hermes", Forced("add")), text)
    assert decoded(answer.tool_calls) == [("add", {"a": 1}), ("find", {})]
    assert answer.content is None


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ('{"name": <function-name>, "arguments": <args-json-object>}</tool_call><tool_call>', "hermes"),
        (r"{{- '<tool_call>\n{\"name\": \"' }}{{- '\", \"arguments\": ' }}{{- '}\n</tool_call>' }}", "hermes"),
        ("<tool_call>\n<function=f>\n<parameter=p>\nv\n</parameter>\n</function>\n</tool_call>", "qwen-coder"),
        ('<tool_call>{{ name }}\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n</tool_call>', None),
        ("""<|start_header_id|>{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}""", "llama"),
        ("""<|header_start|>{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}""", "llama-4"),
        ("<|start_header_id|> [func_name1(params_name1=params_value1, params_name2=params_value2...)]", "pythonic"),
        ('{{- "[TOOL_CALLS] [" }}', "mistral"),
        ('{{- "[TOOL_CALLS][" }}', "mistral-tekken"),
        ("{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}", "mistral-args"),
        ("{{- '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' + arguments }}", "mistral-call-id"),
        (deepseek_v3([("f", {})]), "deepseek"),
        (deepseek_31([("f", {})]), "deepseek-3.1"),
        ("{{ messages }}", None),
    ],
)  # fmt: skip
def test_a_family_is_known_by_its_template(template: str, family: str | None) -> None:
    assert tool_family(template) is (FAMILIES[family] if family else None)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_is_begun_once_and_read_on_as_it_arrives(family: str) -> None:
    begun = 0

    def read(cursor: Cursor, tools: Sequence[ToolDefinition]) -> Reading[None]:
        nonlocal begun
        begun += 1
        yield from FAMILIES[family].read(cursor, tools)

    parser, parts = CallParser(replace(FAMILIES[family], read=read), TOOLS), list[AnswerPart]()
    for char in WRITERS[family]([("add", {"a": "語 {" * 50})]):
        parts += parser.push(char)
    assert decoded(collect([*parts, *parser.finish()]).tool_calls) == [("add", {"a": "語 {" * 50})]
    assert begun == 1


@given(ANY_FAMILY, st.lists(st.sampled_from([" ", "\n", "\t "]), max_size=20))
def test_white_space_that_nothing_follows_is_content(family: str, pieces: list[str]) -> None:
    parser = parser_of(family)
    assert [part for piece in pieces for part in parser.push(piece)] == []
    assert collect(parser.finish()).content == "".join(pieces)


class _AtOnce(ByteCodec):
    """A codec that cannot parse as it goes."""

    def parser(self, tools: Sequence[ToolDefinition], forced: Forced | None = None) -> AnswerParser:
        return Codec.parser(self, tools, forced)

    def parse(self, text: str, tools: Sequence[ToolDefinition], forced: Forced | None = None) -> ParsedAnswer:
        return parse_answer(ByteCodec().parser(tools, forced), text)


@pytest.mark.parametrize("tools", [[], TOOLS])
@pytest.mark.parametrize("forced", [None, Forced("add"), Forced()])
def test_every_codec_reads_a_stream_as_it_reads_the_whole(tools: list[ToolDefinition], forced: Forced | None) -> None:
    text = hermes([("add", {"a": "1"})]).removeprefix(FAMILIES["hermes"].opening(forced) if forced else "")
    for codec in (ByteCodec(), _AtOnce()):
        parser, whole = codec.parser(tools, forced), codec.parse(text, tools, forced)
        assert collect([*parser.push(text[:9]), *parser.push(text[9:]), *parser.finish()]) == whole
        assert bool(whole.tool_calls) == bool(tools or forced)


def test_the_byte_codec_begins_a_forced_call_after_the_same_prompt() -> None:
    codec, messages = ByteCodec(), [{"role": "user", "content": "x"}]
    prompt, begun = codec.encode(messages, TOOLS), codec.encode(messages, TOOLS, Forced("add"))
    assert begun[: len(prompt)] == prompt
    assert codec.decode(begun[len(prompt) :]) == '<tool_call>\n{"name": "add", "arguments":'

"""Llama's two ways to write calls, as JSON and as Python, neither of which needs a mark."""

import json
from pathlib import Path
from typing import Any

import pytest

from leyden.core.errors import GatewayError
from leyden.core.gateway.codec import Forced, Message, ToolCall
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.gateway.tools.family import answer_parser, collect, parse_answer
from leyden.core.gateway.tools.llama import LLAMA, ONE_CALL, one_call_a_message
from leyden.core.gateway.tools.pythonic import PYTHONIC
from leyden.core.testing.tiny_tokenizers import save_tiny_tokenizer

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("add", "find")]
ADD = '{"name": "add", "parameters": {"a": 1}}'
TEMPLATE = """{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system, messages = messages[0].content, messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' ~ system ~ '<|eot_id|>' }}
{%- for m in messages %}
    {%- if 'tool_calls' in m %}
        {%- if m.tool_calls | length != 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {%- set call = m.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
    {%- elif m.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' ~ ({'output': m.content} | tojson) ~ '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' ~ m.content | trim ~ '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
"""Writes messages in Llama 3.1's format, and refuses what its template refuses."""
SPECIAL = [
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|python_tag|>",
    "<|eom_id|>",
    "<|eot_id|>",
]
ADD_CALL = ToolCall(name="add", arguments='{"a": 1}')


def parsed(text: str) -> tuple[str | None, list[ToolCall]]:
    answer = parse_answer(answer_parser(LLAMA, TOOLS), text)
    return answer.content, list(answer.tool_calls)


def python_calls(text: str) -> list[tuple[str, Any]]:
    answer = parse_answer(answer_parser(PYTHONIC, TOOLS), text)
    assert answer.content is None
    return [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]


@pytest.mark.parametrize(
    "text",
    [
        ADD,
        f" {ADD}\n",
        f"<|python_tag|>{ADD}",
        '{"type": "function", "name": "add", "parameters": {"a": 1}}',
        '{"arguments": {"a": 1}, "name": "add"}',
    ],
)
def test_a_call_is_read(text: str) -> None:
    assert parsed(text) == (None, [ADD_CALL])


@pytest.mark.parametrize("between", ["; ", ";", "\n", "\n;\n", "", "<|python_tag|>"])
def test_calls_may_stand_one_after_another(between: str) -> None:
    assert parsed(f"{ADD}{between}{ADD}") == (None, [ADD_CALL, ADD_CALL])


def test_what_follows_calls_is_content() -> None:
    assert parsed(f"{ADD}; and so on") == ("; and so on", [ADD_CALL])
    assert parsed(f"{ADD}\n{{}}") == ("{}", [ADD_CALL])


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 4}',
        '{"name": "someone", "parameters": {}}',
        f"I say {ADD}",
        '{"name": "add", "parameters": "{}"}',
        '<|python_tag|>add.call(a="1")',
        f"; {ADD}",
    ],
)
def test_what_is_not_exactly_a_call_stays_content(text: str) -> None:
    assert parsed(text) == (text, [])


def test_the_tag_makes_a_call_of_any_name() -> None:
    assert parsed('<|python_tag|>{"name": "new", "parameters": {}}') == (None, [ToolCall(name="new", arguments="{}")])


def test_content_in_json_streams_as_soon_as_it_names_no_tool() -> None:
    parser = answer_parser(LLAMA, TOOLS)
    assert parser.push('{"answer": [1, ') == []
    assert parser.push("2]}") == ['{"answer": [1, 2]}']


def test_no_call_without_the_tag_begins_in_the_middle_of_content() -> None:
    parser = answer_parser(LLAMA, TOOLS)
    assert parser.push("I say") == ["I say"]
    assert collect([*parser.push(f" {ADD}"), *parser.push(f"\n{ADD}"), *parser.finish()]).tool_calls == ()
    assert parser.push(f"<|python_tag|>{ADD}") == [ADD_CALL]


def test_python_values_become_json() -> None:
    text = r"""[add(a=-1.5, b='it\'s', c="语", d=[1, (2, None)], e={'k': "]"}), find(f=true, g=False, h=null)]"""
    assert python_calls(text) == [
        ("add", {"a": -1.5, "b": "it's", "c": "语", "d": [1, [2, None]], "e": {"k": "]"}}),
        ("find", {"f": True, "g": False, "h": None}),
    ]


def test_python_calls_may_stand_after_the_tag_and_over_several_lines() -> None:
    assert python_calls("<|python_tag|>[\n  add(\n a=1\n),\n find()\n]") == [("add", {"a": 1}), ("find", {})]


def test_what_follows_a_python_call_is_content_when_the_list_does_not_go_on() -> None:
    answer = parse_answer(answer_parser(PYTHONIC, TOOLS), "[add(a=1)}] text")
    assert (answer.content, answer.tool_calls) == ("}] text", (ADD_CALL,))


def test_an_escape_that_python_does_not_know_is_kept() -> None:
    assert python_calls(r"[find(pattern='\d+')]") == [("find", {"pattern": r"\d+"})]


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "[link](address)",
        "[someone(a=1)]",
        "[add(1)]",
        "[add(a=b)]",
        "[add(a=1, a=2)]",
        "[add(**{})]",
        "[add(a=1e999)]",
        "[add(a='\\ud800')]",
        "[add(a={1: 2})]",
        "[add(a=b'x')]",
        "[add(a=" + "[" * 100 + "]" * 100 + ")]",
        "[add(a=(1]))]",
        "I say [add(a=1)]",
        "[add(a=1",
    ],
)
def test_a_list_of_anything_else_is_content(text: str) -> None:
    answer = parse_answer(answer_parser(PYTHONIC, TOOLS), text)
    assert (answer.content, answer.tool_calls) == (text, ())


def test_calls_get_messages_of_their_own_only_where_the_template_wants_it() -> None:
    def call(call_id: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": "add", "arguments": {}}}

    messages: list[Message] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "assistant", "content": "done"},
    ]
    assert one_call_a_message(messages, "any template") == messages
    spread = one_call_a_message(messages, f"...{ONE_CALL} at once!...")
    assert [(m["role"], [c["id"] for c in m.get("tool_calls", ())], m["content"]) for m in spread] == [
        ("user", [], "x"),
        ("assistant", ["a"], ""),
        ("tool", [], "1"),
        ("assistant", ["b"], ""),
        ("tool", [], "2"),
        ("assistant", [], "done"),
    ]


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceCodec:
    path: Path = tmp_path_factory.mktemp("llama")
    save_tiny_tokenizer(path, TEMPLATE, SPECIAL)
    return HuggingFaceCodec(path)


def shown(codec: HuggingFaceCodec, ids: list[int]) -> str:
    return codec._tokenizer.decode(ids)  # pyright: ignore[reportPrivateUsage]  # control tokens as well


def test_a_conversation_is_rendered_as_llama_reads_it(codec: HuggingFaceCodec) -> None:
    def call(call_id: str, arguments: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": "add", "arguments": arguments}}

    calls = [call("call_1", '{"a": "語"}'), call("call_2", "")]
    prompt = codec.encode(
        [
            {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
            {"role": "user", "name": "someone", "content": "add"},
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_1", "content": "1"},
            {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "2"}]},
        ],
        TOOLS,
    )

    def turn(role: str, text: str) -> str:
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>"

    assert shown(codec, prompt) == (
        "<|begin_of_text|>"
        + turn("system", "Be brief.")
        + turn("user", "add")
        + turn("assistant", '{"name": "add", "parameters": {"a": "語"}}')
        + turn("ipython", '{"output": "1"}')
        + turn("assistant", '{"name": "add", "parameters": {}}')
        + turn("ipython", '{"output": "2"}')
        + turn("assistant", "").removesuffix("<|eot_id|>")
    )


def test_llamas_answers_are_read_and_forced(codec: HuggingFaceCodec) -> None:
    ids = codec._tokenizer(f"<|python_tag|>{ADD}<|eom_id|>")["input_ids"]  # pyright: ignore[reportPrivateUsage]  # as above
    assert codec.parse(codec.decode(ids), TOOLS).tool_calls == (ADD_CALL,)
    assert {codec._tokenizer.convert_tokens_to_ids(end) for end in ("<|eot_id|>",)} <= set(codec.stop_ids)  # pyright: ignore[reportPrivateUsage]  # as above
    forced = codec.encode([{"role": "user", "content": "x"}], TOOLS, Forced("add"))
    assert shown(codec, forced).endswith('<|end_header_id|>\n\n{"name": "add", "parameters":')
    assert codec.parse(' {"a": 1}}', TOOLS, Forced("add")).tool_calls == (ADD_CALL,)


def test_a_result_without_its_call_is_still_rendered(codec: HuggingFaceCodec) -> None:
    messages: list[Message] = [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "c", "content": "1"}]
    assert '{"output": "1"}' in shown(codec, codec.encode(messages))
    with pytest.raises(GatewayError):
        codec.encode([{"role": "user"}, {"role": "assistant", "tool_calls": [{"id": "c"}]}])

import json
from pathlib import Path

import pytest

from leyden.core.errors import GatewayError
from leyden.core.gateway.codec import Forced, Message, ToolCall
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.gateway.tools.family import answer_parser, parse_answer
from leyden.core.gateway.tools.mistral import MISTRAL, mistral_messages, nine_characters
from leyden.core.testing.tiny_tokenizers import save_tiny_tokenizer

TOOLS = [{"type": "function", "function": {"name": "add"}}]
SPECIAL = [
    "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[ARGS]", "</s>",
]  # fmt: skip
CHECK = "{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}"
TEMPLATE = (
    """{%- if messages[0].role == 'system' %}
    {%- set system, messages = messages[0].content, messages[1:] %}
{%- endif %}
{{- bos_token }}
{%- set place = namespace(n=0) %}
{%- for m in messages if m.role in ('user', 'assistant') and m.tool_calls is undefined %}
    {%- if (m.role == 'user') != (place.n % 2 == 0) %}
        {{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set place.n = place.n + 1 %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {%- if loop.last and tools %}{{- '[AVAILABLE_TOOLS] ' ~ (tools | tojson) ~ '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST] ' ~ (system ~ '\\n\\n' if loop.last and system is defined) ~ m.content ~ '[/INST]' }}
    {%- elif m.tool_calls is defined %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in m.tool_calls %}
            {%- if call.id | length != 9 %}CHECK{%- endif %}
            {{- (call.function | tojson)[:-1] ~ ', "id": "' ~ call.id ~ '"}' ~ (', ' if not loop.last else ']') }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif m.role == 'tool' %}
        {%- if m.tool_call_id | length != 9 %}CHECK{%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' ~ m.content ~ ', "call_id": "' ~ m.tool_call_id ~ '"}[/TOOL_RESULTS]' }}
    {%- elif m.role == 'assistant' %}
        {{- ' ' ~ m.content ~ eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""
).replace("CHECK", CHECK)
"""Writes messages in the format of version 3, and refuses what its template refuses."""
ADD_CALL = ToolCall(name="add", arguments='{"a": "[}"}')


def parsed(text: str) -> tuple[str | None, list[ToolCall]]:
    answer = parse_answer(answer_parser(MISTRAL, TOOLS), text)
    return answer.content, list(answer.tool_calls)


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": "[}"}, "id": "123456789"}]',
        '[TOOL_CALLS][{"arguments": {"a": "[}"}, "name": "add"}]',
        '[TOOL_CALLS]add[ARGS]{"a": "[}"}',
        '[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{"a": "[}"}',
        '[TOOL_CALLS]add{"a": "[}"}',
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": "[}"}}',
    ],
)
def test_every_version_of_the_format_is_read(text: str) -> None:
    assert parsed(text) == (None, [ADD_CALL])


def test_calls_of_a_list_are_given_out_one_by_one() -> None:
    parser = answer_parser(MISTRAL, TOOLS)
    assert parser.push('[TOOL_CALLS] [{"name": "add", "arguments": {"a": "[}"}}') == [ADD_CALL]
    assert parser.push(', {"name": "add", "arguments": {}}') == [ToolCall(name="add", arguments="{}")]
    assert parser.push("]") + parser.finish() == []


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]",
        "[TOOL_CALLS]add[ARGS]",
        "[TOOL_CALLS]add[ARGS][1]",
        "[TOOL_CALLS][ARGS]{}",
        '[TOOL_CALLS] [{"name": "add"}]',
        '[TOOL_CALLS] [{"name": "\\ud800", "arguments": {}}]',
        '[{"name": "add", "arguments": {}}]',
    ],
)
def test_what_is_not_exactly_a_call_stays_content(text: str) -> None:
    assert parsed(text) == (text, [])


def test_ids_become_nine_letters_and_digits_and_stay_the_same() -> None:
    ids = [f"call_{index:024x}" for index in range(200)] + ["", "call_1", "toolu_01A-b"]
    short = [nine_characters(call_id) for call_id in ids]
    assert all(len(call_id) == 9 and call_id.isalnum() and call_id.isascii() for call_id in short)
    assert len(set(short)) == len(ids)
    assert [nine_characters(call_id) for call_id in short] == short


def test_messages_take_turns_after_one_system_message() -> None:
    call: Message = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {}}}
    messages: list[Message] = [
        {"role": "system", "content": "one"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "system", "content": "two"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    before = json.dumps(messages)
    joined = mistral_messages(messages, "")
    assert json.dumps(messages) == before
    assert [(message["role"], message["content"]) for message in joined] == [
        ("system", "one\n\ntwo"),
        ("user", "a\n\nb"),
        ("assistant", ""),
        ("tool", "1"),
        ("assistant", "c\n\nd"),
    ]
    assert joined[2]["tool_calls"][0]["id"] == joined[3]["tool_call_id"] == nine_characters("call_1")


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceCodec:
    path: Path = tmp_path_factory.mktemp("mistral")
    save_tiny_tokenizer(path, TEMPLATE, SPECIAL)
    return HuggingFaceCodec(path)


def shown(codec: HuggingFaceCodec, ids: list[int]) -> str:
    return codec._tokenizer.decode(ids)  # pyright: ignore[reportPrivateUsage]  # control tokens as well


def test_a_conversation_is_rendered_as_mistral_reads_it(codec: HuggingFaceCodec) -> None:
    ids = [f"call_{index:024x}" for index in (1, 2)]
    calls = [
        {"id": call_id, "type": "function", "function": {"arguments": '{"a": 1}', "name": "add"}} for call_id in ids
    ]
    first, second = map(nine_characters, ids)
    prompt = codec.encode(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": ids[0], "content": "1"},
            {"role": "tool", "tool_call_id": ids[1], "content": "2"},
            {"role": "assistant", "content": "3"},
            {"role": "user", "content": "c"},
        ]
    )
    assert shown(codec, prompt) == (
        "<s>[INST] a\n\nb[/INST]"
        f'[TOOL_CALLS] [{{"name": "add", "arguments": {{"a": 1}}, "id": "{first}"}}, '
        f'{{"name": "add", "arguments": {{"a": 1}}, "id": "{second}"}}]</s>'
        f'[TOOL_RESULTS] {{"content": 1, "call_id": "{first}"}}[/TOOL_RESULTS]'
        f'[TOOL_RESULTS] {{"content": 2, "call_id": "{second}"}}[/TOOL_RESULTS]'
        " 3</s>[INST] Be brief.\n\nc[/INST]"
    )


def test_mistrals_answers_are_read_and_forced(codec: HuggingFaceCodec) -> None:
    text = '[TOOL_CALLS] [{"name": "add", "arguments": {"a": "[}"}}]</s>'
    ids = codec._tokenizer(text)["input_ids"]  # pyright: ignore[reportPrivateUsage]  # as above
    assert codec.parse(codec.decode(ids), TOOLS).tool_calls == (ADD_CALL,)
    forced = codec.encode([{"role": "user", "content": "x"}], TOOLS, Forced("add"))
    assert shown(codec, forced).endswith('x[/INST][TOOL_CALLS] [{"name": "add", "arguments":')
    assert codec.parse(' {"a": "[}"}}]', TOOLS, Forced("add")).tool_calls == (ADD_CALL,)


def test_turns_that_cannot_be_put_right_are_one_clear_error(codec: HuggingFaceCodec) -> None:
    with pytest.raises(GatewayError, match="must alternate"):
        codec.encode([{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}])

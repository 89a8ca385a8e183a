"""The codec on a real tokenizer and template, made here; what transformers itself renders is the reference."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leyden.core.errors import GatewayError, PolicyError
from leyden.core.gateway.codec import AnswerPart, Forced, ToolCall
from leyden.core.gateway.codecs import huggingface
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.gateway.codecs.text import TextStream
from leyden.core.gateway.tools.family import collect
from leyden.core.testing.tiny_tokenizers import CHATML, save_tiny_tokenizer

TEMPLATE = """{%- if messages[0].role == 'tool' -%}{{ raise_exception('a tool cannot speak first') }}{%- endif -%}
{%- if tools -%}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call as <tool_call>{...}</tool_call><|im_end|>
{% endif -%}
{%- for m in messages -%}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
MARKS = ["<tool_call>", "</tool_call>"]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SUPPRESSED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy")
    _save(path, TEMPLATE)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    return path


@pytest.fixture(scope="module")
def codec(folder: Path) -> HuggingFaceCodec:
    return HuggingFaceCodec(folder)


def _save(path: Path, template: str | None) -> None:
    """Save a tokenizer whose tool marks are control tokens, the harder case."""
    save_tiny_tokenizer(path, template, [*CHATML, *MARKS], end="<|im_end|>")


def _codec(path: Path, template: str) -> HuggingFaceCodec:
    _save(path, template)
    return HuggingFaceCodec(path)


def test_the_prompt_is_what_transformers_renders(codec: HuggingFaceCodec, folder: Path) -> None:
    import transformers

    auto: Any = transformers.AutoTokenizer
    tokenizer = auto.from_pretrained(folder)
    messages = [{"role": "user", "content": "one and two"}]
    reference = tokenizer.apply_chat_template(messages, tools=[TOOL], add_generation_prompt=True, return_dict=False)
    assert codec.encode(messages, [TOOL]) == list(reference)
    assert codec.encode(messages) != list(reference)
    assert codec.encode(messages, [TOOL]) == list(reference)


def test_an_answer_and_its_result_extend_the_prompt_exactly(codec: HuggingFaceCodec) -> None:
    user = {"role": "user", "content": "one and two"}
    sent_back = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
    }
    first = codec.encode([user], [TOOL])
    answer = codec._tokenizer(CALL + "<|im_end|>")["input_ids"]  # pyright: ignore[reportPrivateUsage]  # reference
    second = codec.encode([user, sent_back, {"role": "tool", "tool_call_id": "c", "content": "3"}], [TOOL])
    assert second[: len(first) + len(answer)] == first + answer


def test_a_prompt_given_out_can_be_changed_without_harm(codec: HuggingFaceCodec) -> None:
    messages = [{"role": "user", "content": "x"}]
    prompt = codec.encode(messages)
    reference = list(prompt)
    prompt.clear()
    assert codec.encode(messages) == reference


def test_end_tokens_come_from_config_tokenizer_and_template(codec: HuggingFaceCodec) -> None:
    assert set(codec.stop_ids) == {0, 2}


def test_a_text_is_encoded_by_the_tokenizers_own_rule(codec: HuggingFaceCodec, tmp_path: Path) -> None:
    assert codec.decode(codec.encode_text("one and two")) == "one and two"
    assert codec.encode_text("<|im_start|>one") == [1, *codec.encode_text("one")], "a control token in the text is one"
    assert codec.encode_text("") == [0], "the token that begins a document"
    _save(tmp_path, TEMPLATE)
    saved = json.loads((tmp_path / "tokenizer.json").read_text())
    first = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    saved["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    with_first = HuggingFaceCodec(tmp_path)
    assert with_first.encode_text("one") == [0, *codec.encode_text("one")]
    assert with_first.encode_text("") == [0]
    messages = [{"role": "user", "content": "one"}]
    assert with_first.encode(messages) == codec.encode(messages), "a conversation has only the template's tokens"


def test_control_tokens_are_silent_and_tool_marks_are_not(codec: HuggingFaceCodec) -> None:
    ids = codec._tokenizer(f"<|im_start|>one{CALL}<|im_end|>")["input_ids"]  # pyright: ignore[reportPrivateUsage]  # as above
    assert codec.decode(ids) == f"one{CALL}"


def test_messages_the_template_refuses_are_one_clear_error(codec: HuggingFaceCodec) -> None:
    with pytest.raises(GatewayError, match="a tool cannot speak first"):
        codec.encode([{"role": "tool", "tool_call_id": "c", "content": "3"}])


def test_calls_are_read_by_the_templates_family(codec: HuggingFaceCodec) -> None:
    assert codec.parse(CALL, [TOOL]).tool_calls == (ToolCall(name="add", arguments='{"a": 1}'),)
    assert codec.parse(CALL, []).content == CALL


@pytest.mark.parametrize("name", ["add", None])
def test_a_forced_call_begins_after_the_very_same_prompt(codec: HuggingFaceCodec, name: str | None) -> None:
    messages, forced = [{"role": "user", "content": "one and two"}], Forced(name)
    prompt, begun = codec.encode(messages, [TOOL]), codec.encode(messages, [TOOL], forced)
    opening = '<tool_call>\n{"name": "add", "arguments":' if name else '<tool_call>\n{"name": "'
    assert begun[: len(prompt)] == prompt
    assert codec.decode(begun[len(prompt) :]) == opening
    assert begun[len(prompt) :] == codec._tokenizer(opening)["input_ids"]  # pyright: ignore[reportPrivateUsage]  # reference
    assert codec.encode(messages, [TOOL]) == prompt

    rest = CALL.removeprefix(opening)
    parser, expected = codec.parser([TOOL], forced), codec.parse(CALL, [TOOL])
    assert collect([*parser.push(rest[:5]), *parser.push(rest[5:]), *parser.finish()]) == expected
    assert codec.parse(rest, [TOOL], forced) == expected


def test_a_forced_call_closes_the_reasoning_that_the_prompt_opens(tmp_path: Path) -> None:
    codec = _codec(
        tmp_path, TEMPLATE.replace("<|im_start|>assistant\n{% endif", "<|im_start|>assistant\n<think>\n{% endif")
    )
    messages = [{"role": "user", "content": "x"}]
    prompt, begun = codec.encode(messages, [TOOL]), codec.encode(messages, [TOOL], Forced("add"))
    assert codec.decode(prompt).endswith("assistant\n<think>\n")
    assert codec.decode(begun[len(prompt) :]) == '</think>\n\n<tool_call>\n{"name": "add", "arguments":'


def test_no_call_can_be_forced_where_the_format_is_not_known(tmp_path: Path) -> None:
    codec = _codec(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}")
    assert codec.parse(CALL, [TOOL]).content == CALL
    with pytest.raises(GatewayError, match="No tool call can be forced"):
        codec.encode([{"role": "user", "content": "x"}], [TOOL], Forced())


def test_text_that_goes_on_gets_no_space_of_a_beginning(tmp_path: Path) -> None:
    import tokenizers
    import transformers

    library: Any = tokenizers
    backend: Any = library.Tokenizer(library.models.BPE({chr(n): n for n in range(127)} | {"▁": 127}, []))
    backend.pre_tokenizer = library.pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = library.decoders.Metaspace(prepend_scheme="first")
    fast: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="~")
    fast.chat_template = '{% for m in messages %}{{ m.content }}{% endfor %}{# <tool_call></tool_call> "arguments" #}'
    fast.save_pretrained(str(tmp_path))
    codec = HuggingFaceCodec(tmp_path)
    messages = [{"role": "user", "content": "Well"}]
    assert codec.decode(codec.encode(messages, [TOOL], Forced())) == 'Well<tool_call>\n{"name": "'


def test_remembered_prompts_are_bounded_in_number_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codec, rendered = _codec(tmp_path, TEMPLATE), list[str]()
    render = codec._render  # pyright: ignore[reportPrivateUsage]  # counted

    def counted(messages: Any, *rest: Any) -> str:
        rendered.append(messages[0]["content"])
        return render(messages, *rest)

    monkeypatch.setattr(codec, "_render", counted)
    monkeypatch.setattr(huggingface, "CACHED_BYTES", 2000)
    monkeypatch.setattr(huggingface, "CACHED_PROMPTS", 3)
    for content in ("a", "b", "a", "c", "d", "a", "b", "x" * 2000, "a"):
        codec.encode([{"role": "user", "content": content}])
        codec.encode([{"role": "user", "content": content}], [], Forced())
    # b makes room for d by number, all that was left for the long one by size; the long one itself is too long to keep
    assert rendered == ["a", "b", "c", "d", "b", "x" * 2000, "x" * 2000, "a"]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("raise_exception('one line\\nand another')", "one line"),
        ("1 / 0", "division by zero"),
        ("messages[5].content.x", "no element 5|undefined"),
        ("'a' + 1", "str"),
        ("messages[0].content | nothing", "nothing"),
    ],
)
def test_whatever_a_template_raises_is_one_line(tmp_path: Path, expression: str, message: str) -> None:
    codec = _codec(tmp_path, "{{ " + expression + " }}")
    with pytest.raises(GatewayError, match=message) as caught:
        codec.encode([{"role": "user", "content": "x"}])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("written", ["{{ f.arguments | tojson }}", "{{ '' + f.arguments }}", "{{ f.arguments }}"])
def test_arguments_are_objects_unless_the_template_joins_text(tmp_path: Path, written: str) -> None:
    template = "{% for m in messages %}{% set f = m.tool_calls[0].function %}" + written + "{% endfor %}"
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": "語"}'}}
    codec = _codec(tmp_path, template)
    shown = codec.decode(codec.encode([{"role": "assistant", "content": None, "tool_calls": [call]}]))
    assert shown == ("{'a': '語'}" if written == "{{ f.arguments }}" else '{"a": "語"}')


def test_a_policy_may_have_several_templates(tmp_path: Path) -> None:
    _save(tmp_path, None)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "chat_template.jinja").write_text("plain")
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(TEMPLATE)
    codec, messages = HuggingFaceCodec(tmp_path), [{"role": "user", "content": "x"}]
    assert codec.decode(codec.encode(messages)) == "plain"
    assert codec.parse(CALL, [TOOL]).tool_calls
    assert codec.decode(codec.encode(messages, [TOOL])).startswith("system\n")


@settings(suppress_health_check=SUPPRESSED, max_examples=60)
@given(st.text(max_size=30), st.data())
def test_a_streamed_answer_is_the_answer_decoded_at_once(
    codec: HuggingFaceCodec, text: str, data: st.DataObject
) -> None:
    ids: list[int] = codec._tokenizer(text)["input_ids"]  # pyright: ignore[reportPrivateUsage]  # as above
    assert b"".join(map(codec.token_bytes, ids)).decode() == codec.decode(ids)
    stream, parser, parts, position = TextStream(codec.decode), codec.parser([TOOL]), list[AnswerPart](), 0
    while position < len(ids):
        size = data.draw(st.integers(1, 4))
        parts += parser.push(stream.push(ids[position : position + size]))
        position += size
    parts += parser.push(stream.finish()) + parser.finish()
    assert collect(parts) == codec.parse(codec.decode(ids), [TOOL])


def test_a_policy_without_a_template_or_a_tokenizer_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    _save(tmp_path / "plain", None)
    (tmp_path / "empty").mkdir()
    for name, message in (("plain", "no chat template"), ("empty", "tokenizer cannot be loaded")):
        with pytest.raises(PolicyError, match=message) as caught:
            HuggingFaceCodec(tmp_path / name)
        assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def shipped() -> HuggingFaceCodec:
    return HuggingFaceCodec(Path(__file__).parents[5] / "examples" / "calculator_langgraph" / "policy")


@settings(suppress_health_check=SUPPRESSED)
@given(st.lists(st.integers(0, 672), max_size=30), st.text(max_size=10), st.data())
def test_pieces_of_whatever_the_shipped_policy_draws_are_the_text(
    shipped: HuggingFaceCodec, sampled: list[int], text: str, data: st.DataObject
) -> None:
    ids = sampled + shipped._ids(text) + sampled[:5]  # pyright: ignore[reportPrivateUsage]  # bytes that are characters
    stream, pieces, position = TextStream(shipped.decode), list[str](), 0
    while position < len(ids):
        size = data.draw(st.integers(1, 4))
        pieces.append(stream.push(ids[position : position + size]))
        position += size
    assert "".join([*pieces, stream.finish()]) == shipped.decode(ids)


def test_the_shipped_policy_can_be_forced(shipped: HuggingFaceCodec) -> None:
    prompt = shipped.encode([{"role": "user", "content": "2+2"}], [TOOL], Forced("add"))
    assert shipped.decode(prompt).endswith('<tool_call>\n{"name": "add", "arguments":')

"""Reasoning, separated from answers and rendered again: the splitter, and the codec with templates made here."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.sampling import Sampling
from leyden.core.gateway.codec import Message
from leyden.core.gateway.codecs.answer_reader import AnswerReader
from leyden.core.gateway.codecs.chat_template import Steps, TemplateTooLong, limited
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.gateway.model_request import ModelRequest, RecordedRequest
from leyden.core.gateway.reasoning import (
    Reasoning,
    ReasoningForm,
    ReasoningSplitter,
    reasoning_tokens,
    sealed,
    unsealed,
)
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.tiny_tokenizers import CHATML, save_tiny_tokenizer

MARKS = ["<tool_call>", "</tool_call>"]
THOUGHTFUL = """{%- set state = namespace(last=-1) -%}
{%- for m in messages if m.role == 'user' -%}{%- set state.last = messages.index(m) -%}{%- endfor -%}
{%- if tools -%}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call as <tool_call>{"arguments"}</tool_call><|im_end|>
{% endif -%}
{%- for m in messages -%}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and m.FIELD and loop.index0 > state.last -%}
<think>
{{ m.FIELD.strip('\\n') }}
</think>

{% endif -%}
{{ m.content.lstrip('\\n') }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif -%}"""
"""Keeps the reasoning of the answers after the user's last message, as Qwen3's template does."""
TIGHT = (
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
    "{% endif %}{{ m.content }}<|im_end|>{% endfor %}[assistant]"
)
IN_CONTENT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
OPENING = IN_CONTENT + "{{ '<think>\n' }}"
FORGETFUL = (
    "{% for m in messages %}[{{ m.role }}]{{ (m.content.split('</think>') | last).lstrip('\n') }}<|im_end|>{% endfor %}"
    "[assistant]"
)
USER: Message = {"role": "user", "content": "one and two"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ANSWER = "<think>\nFirst one.\n\nThen two.\n</think>\n\nThree."


def codec_of(folder: Path, template: str) -> HuggingFaceCodec:
    save_tiny_tokenizer(folder, template, [*CHATML, *MARKS], end="<|im_end|>")
    return HuggingFaceCodec(folder)


def split(text: str, form: ReasoningForm | None = None, opened: str | None = None, *cuts: int) -> tuple[str, str, int]:
    """Return the reasoning, the content, and how many characters come before the content."""
    splitter = ReasoningSplitter(form or ReasoningForm(), opened)
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    parts = [part for piece in pieces for part in splitter.push(piece)] + splitter.finish()
    thoughts = "".join(part.text for part in parts if isinstance(part, Reasoning))
    return thoughts, "".join(part for part in parts if isinstance(part, str)), splitter.consumed


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        (ANSWER, None, "First one.\n\nThen two.", "Three."),
        ("First one.\n</think>\n\nThree.", "\n", "First one.", "Three."),
        ("\nFirst one.\n</think>\n\nThree.", "", "First one.", "Three."),
        ("Three.", None, "", "Three."),
        ("  Three <think> four", None, "", "  Three <think> four"),
        ("<think>\n\n</think>\n\nThree.", None, "", "Three."),
        ("<think>tight</think>Three.", None, "tight", "Three."),
        ("<think>\n\n two \n\n</think>\n\n\n\nThree.", None, "\n two \n", "\n\nThree."),
        ("<think>\ncut off\n</thi", None, "cut off\n</thi", ""),
        ("cut off\n", "\n", "cut off\n", ""),
        ("<thi", None, "", "<thi"),
        (" \n", None, "", " \n"),
        ("", "\n", "", ""),
        ("<think>a</think>b<think>c</think>", None, "a", "b<think>c</think>"),
    ],
)
def test_an_answer_is_split_into_reasoning_and_content(
    text: str, opened: str | None, reasoning: str, content: str
) -> None:
    assert split(text, None, opened)[:2] == (reasoning, content)
    assert split(text, None, opened, *range(1, len(text)))[:2] == (reasoning, content), "character by character"


@given(st.text("<think>/\n ab", max_size=40), st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_the_split_does_not_depend_on_how_the_text_is_cut(text: str, cuts: list[int], opened: bool) -> None:
    form = ReasoningForm(before="\n", after=" \n", gap="\n\n")
    whole = split(text, form, "" if opened else None)
    assert split(text, form, "" if opened else None, *(cut for cut in cuts if cut <= len(text))) == whole
    assert whole[2] + len(whole[1]) <= len(text)


@given(st.text("ab\n <>", max_size=20), st.text("ab\n <>", max_size=20))
def test_what_was_written_in_the_templates_form_is_written_so_again(reasoning: str, content: str) -> None:
    for form in (ReasoningForm(), ReasoningForm(before="", after="", gap=""), ReasoningForm(before="\n\n", gap="\n")):
        text = form.text(reasoning) + content
        found = split(text, form)
        assert form.text(found[0]) + found[1] == text


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_an_answer_with_reasoning_and_a_call_extends_the_prompt_exactly(field: str, tmp_path: Path) -> None:
    codec = codec_of(tmp_path, THOUGHTFUL.replace("FIELD", field))
    text = f"<think>\nFirst one.\n</think>\n\n{CALL}<|im_end|>"
    drawn = codec._tokenizer(text)["input_ids"]  # pyright: ignore[reportPrivateUsage]  # reference
    prompt = codec.encode([USER], [TOOL])
    answer = read(codec, drawn, prompt, tools=[TOOL])
    assert (answer.reasoning, answer.content, answer.calls[0].arguments) == ("First one.", None, '{"a": 1}')
    function = {"name": "add", "arguments": answer.calls[0].arguments}
    for name in ("reasoning_content", "reasoning"):  # the fields of the gateway's answer; an agent may keep one
        back: Message = {"role": "assistant", "content": None, name: answer.reasoning}
        back["tool_calls"] = [{"id": "c", "type": "function", "function": function}]
        result: Message = {"role": "tool", "tool_call_id": "c", "content": "3"}
        assert codec.encode([USER, back, result], [TOOL])[: len(prompt + drawn)] == prompt + drawn
        later = codec.decode(codec.encode([USER, back, result, {"role": "user", "content": "two"}], [TOOL]))
        assert "First one." not in later, "the template drops the reasoning of earlier turns"


@pytest.mark.parametrize(
    ("template", "text", "reasoning", "content"),
    [
        (THOUGHTFUL.replace("FIELD", "reasoning_content"), ANSWER, "First one.\n\nThen two.", "Three."),
        (TIGHT, "<think>\nFirst\n</think>\nThree.", "\nFirst\n", "\nThree."),
        (IN_CONTENT, ANSWER, "First one.\n\nThen two.", "Three."),
        (OPENING, "First one.\n</think>\n\nThree.", "First one.", "Three."),
    ],
    ids=["strips", "tight", "in the content", "opens"],
)
def test_an_answer_is_rendered_again_as_it_was_drawn(
    template: str, text: str, reasoning: str, content: str, tmp_path: Path
) -> None:
    codec = codec_of(tmp_path, template)
    drawn = codec._tokenizer(f"{text}<|im_end|>")["input_ids"]  # pyright: ignore[reportPrivateUsage]  # reference
    prompt = codec.encode([USER])
    answer = read(codec, drawn, prompt)
    assert (answer.reasoning, answer.content) == (reasoning, content)
    back: Message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    again = codec.encode([USER, back])
    assert again[: len(prompt + drawn)] == prompt + drawn


def test_reasoning_that_a_template_drops_is_dropped_in_the_history_only(tmp_path: Path) -> None:
    codec = codec_of(tmp_path, FORGETFUL)
    drawn = codec._tokenizer(f"{ANSWER}<|im_end|>")["input_ids"]  # pyright: ignore[reportPrivateUsage]  # reference
    answer = read(codec, drawn, codec.encode([USER]))
    assert (answer.reasoning, answer.content) == ("First one.\n\nThen two.", "Three.")
    back: Message = {"role": "assistant", "content": answer.content, "reasoning_content": answer.reasoning}
    assert "First one" not in codec.decode(codec.encode([USER, back]))


def test_an_answer_to_a_prompt_that_closes_the_reasoning_has_none(tmp_path: Path) -> None:
    codec = codec_of(tmp_path, THOUGHTFUL.replace("FIELD", "reasoning_content"))
    prompt = codec.encode([USER], variables={"enable_thinking": False})
    assert codec.decode(prompt).endswith("<think>\n\n</think>\n\n")
    drawn = codec._tokenizer("one and two</think><|im_end|>")["input_ids"]  # pyright: ignore[reportPrivateUsage]  # reference
    answer = read(codec, drawn, prompt)
    assert (answer.reasoning, answer.content) == (None, "one and two</think>")


def test_a_template_without_reasoning_leaves_the_text_as_it_is(tmp_path: Path) -> None:
    codec = codec_of(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}")
    drawn = codec._tokenizer(f"{ANSWER}<|im_end|>")["input_ids"]  # pyright: ignore[reportPrivateUsage]  # reference
    answer = read(codec, drawn, codec.encode([USER]))
    assert (answer.reasoning, answer.content) == (None, ANSWER)


def test_the_marks_of_reasoning_are_read_where_they_are_control_tokens(tmp_path: Path) -> None:
    template = THOUGHTFUL.replace("FIELD", "reasoning_content")
    save_tiny_tokenizer(tmp_path, template, [*CHATML, *MARKS, "<think>", "</think>"], end="<|im_end|>")
    codec = HuggingFaceCodec(tmp_path)
    drawn = codec._tokenizer(f"{ANSWER}<|im_end|>")["input_ids"]  # pyright: ignore[reportPrivateUsage]  # reference
    answer = read(codec, drawn, codec.encode([USER]))
    assert (answer.reasoning, answer.content) == ("First one.\n\nThen two.", "Three.")
    end = codec._tokenizer("</think>")["input_ids"][0]  # pyright: ignore[reportPrivateUsage]  # reference
    assert answer.reasoning_tokens(drawn) == drawn.index(end) + 1


def test_a_request_that_is_stopped_does_not_change_what_is_read_of_the_template(tmp_path: Path) -> None:
    codec = codec_of(tmp_path, TIGHT)
    with limited(Steps(0)), pytest.raises(TemplateTooLong):
        codec.encode([USER])
    splitter = codec.reasoning(codec.encode([USER]))
    assert splitter is not None
    assert splitter.push("<think>\na\n</think>\nb") == [Reasoning("\na\n"), "\nb"]


def test_log_probabilities_are_those_of_the_content_alone() -> None:
    codec = ByteCodec()
    drawn = codec.answer(ANSWER)
    for size in (1, 7, len(drawn)):
        reader = AnswerReader(codec, request(logprobs=True), "call")
        tokens: list[str] = []
        for start in range(0, len(drawn), size):
            ids = drawn[start : start + size]
            reader.push(ids, [-1.0] * len(ids))
            tokens += [token.text for token in reader.tokens() or ()]
        reader.finish()
        tokens += [token.text for token in reader.tokens() or ()]
        assert "".join(tokens) == "Three."


def test_tokens_of_reasoning_are_counted_up_to_its_end() -> None:
    codec = ByteCodec()
    assert reasoning_tokens(codec.decode, codec.answer(ANSWER)) == len(ANSWER.partition("</think>")[0] + "</think>")
    assert reasoning_tokens(codec.decode, list(b"<think>never")) == len("<think>never")
    for length in range(110, 150):  # the end is anywhere within a block, and across two
        begun = f"<think>{'x' * length}</think>"
        assert reasoning_tokens(codec.decode, codec.answer(f"{begun}Three. </think>")) == len(begun)


def test_an_opaque_copy_is_read_again_and_other_texts_are_not() -> None:
    assert unsealed(sealed("First ö one.")) == "First ö one."
    assert [unsealed(text) for text in ("", "s", "gAAA", "not base64 at all é", "////")] == [None] * 5


def read(codec: Any, drawn: list[int], prompt: list[int], **fields: Any) -> AnswerReader:
    reader = AnswerReader(codec, request(**fields), "call", prompt)
    reader.push(drawn, [0.0] * len(drawn))
    reader.finish()
    return reader


def request(**fields: Any) -> ModelRequest:
    known: dict[str, Any] = {"as_sent": RecordedRequest(), "messages": [USER], "tools": [], "sampling": Sampling()}
    return ModelRequest(**{**known, **fields})

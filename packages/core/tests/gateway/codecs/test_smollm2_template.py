"""The chat template that fetched policies get, against the codec that the gateway renders and parses with."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leyden.core.gateway.codec import Forced, Message, ToolCall
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.policy.fetch.folder import TEMPLATES
from leyden.core.testing.tiny_tokenizers import CHATML, save_tiny_tokenizer

TEMPLATE = (TEMPLATES / "smollm2.jinja").read_text(encoding="utf-8")
USUAL = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {}}}},
}
ANSWERS = "<|im_start|>assistant\n"
SUPPRESSED = [HealthCheck.function_scoped_fixture]


class Policy:
    """The codec, and the tokenizer that shows what it rendered."""

    def __init__(self, folder: Path) -> None:
        import transformers

        auto: Any = transformers.AutoTokenizer
        self.tokenizer: Any = auto.from_pretrained(folder)
        self.codec = HuggingFaceCodec(folder)

    def text(self, messages: list[Message], tools: list[dict[str, Any]]) -> str:
        return self.tokenizer.decode(self.codec.encode(messages, tools), clean_up_tokenization_spaces=False)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = tmp_path_factory.mktemp("policy")
    save_tiny_tokenizer(folder, TEMPLATE, CHATML, end="<|im_end|>")
    return Policy(folder)


def called(*calls: ToolCall, content: str | None = None) -> Message:
    """What an agent sends back of an answer."""
    sent = [
        {"id": f"c{n}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for n, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, **({"tool_calls": sent} if sent else {})}


def written(*calls: ToolCall, content: str = "") -> str:
    """The same answer as the model wrote it."""
    texts = [f'<tool_call>\n{{"name": "{c.name}", "arguments": {c.arguments}}}\n</tool_call>' for c in calls]
    return "\n".join([*([content] if content else []), *texts])


def test_plain_chat_is_what_the_model_was_trained_on(policy: Policy) -> None:
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    assert policy.text([*chat, {"role": "user", "content": "Why?"}], []) == (
        f"{USUAL}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n{ANSWERS}Hello.<|im_end|>\n"
        f"<|im_start|>user\nWhy?<|im_end|>\n{ANSWERS}"
    )


@pytest.mark.parametrize("role", ["system", "developer"])
def test_an_agents_own_instructions_stand_in_for_the_usual_ones(policy: Policy, role: str) -> None:
    messages = [{"role": role, "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    start = "<|im_start|>system\nBe brief."
    assert policy.text(messages, []) == f"{start}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n{ANSWERS}"
    assert policy.text(messages, [TOOL]).startswith(f"{start}\n\nYou can call these tools:\n")


def test_tools_are_described_and_how_to_call_one_can_be_parsed(policy: Policy) -> None:
    text = policy.text([{"role": "user", "content": "Hi"}], [TOOL])
    assert text.startswith(USUAL)
    assert json.dumps(TOOL["function"]) in text.splitlines()
    shown = text[text.index("<tool_call>") : text.index("</tool_call>") + len("</tool_call>")]
    (call,) = policy.codec.parse(shown, [TOOL]).tool_calls
    assert (call.name, json.loads(call.arguments)) == ("NAME", {"KEY": "VALUE"})


def test_each_result_is_a_turn_of_the_users(policy: Policy) -> None:
    call = ToolCall(name="add", arguments='{"a": 1}')
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": str(n)} for n in range(2)]
    text = policy.text([{"role": "user", "content": "Hi"}, called(call, call), *results], [TOOL])
    turn = "<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n"
    assert text.endswith(
        f"{ANSWERS}{written(call, call)}<|im_end|>\n{turn.format(0)}{turn.format(1)}{ANSWERS}",
    )


@pytest.mark.parametrize("forced", [Forced("add"), Forced()])
def test_a_call_can_be_forced(policy: Policy, forced: Forced) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    prompt, begun = policy.codec.encode(messages, [TOOL]), policy.codec.encode(messages, [TOOL], forced)
    assert begun[: len(prompt)] == prompt
    rest = ' {"a": 1}}\n</tool_call>' if forced.name else 'add", "arguments": {"a": 1}}\n</tool_call>'
    (call,) = policy.codec.parse(rest, [TOOL], forced).tool_calls
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1})


names = st.from_regex(r"[a-z_][a-z0-9_]{0,10}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
"""JSON that has one way of being written, as models write it."""
texts = st.dictionaries(st.text(max_size=5), values, max_size=3).map(partial(json.dumps, ensure_ascii=False))
calls = st.builds(ToolCall, name=names, arguments=texts)
plain = st.text(st.characters(codec="utf-8", exclude_characters="<>"), max_size=20)
contents = plain.filter(lambda text: not text[:1].isspace() and not text[-1:].isspace())
"""White space beside a call is dropped, and after the turn's own line break its tokens would be joined with that."""
answers = st.tuples(contents, st.lists(calls, max_size=2)).filter(lambda answer: bool(answer[0] or answer[1]))


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[list[Message], str, Message]]:
    """What an agent's calls send one after the other, what the model writes, and what is sent back of it."""
    messages: list[Message] = [{"role": "system", "content": draw(plain)}] if draw(st.booleans()) else []
    messages.append({"role": "user", "content": draw(plain)})
    turns: list[tuple[list[Message], str, Message]] = []
    for content, made in draw(st.lists(answers, min_size=1, max_size=4)):
        sent_back = called(*made, content=content or None)
        turns.append((list(messages), written(*made, content=content), sent_back))
        results = [{"role": "tool", "tool_call_id": f"c{n}", "content": draw(plain)} for n in range(len(made))]
        messages += [sent_back, *(results or [{"role": "user", "content": draw(plain)}])]
    return turns


@given(turns=conversations(), has_tools=st.booleans())
@settings(suppress_health_check=SUPPRESSED)
def test_every_prompt_extends_the_one_before_and_its_answer(
    policy: Policy, turns: list[tuple[list[Message], str, Message]], has_tools: bool
) -> None:
    tools = [TOOL] if has_tools else []
    before: list[int] = []
    for messages, answer, _ in turns:
        prompt = policy.codec.encode(messages, tools)
        assert prompt[: len(before)] == before
        before = prompt + policy.ids(f"{answer}<|im_end|>")


@given(turns=conversations())
@settings(suppress_health_check=SUPPRESSED)
def test_what_is_parsed_of_an_answer_is_what_is_rendered_of_it_again(
    policy: Policy, turns: list[tuple[list[Message], str, Message]]
) -> None:
    for _, answer, sent_back in turns:
        parsed = policy.codec.parse(policy.codec.decode(policy.ids(f"{answer}<|im_end|>")), [TOOL])
        again = called(*parsed.tool_calls, content=parsed.content)
        assert again == sent_back


def test_turns_once_rendered_never_change(policy: Policy) -> None:
    """Message by message, without what opens an answer."""
    call = ToolCall(name="add", arguments='{"a": 1}')
    messages = [
        {"role": "user", "content": "Hi"},
        called(call, content="Well."),
        {"role": "tool", "tool_call_id": "c0", "content": "1"},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "system", "content": "Hurry."},
        {"role": "assistant", "content": "3"},
    ]
    before = ""
    for count in range(1, len(messages) + 1):
        text = policy.tokenizer.apply_chat_template(messages[:count], tools=[TOOL], tokenize=False)
        assert text.startswith(before) and len(text) > len(before)
        before = text

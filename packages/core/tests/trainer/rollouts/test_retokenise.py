"""Calls that another model answered, converted into the tokens of a codec: its own template, read by eye."""

import json
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids
from leyden.core.data.reasons import (
    CHANGED,
    CONTINUED,
    MORE_THAN_TEXT,
    NO_ANSWER,
    NOT_RENDERED,
    SEVERAL_ANSWERS,
    UPSTREAM,
)
from leyden.core.data.span import Span
from leyden.core.testing import factories
from leyden.core.testing.byte_codec import BEGIN, END, ByteCodec
from leyden.core.trainer.rollouts.retokenise import CannotRetokenise, retokenise

CODEC = ByteCodec()
ASKED = [{"role": "user", "content": "Hi?"}]
SAID = {"role": "assistant", "content": "Yes."}
ADD = {"name": "add", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": ADD}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def turn(role: str, text: str) -> list[int]:
    return [BEGIN, *f"{role}\n{text}".encode(), END, *b"\n"]


def span(request: object = ASKED, answer: object = (SAID,), **more: Any) -> Span:
    attributes: dict[str, Any] = {
        semconv.CALL_ID: "call-1",
        semconv.INPUT_MESSAGES: json.dumps(request),
        semconv.OUTPUT_MESSAGES: json.dumps(answer),
        semconv.RESPONSE_MODEL: "teacher-large",
        semconv.FINISH_REASONS: ["stop"],
        semconv.NOT_TRAINED: UPSTREAM,
        semconv.DIALECT: "chat",
        **{getattr(semconv, name): value for name, value in more.items()},
    }
    return factories.span("chat", {key: value for key, value in attributes.items() if value is not None}, end_time=1.0)


def test_an_answer_becomes_what_the_policy_would_have_written_to_give_it() -> None:
    transition = retokenise(span(), CODEC)
    assert list(transition.prompt_ids) == [*turn("user", "Hi?"), BEGIN, *b"assistant\n"]
    assert list(transition.response_ids) == [*b"Yes.", END]
    assert (transition.retokenised, transition.temperature, len(transition.logprobs)) == (True, 1.0, 0)
    assert (transition.policy, transition.call_id, transition.finish_reason) == ("teacher-large", "call-1", "stop")


def test_a_tool_call_is_written_as_the_policy_writes_them() -> None:
    answer = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    transition = retokenise(span(answer=[answer], TOOL_DEFINITIONS=json.dumps([TOOL])), CODEC)
    assert CODEC.decode(transition.prompt_ids).startswith("system\n")
    written = CODEC.decode(transition.response_ids)
    assert json.loads(written.removeprefix("<tool_call>").removesuffix("</tool_call>")) == {
        "name": "add",
        "arguments": {"a": 1},
    }


def test_a_forced_call_leaves_its_opening_to_the_prompt() -> None:
    answer = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    choice = json.dumps({"tool_choice": "required"})
    other = {"type": "function", "function": {"name": "take", "parameters": {"type": "object"}}}
    transition = retokenise(
        span(answer=[answer], TOOL_DEFINITIONS=json.dumps([TOOL, other]), SAMPLING_ASKED=choice), CODEC
    )
    assert CODEC.decode(transition.prompt_ids).endswith('<tool_call>\n{"name": "')
    assert CODEC.decode(transition.response_ids).startswith('add"')
    only = retokenise(span(answer=[answer], TOOL_DEFINITIONS=json.dumps([TOOL]), SAMPLING_ASKED=choice), CODEC)
    assert CODEC.decode(only.prompt_ids).endswith('<tool_call>\n{"name": "add", "arguments":')


def test_tools_that_the_agent_forbade_are_not_shown() -> None:
    transition = retokenise(
        span(TOOL_DEFINITIONS=json.dumps([TOOL]), SAMPLING_ASKED=json.dumps({"tool_choice": "none"})), CODEC
    )
    assert list(transition.prompt_ids) == [*turn("user", "Hi?"), BEGIN, *b"assistant\n"]


def test_an_answer_that_was_cut_off_does_not_teach_to_end_there() -> None:
    assert list(retokenise(span(FINISH_REASONS=["length"]), CODEC).response_ids) == [*b"Yes."]


def test_the_responses_api_is_read_too() -> None:
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi?"}]}]
    transition = retokenise(
        span(
            request=items,
            DIALECT="responses",
            TOOL_DEFINITIONS=json.dumps([{"type": "function", **ADD}]),
            SAMPLING_ASKED=json.dumps({"instructions": "Be brief."}),
        ),
        CODEC,
    )
    chat = [{"role": "system", "content": "Be brief."}, *ASKED]
    assert list(transition.prompt_ids) == CODEC.encode(chat, [TOOL])
    plain = retokenise(span(request="Hi?", DIALECT="responses"), CODEC)
    assert list(plain.prompt_ids) == [*turn("user", "Hi?"), BEGIN, *b"assistant\n"]


def test_recorded_ids_are_kept_where_they_are_the_policys_own() -> None:
    prompt = CODEC.encode(ASKED)
    own = {"PROMPT_IDS": pack_ids(prompt), "RESPONSE_IDS": pack_ids([*b"Y", *b"es."]), "POLICY_VERSION": 3}
    transition = retokenise(span(**own, NOT_TRAINED=None, POLICY="policy"), CODEC)
    assert (transition.retokenised, list(transition.response_ids), transition.version, transition.policy) == (
        False,
        [*b"Yes."],
        3,
        "policy",
    )


def test_ids_of_another_tokenizer_are_made_anew() -> None:
    transition = retokenise(span(PROMPT_IDS=pack_ids([7, 7]), RESPONSE_IDS=pack_ids([8])), CODEC)
    assert (transition.retokenised, list(transition.response_ids)) == (True, [*b"Yes.", END])


class Forgetful(ByteCodec):
    """Writes what an assistant said in capitals, as templates that rewrite the history do."""

    def encode(self, messages: Any, tools: Any = (), forced: Any = None, **how: Any) -> list[int]:
        loud = any(message["role"] == "assistant" for message in messages)
        return [*(b"!" if loud else b""), *super().encode(messages, tools, forced, **how)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"answer": []}, NO_ANSWER),
        ({"answer": [{"role": "assistant", "content": ""}]}, NO_ANSWER),
        ({"answer": [SAID, SAID]}, SEVERAL_ANSWERS),
        ({"request": []}, NOT_RENDERED),
        ({"request": "not messages"}, NOT_RENDERED),
        ({"SAMPLING_ASKED": "{"}, NOT_RENDERED),
        ({"SAMPLING_ASKED": json.dumps({"tool_choice": "required"})}, NOT_RENDERED),
        ({"request": [{"role": "user", "content": None}, {"content": "nobody"}]}, NOT_RENDERED),
        (
            {"request": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            MORE_THAN_TEXT,
        ),
        ({"DIALECT": "responses", "SAMPLING_ASKED": json.dumps({"previous_response_id": "resp_1"})}, CONTINUED),
    ],
)
def test_a_call_that_cannot_be_told_says_why(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(CannotRetokenise, match=reason):
        retokenise(span(**changes), CODEC)


def test_a_template_that_rewrites_answers_is_noticed() -> None:
    with pytest.raises(CannotRetokenise, match=CHANGED):
        retokenise(span(), Forgetful())

"""Responses requests: what is read of them, and what is refused."""

import json
from typing import Any

import pytest

from leyden.core.gateway.codec import Forced
from leyden.core.gateway.refusal import Refusal
from leyden.core.gateway.responses.items import REASONING, Item
from leyden.core.gateway.responses.request import ResponsesRequest, checked_request, read_draft

ADD = {"type": "function", "name": "add", "description": "adds", "parameters": {"type": "object"}, "strict": True}
MUL: Item = {"type": "function", "name": "mul", "parameters": {}}
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "3"}


def parse(earlier: list[Item] | None = None, **fields: Any) -> ResponsesRequest:
    draft = read_draft(json.dumps({"model": "gpt-4o", "input": "hi"} | fields).encode())
    return checked_request(draft, draft.items, earlier or [])


def refused(**fields: Any) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        parse(**fields)
    assert refusal.value.body.type == "invalid_request_error"
    return refusal.value


def test_text_is_a_users_message_and_instructions_come_first() -> None:
    request = parse(input="hi", instructions="Be brief.")
    assert request.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert json.loads(request.as_sent.messages or "") == request.messages


def test_items_are_messages_of_chat_completions() -> None:
    given = [
        {"role": "developer", "content": "Use tools."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1 +"}, _text(" 2?")]},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [_assistant_message("Let me see.")],
            "status": "completed",
        },
        CALL,
        CALL | {"call_id": "c2", "id": "fc_2", "status": "completed"},
        OUTPUT,
        OUTPUT | {"call_id": "c2", "output": [_text("4"), _text("2")]},
        {"role": "assistant", "content": "It is 3."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "type": "message"},
        {"role": "system", "content": "Go on."},
    ]
    call: dict[str, Any] = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    assert parse(input=given).messages == [
        {"role": "developer", "content": "Use tools."},
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [{"id": "c1"} | call, {"id": "c2"} | call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "tool", "tool_call_id": "c2", "content": "42"},
        {"role": "assistant", "content": "It is 3."},
        {"role": "assistant", "content": "No."},
        {"role": "system", "content": "Go on."},
    ]


def _text(text: str) -> Item:
    return {"type": "input_text", "text": text}


def _assistant_message(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": []}


def test_what_one_answer_said_around_a_call_is_one_message() -> None:
    given = [{"role": "user", "content": "?"}, CALL, {"role": "assistant", "content": "Wait."}, OUTPUT]
    answer = parse(input=given).messages[1]
    assert (answer["content"], len(answer["tool_calls"])) == ("Wait.", 1)


def test_reasoning_is_accepted_and_left_out_with_a_reason() -> None:
    reasoning: Item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    request = parse(input=[reasoning, {"role": "user", "content": "hi"}])
    assert request.messages == [{"role": "user", "content": "hi"}]
    assert request.left_out == [REASONING]
    assert request.items[0] == reasoning
    assert parse().left_out == []


def test_sampling_and_logprobs() -> None:
    request = parse(temperature=0.5, top_p=0.9, max_output_tokens=17)
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.max_tokens) == (0.5, 0.9, 17)
    assert (request.logprobs, request.top_logprobs, request.choices) == (False, 0, 1)
    assert parse(include=["message.output_text.logprobs"]).logprobs
    shown = parse(include=["message.output_text.logprobs", "reasoning.encrypted_content"], top_logprobs=3)
    assert (shown.logprobs, shown.top_logprobs) == (True, 3)
    assert parse(top_logprobs=2).logprobs
    assert not parse(top_logprobs=0).logprobs


@pytest.mark.parametrize(
    ("choice", "names", "forced"),
    [
        (None, ["add", "mul"], None),
        ("auto", ["add", "mul"], None),
        ("none", [], None),
        ("required", ["add", "mul"], Forced()),
        ({"type": "function", "name": "mul"}, ["add", "mul"], Forced("mul")),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "mul"}]},
            ["mul"],
            None,
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "mul"}]},
            ["mul"],
            Forced("mul", only_one=True),
        ),
    ],
)
def test_every_tool_choice(choice: Any, names: list[str], forced: Forced | None) -> None:
    request = parse(tools=[ADD, MUL], tool_choice=choice)
    seen = [tool["function"]["name"] for tool in request.tools]
    if forced and forced.name:
        assert forced.name in seen
    else:
        assert seen == names
    assert request.forced == forced
    assert request.settings.tool_choice == (choice or "auto")


def test_tools_are_written_flat_and_read_nested() -> None:
    function = {"name": "add", "description": "adds", "parameters": {"type": "object"}, "strict": True}
    request = parse(tools=[ADD, MUL | {"strict": False}])
    assert request.tools[0] == {"type": "function", "function": function}
    assert json.loads(request.as_sent.tools or "")[0] == request.tools[0]
    assert request.settings.tools == [ADD, MUL | {"strict": False, "description": None}]
    assert parse().as_sent.tools is None


def test_hints_are_accepted_and_recorded() -> None:
    hints: dict[str, Any] = {
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "reasoning": {"effort": "low", "summary": "auto"},
        "safety_identifier": "s",
        "service_tier": "auto",
        "user": "u",
        "max_tool_calls": 3,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "truncation": "auto",
        "background": False,
        "stream_options": {"include_obfuscation": False},
        "store": False,
    }
    request = parse(**hints)
    assert json.loads(request.as_sent.rest) == {key: hints[key] for key in hints if key != "stream_options"}
    settings = request.settings
    assert (settings.metadata, settings.user, settings.max_tool_calls, settings.store) == ({"a": "b"}, "u", 3, False)
    assert settings.reasoning == hints["reasoning"]
    assert (settings.truncation, parse().settings.truncation) == ("auto", "disabled")
    assert settings.text == hints["text"]


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["x"]},
        {"seed": 1},
        {"n": 2},
        {"messages": []},
        {"logprobs": True},
        {"max_tokens": 3},
        {"frequency_penalty": 0},
        {"anything": None},
    ],
)
def test_unknown_fields_are_refused(fields: dict[str, Any]) -> None:
    [name] = fields
    refusal = refused(**fields)
    assert (refusal.status, refusal.body.param, refusal.body.code) == (400, name, "unknown_parameter")
    assert str(refusal) == f"Unknown parameter: '{name}'."


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [ADD, {"type": "custom", "name": "grep"}]}, "tools[1]"),
        ({"tools": [ADD | {"defer_loading": True}]}, "tools[0]"),
        ({"tools": [ADD], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"input": [{"role": "system", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
        (
            {"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": "u"}]}]},
            "input[0].content[0]",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "web_search_call", "id": "ws_1", "status": "completed"}]}, "input[0]"),
        ({"input": [CALL, OUTPUT | {"output": [{"type": "input_file", "file_id": "f"}]}]}, "input[1].output[0]"),
    ],
)
def test_what_cannot_be_done_is_refused(fields: dict[str, Any], param: str) -> None:
    refusal = refused(**fields)
    assert (refusal.status, refusal.body.param, refusal.body.code) == (400, param, "unsupported_parameter")


BAD: list[tuple[dict[str, Any], str | None, str | None]] = [
    ({"input": None}, None, "missing_required_parameter"),
    ({"input": []}, None, "missing_required_parameter"),
    ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments", "missing_required_parameter"),
    ({"input": [{}]}, "input[0].id", "missing_required_parameter"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid_value"),
    (
        {"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        "input[0].content[0]",
        "invalid_value",
    ),
    ({"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]}, "input", "invalid_value"),
    ({"include": ["everything"]}, "include", "invalid_value"),
    ({"temperature": 3}, "temperature", "decimal_above_max_value"),
    ({"top_p": 1.1}, "top_p", "decimal_above_max_value"),
    ({"max_output_tokens": 15}, "max_output_tokens", "integer_below_min_value"),
    ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
    ({"tools": [ADD], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
    ({"input": [OUTPUT]}, "input", None),
    ({"input": [{"role": "user", "content": "?"}, CALL]}, "input", None),
    ({"input": 7}, None, "invalid_value"),
    ({"input": ["hi"]}, None, "invalid_value"),
    ({"model": None}, None, "invalid_value"),
]


@pytest.mark.parametrize(("fields", "param", "code"), BAD)
def test_bad_values_are_refused_in_one_line(fields: dict[str, Any], param: str | None, code: str | None) -> None:
    refusal = refused(**fields)
    assert (refusal.status, refusal.body.param, refusal.body.code) == (400, param, code)
    assert "\n" not in str(refusal)


def test_calls_of_the_earlier_conversation_count() -> None:
    assert (
        parse([{"role": "user", "type": "message", "content": []}, CALL], input=[OUTPUT]).messages[-1]["role"] == "tool"
    )
    with pytest.raises(Refusal, match="No tool output found for function call c1"):
        parse([CALL], input="and?")

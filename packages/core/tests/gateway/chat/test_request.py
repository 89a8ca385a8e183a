import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.rollout import Rollout, RolloutMode
from leyden.core.data.sampling import Sampling
from leyden.core.gateway.calls.served_policy import sampling_for
from leyden.core.gateway.chat.request import ChatRequest, parse_chat
from leyden.core.gateway.codec import Forced
from leyden.core.gateway.codecs.messages import plain_messages
from leyden.core.gateway.refusal import Refusal

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat(msgspec.json.encode({"model": "m", "messages": [USER], **fields}))


def refused(**fields: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        parse(**fields)
    assert caught.value.status == 400
    assert caught.value.body.type == "invalid_request_error"
    return caught.value


def test_a_bare_request_has_the_providers_defaults() -> None:
    request = parse()
    assert request.sampling == Sampling(temperature=1.0, top_p=1.0)
    assert (request.tools, request.stream, request.logprobs, request.include_usage) == ([], False, False, False)
    assert request.parallel_tool_calls
    assert (request.choices, request.top_logprobs, request.forced) == (1, 0, None)
    assert request.as_sent.messages == '[{"role":"user","content":"hi"}]'
    assert request.as_sent.rest == "{}"


def test_everything_asked_for_is_recorded() -> None:
    request = parse(temperature=0, stop="END", user="u", reasoning_effort="low", stream=True, n=1, top_p=None)
    assert msgspec.json.decode(request.as_sent.rest) == {
        "temperature": 0, "stop": "END", "user": "u", "reasoning_effort": "low", "n": 1, "top_p": None,
    }  # fmt: skip
    assert request.sampling == Sampling(temperature=0, stop=("END",))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("audio", {"voice": "x", "format": "wav"}),
        ("modalities", ["text", "audio"]),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("web_search_options", {}),
        ("tool_choice", {"type": "custom", "custom": {"name": "f"}}),
        ("tools", [{"type": "custom", "custom": {"name": "c"}}]),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(field: str, value: object) -> None:
    refusal = refused(**{field: value})
    assert refusal.body.param == field
    assert refusal.body.code == "unsupported_parameter"
    assert field in refusal.body.message


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 1), ("response_format", {"type": "text"}), ("modalities", ["text"]), ("frequency_penalty", 0.0),
     ("logit_bias", {}), ("audio", None), ("functions", None), ("top_logprobs", None), ("tool_choice", "none"),
     ("tools", []), ("n", None)],
)  # fmt: skip
def test_asking_for_nothing_is_not_refused(field: str, value: object) -> None:
    assert parse(**{field: value}).model == "m"


CALLS: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ("c1", "c2")],
}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": "4"}
BAD: list[tuple[dict[str, Any], str | None]] = [
    ({"temperature": 2.5}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": ""}, "stop"),
    ({"messages": []}, "messages"),
    ({"no_such_field": 1}, None),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"tool_choice": "sometimes", "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": {"type": "function"}, "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "never", "tools": []}}}, "tool_choice"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tools": [{"type": "function", "function": {"name": "a.b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"messages": [USER, RESULT]}, "messages[1].role"),
    ({"messages": [USER, CALLS, {**RESULT, "tool_call_id": "c3"}]}, "messages[2].role"),
    ({"messages": [USER, RESULT, CALLS]}, "messages[1].role"),
    ({"messages": [USER, CALLS, RESULT]}, "messages"),
    ({"messages": [USER, CALLS, USER]}, "messages"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_bad_values_are_refused(fields: dict[str, Any], param: str | None) -> None:
    assert refused(**fields).body.param == param


def test_calls_whose_results_follow_are_accepted() -> None:
    answered = [CALLS, RESULT, {**RESULT, "tool_call_id": "c2"}]
    assert len(parse(messages=[USER, *answered, USER, *answered]).messages) == 8


def test_the_role_that_replaces_a_deprecated_one_is_named() -> None:
    refusal = refused(messages=[USER, {"role": "function", "name": "f", "content": "x"}])
    assert refusal.body.param == "messages[1]"
    assert "send role 'tool' with a tool_call_id" in refusal.body.message


@pytest.mark.parametrize(
    "message",
    [
        {"role": "function", "name": "f", "content": "x"},
        {"role": "user"},
        {"role": "user", "content": 5},
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": "data:,"}]},
        {"role": "system", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": ""}}]},
        {"content": "no role"},
    ],
)
def test_messages_that_cannot_be_read_are_refused(message: dict[str, Any]) -> None:
    refused(messages=[USER, message])


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"model": "m"}', b'{"model": "\xff", "messages": []}', b"[" * 9999]
)
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal, match="could not parse"):
        parse_chat(body)


def test_tool_choice_none_hides_the_tools() -> None:
    assert parse(tools=[TOOL]).tools == [TOOL]
    hidden = parse(tools=[TOOL], tool_choice="none")
    assert hidden.tools == []
    assert hidden.as_sent.tools is not None


def test_a_tool_choice_says_what_must_be_called() -> None:
    other = {"type": "function", "function": {"name": "g"}}
    named = {"type": "function", "function": {"name": "g"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    assert parse(tools=[TOOL, other], tool_choice="required").forced == Forced(name=None)
    only = parse(tools=[named], tool_choice="required").forced
    assert only == Forced(name="g", only_one=True)
    held = parse(tools=[TOOL, other], tool_choice=named)
    assert (held.forced, held.tools) == (Forced(name="g"), [other])
    free = parse(tools=[TOOL, other], tool_choice=allowed)
    assert (free.forced, free.tools) == (None, [other])


def rollout(mode: RolloutMode | None, **metadata: object) -> Rollout:
    return Rollout(rollout_id="ro", input=None, start_time=0, mode=mode, metadata=dict(metadata))


def test_training_samples_as_the_trainer_says_but_ends_where_the_agent_says() -> None:
    requested = Sampling(temperature=0, top_p=0.5, max_tokens=64, stop=("END",), seed=7)
    policy = Sampling(temperature=1.0, max_tokens=100)
    trained = Sampling(temperature=1.0, top_p=1.0, max_tokens=64, stop=("END",), seed=None)
    assert sampling_for(rollout("train"), requested, policy) == trained
    assert sampling_for(rollout("val", sampling="policy"), requested, policy) == trained
    for mode in ("val", "test", None):
        assert sampling_for(rollout(mode), requested, policy) == requested
    assert sampling_for(rollout("train"), Sampling(), policy).max_tokens == 100


def test_messages_become_plain_for_templates() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    broken = {"id": "d", "type": "function", "function": {"name": "f", "arguments": "not json"}}
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        {"role": "assistant", "content": None, "tool_calls": [call, broken], "refusal": None},
        {"role": "assistant", "content": "ok", "tool_calls": []},
    ]
    assert plain_messages(messages) == [
        {"role": "system", "content": "be brief"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{**call, "function": {"name": "f", "arguments": {"a": 1}}}, broken],
        },
        {"role": "assistant", "content": "ok"},
    ]
    assert messages[0]["role"] == "developer"


FULL = msgspec.json.encode({
    "model": "m",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "é"}]}, {"role": "assistant", "content": "x"}],
    "tools": [TOOL],
    "stop": ["a"],
    "metadata": {"k": "v"},
    "temperature": 0.5,
    "stream_options": {"include_usage": True},
})  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, len(FULL) - 1), st.binary(max_size=3)), max_size=4))
def test_any_body_is_read_or_refused(changes: list[tuple[int, bytes]]) -> None:
    body = bytearray(FULL)
    for index, piece in changes:
        body[index : index + 1] = piece
    with contextlib.suppress(Refusal):
        request = parse_chat(bytes(body))
        assert isinstance(msgspec.json.decode(request.as_sent.rest), dict)
        assert msgspec.json.decode(request.as_sent.messages or "") == request.messages


def test_nesting_without_end_is_refused() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    for field in (b"metadata", b"messages", b"tools", b"n"):
        with pytest.raises(Refusal):
            parse_chat(
                b'{"model": "m", "messages": [{"role": "user", "content": ""}], "' + field + b'": ' + deep + b"}"
            )

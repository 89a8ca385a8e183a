"""Requests of the Messages API: what is read, what is refused and with which words, and mutated bodies."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leyden.core.gateway.anthropic.errors import error_answer
from leyden.core.gateway.anthropic.request import MAX_STOP, parse_count, parse_messages
from leyden.core.gateway.codec import Forced
from leyden.core.gateway.refusal import Refusal

USER = {"role": "user", "content": "hi"}
TOOL: dict[str, Any] = {"name": "add", "input_schema": {"type": "object"}}
BODY: dict[str, Any] = {"model": "claude", "max_tokens": 5, "messages": [USER]}
USE: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "3"}
WHOLE: dict[str, Any] = {
    "model": "claude",
    "max_tokens": 50,
    "system": [{"type": "text", "text": "Add.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "1 + 2?", "citations": None}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "gAAA"},
                {"type": "text", "text": "I add."},
                USE | {"caller": {"type": "direct"}},
                USE | {"id": "toolu_2", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                RESULT | {"content": [{"type": "text", "text": "3"}, {"type": "text", "text": "of them"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True},
                {"type": "text", "text": "So?"},
                {"type": "text", "text": "Well?"},
            ],
        },
        {"role": "system", "content": "Be brief."},
    ],
    "tools": [TOOL | {"description": "adds", "cache_control": {"type": "ephemeral"}, "strict": True}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "stop_sequences": ["END", "\n\nHuman:"],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "stream": True,
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "cache_control": {"type": "ephemeral", "ttl": "1h"},
    "output_config": {"effort": "low"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "mcp_servers": [],
}


def parsed(**fields: Any) -> Any:
    return parse_messages(json.dumps(BODY | fields).encode())


def refusal(body: Any) -> Refusal:
    with pytest.raises(Refusal) as raised:
        parse_messages(body if isinstance(body, bytes) else json.dumps(body).encode())
    return raised.value


def test_a_conversation_is_read_in_the_format_of_chat_completions() -> None:
    request = parse_messages(json.dumps(WHOLE).encode())
    call = {"id": "toolu_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    other = {"id": "toolu_2", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    assert request.messages == [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": "I add.", "reasoning_content": "Hm.", "tool_calls": [call, other]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "3\nof them"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error:"},
        {"role": "user", "content": "So?\nWell?"},
        {"role": "system", "content": "Be brief."},
    ]
    function = {"name": "add", "description": "adds", "parameters": {"type": "object"}, "strict": True}
    assert request.tools == [{"type": "function", "function": function}]
    assert request.forced == Forced(name="add", only_one=True)
    assert not request.parallel_tool_calls
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.9, 5, 50)
    assert sampling.stop == ("END", "\n\nHuman:")
    assert request.stream
    rest = json.loads(request.as_sent.rest)
    assert rest == {key: value for key, value in WHOLE.items() if key in rest}
    assert WHOLE.keys() - rest.keys() == {"messages", "system", "tools", "model", "stream"}
    assert json.loads(request.as_sent.messages or "") == request.messages


@pytest.mark.parametrize(
    ("choice", "tools", "forced"),
    [
        (None, 2, None),
        ({"type": "auto"}, 2, None),
        ({"type": "none"}, 0, None),
        ({"type": "any"}, 2, Forced()),
        ({"type": "tool", "name": "sub"}, 1, Forced(name="sub")),
    ],
)
def test_tool_choice(choice: dict[str, Any] | None, tools: int, forced: Forced | None) -> None:
    request = parsed(tools=[TOOL, TOOL | {"name": "sub"}], **({} if choice is None else {"tool_choice": choice}))
    assert (len(request.tools), request.forced, request.parallel_tool_calls) == (tools, forced, True)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens: Expected `int`, got `null`"),
    ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
    ({"max_tokens": 1 << 70}, "max_tokens: Input should be less than or equal to 9223372036854775807"),
    ({"model": 3}, "model: Expected `str`, got `int`"),
    ({"temperature": 1.1}, "temperature: Input should be less than or equal to 1"),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 1023}},
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
    ),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024},
        "max_tokens: Input should be greater than `thinking.budget_tokens`",
    ),
    ({"top_p": -0.1}, "top_p: Input should be greater than or equal to 0"),
    ({"top_k": -1}, "top_k: Input should be greater than or equal to 0"),
    ({"stop_sequences": [" "]}, "stop_sequences.0: each stop sequence must contain non-whitespace"),
    ({"stop_sequences": ["a"] * 65}, f"stop_sequences: List should have at most {MAX_STOP} items"),
    ({"n": 2}, "n: Extra inputs are not permitted"),
    (
        {"mcp_servers": [{}]},
        "mcp_servers: this field is not available from this endpoint (let the agent connect to them, ",
    ),
    ({"thinking": {"type": "deep"}}, "thinking.type: Invalid enum value 'deep'"),
    (
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        "context_management.edits.0: edits of type 'clear_tool_uses_20250919' are not available. Remove this edit.",
    ),
    (
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns"}}]}},
        "context_management.edits.0.keep.thinking_turns.value: Input should be greater than 0",
    ),
    ({"messages": []}, "messages: at least one message is required"),
    ({"messages": [{"role": "tool", "content": ""}]}, "messages.0.role: Invalid enum value 'tool'"),
    ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text: Field required"),
    ({"tool_choice": {"type": "any"}}, "tool_choice: may only be specified while providing `tools`"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.tool.name: Field required"),
    (
        {"tool_choice": {"type": "tool", "name": "x"}, "tools": [TOOL]},
        "tool_choice: Tool 'x' not found in provided tools",
    ),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools.0.custom.name: String should match pattern"),
    ({"tools": [{"name": "a"}]}, "tools.0.custom.input_schema: Field required"),
    ({"tools": [{"input_schema": {}}]}, "tools.0.custom.name: Field required"),
    (
        {"tools": [{"type": "web_search_20260318", "name": "web_search"}]},
        "tools.0: tools of type 'web_search_20260318' are not available: it runs on the provider's servers. Remove",
    ),
    (
        {"tools": [TOOL, {"type": "bash_20250124", "name": "bash"}]},
        "tools.1: tools of type 'bash_20250124' are not available: only the provider has its schema. Define a tool",
    ),
    ({"tools": [TOOL | {"defer_loading": True}]}, "tools.0.custom.defer_loading: all tools are in the prompt."),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format: Input should be"),
    (
        {"messages": [USER, {"role": "assistant", "content": "The answer is"}]},
        "messages: This model does not support assistant message prefill.",
    ),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_the_message_of_an_error_names_the_field(fields: dict[str, Any], message: str) -> None:
    refused = refusal(BODY | fields)
    assert refused.status == 400
    assert str(refused).startswith(message)


UNREADABLE: list[tuple[str, dict[str, Any], str]] = [
    ("user", {"type": "image"}, "messages.1.content.0.source: Field required"),
    ("user", {"type": "image", "source": {}}, "messages.1.content.0.source: Object missing required field `type`"),
    ("user", {"type": "image", "source": {"type": "file", "file_id": "f"}}, "Send the file itself, with the type"),
    ("user", {"type": "image", "source": {"type": "base64", "media_type": "image/tiff"}}, "Input should be 'image/jp"),
    ("user", {"type": "image", "source": {"type": "url"}}, "messages.1.content.0.source.url: Field required"),
    ("assistant", {"type": "image", "source": {"type": "url", "url": "u"}}, "Input tag 'image' found using 'type'"),
    ("user", {"type": "document", "source": {}}, "Send the document's content in a text block instead."),
    (
        "user",
        RESULT | {"content": [{"type": "document", "source": {}}]},
        "Send the document's content in a text block instead.",
    ),
    ("assistant", {"type": "server_tool_use", "id": "s"}, "tools that run on the provider's servers. Leave"),
    ("assistant", {"type": "web_search_tool_result"}, "tools that run on the provider's servers. Leave"),
    ("assistant", RESULT, "Input tag 'tool_result' found"),
    ("user", USE, "Input tag 'tool_use' found using 'type' does not match any of the expected tags"),
    ("user", {"type": "hologram"}, "Input tag 'hologram' found using 'type'"),
]


@pytest.mark.parametrize(("role", "block", "message"), UNREADABLE)
def test_blocks_that_the_policy_cannot_read_are_refused_with_their_place(
    role: str, block: dict[str, Any], message: str
) -> None:
    before = [USER, {"role": "assistant", "content": [USE]}] if block.get("tool_use_id") and role == "user" else [USER]
    refused = refusal(BODY | {"messages": [*before, {"role": role, "content": [block]}, USER]})
    assert str(refused).startswith(f"messages.{len(before)}.content.0")
    assert message in str(refused)


CALLED = [USER, {"role": "assistant", "content": [USE]}]


UNPAIRED: list[tuple[list[Any], str]] = [
    (CALLED, "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1."),
    ([*CALLED, USER], "messages.2: `tool_use` ids were found without `tool_result` blocks"),
    (
        [*CALLED, {"role": "user", "content": [{"type": "text", "text": "so"}, RESULT]}],
        "messages.2: `tool_use` ids were found without `tool_result` blocks",
    ),
    (
        [{"role": "user", "content": [RESULT]}],
        "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1.",
    ),
    (
        [*CALLED, {"role": "user", "content": [RESULT, RESULT]}],
        "messages.2.content.1: unexpected `tool_use_id` found",
    ),
    (
        [USER, {"role": "assistant", "content": [USE | {"id": "a call"}]}],
        "messages.1.content.0.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    ),
    ([USER, {"role": "assistant", "content": [USE | {"input": []}]}], "messages.1.content.0.input: Input should"),
    (
        [USER, {"role": "assistant", "content": [{**USE, "input": None}]}],
        "messages.1.content.0.input: Input should",
    ),
]


@pytest.mark.parametrize(("messages", "message"), UNPAIRED)
def test_calls_and_results_must_belong_together(messages: list[Any], message: str) -> None:
    assert str(refusal(BODY | {"messages": messages})).startswith(message)


def test_results_may_come_in_two_messages() -> None:
    uses = [USE, USE | {"id": "toolu_2"}]
    results = [{"role": "user", "content": [RESULT | {"tool_use_id": use["id"]}]} for use in uses[::-1]]
    request = parsed(messages=[USER, {"role": "assistant", "content": uses}, *results])
    assert [message.get("tool_call_id") for message in request.messages[2:]] == ["toolu_2", "toolu_1"]


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("all", ["a", "b", "c"]),
        ({"type": "all"}, ["a", "b", "c"]),
        ({"type": "thinking_turns", "value": 2}, ["a", "b", "c"]),
        ({"type": "thinking_turns", "value": 1}, ["b", "c"]),
        (None, ["b", "c"]),
    ],
)
def test_old_thinking_is_removed_as_the_agent_asks(keep: Any, kept: list[str]) -> None:
    thoughts = {one: {"type": "thinking", "thinking": one, "signature": "s"} for one in "abc"}
    messages = [
        USER,
        {"role": "assistant", "content": [thoughts["a"], {"type": "text", "text": "A"}]},
        USER,
        {"role": "assistant", "content": [thoughts["b"], USE]},
        {"role": "user", "content": [RESULT]},
        {"role": "assistant", "content": [thoughts["c"], {"type": "text", "text": "C"}]},
        USER,
    ]
    edit = {"type": "clear_thinking_20251015"} | ({} if keep is None else {"keep": keep})
    request = parsed(messages=messages, context_management={"edits": [edit]})
    assert [text for message in request.messages if (text := message.get("reasoning_content"))] == kept


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ({"content": "no such file", "is_error": True}, "Error: no such file"),
        ({"content": "An ERROR: no", "is_error": True}, "An ERROR: no"),
        ({"content": "fine", "is_error": False}, "fine"),
        ({"content": None}, ""),
        ({"content": []}, ""),
    ],
)
def test_a_failed_result_says_so(result: dict[str, Any], content: str) -> None:
    request = parsed(messages=[*CALLED, {"role": "user", "content": [{**RESULT, **result}]}])
    assert request.messages[-1]["content"] == content


def test_counting_needs_no_limit_and_takes_no_field_of_the_answer() -> None:
    body = {"model": "claude", "messages": [USER], "system": "Add.", "tools": [TOOL], "tool_choice": {"type": "none"}}
    assert len(parse_count(json.dumps(body).encode()).messages) == 2
    with pytest.raises(Refusal, match="max_tokens: Extra inputs are not permitted"):
        parse_count(json.dumps(body | {"max_tokens": 3}).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"model": ', b"\xff", b"[" * 100_000, b'{"a": "\\ud800"}'])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    assert refusal(body).status == 400


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "id", "content", "name", "input"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        here = stack.pop()
        items: Any = here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ()  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # any JSON
        for key, inner in items:
            found.append((here, key))  # pyright: ignore[reportUnknownArgumentType]
            stack.append(inner)
    return found


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_a_changed_body_is_read_or_refused_as_invalid(data: st.DataObject) -> None:
    body = copy.deepcopy(WHOLE)
    for _ in range(data.draw(st.integers(1, 3))):
        here, key = data.draw(st.sampled_from(_places(body)))
        if data.draw(st.booleans()):
            here[key] = data.draw(VALUES)
        else:
            del here[key]
        if not _places(body):
            return
    sent = json.dumps(body).encode()
    for parse in (parse_messages, parse_count):
        try:
            request = parse(sent)
        except Refusal as refused:
            answer = error_answer(refused)
            error = json.loads(answer.body)
            assert answer.status == 400
            assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
            assert error["error"]["message"]
            assert error["request_id"] == answer.headers["request-id"]
        else:
            assert request.messages
            assert request.messages[-1]["role"] != "assistant"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_bytes_are_read_or_refused_as_invalid(data: st.DataObject) -> None:
    body = bytearray(json.dumps(WHOLE).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        parse_messages(bytes(body))
    except Refusal as refused:
        assert refused.status == 400

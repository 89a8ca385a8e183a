"""Requests that the gateway answers, which the mutations begin with, and the values that they put in."""

from typing import Any

Body = dict[str, Any]

_WEATHER: Body = {
    "type": "object",
    "properties": {"town": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["town"],
    "additionalProperties": False,
}
_CHAT_TOOL: Body = {"type": "function", "function": {"name": "weather", "description": "…", "parameters": _WEATHER}}
_TOOL: Body = {"type": "function", "name": "weather", "description": "…", "parameters": _WEATHER, "strict": True}
_MESSAGES_TOOL: Body = {"name": "weather", "description": "…", "input_schema": _WEATHER}
_USER: Body = {"role": "user", "content": "What is the weather in Delft? ☀️ — 你好, عالم"}
_CALL: Body = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Delft"}'}}

CHAT: tuple[Body, ...] = (
    {"model": "m", "messages": [_USER]},
    {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, _USER], "stream": True},
    {"model": "m", "messages": [_USER], "stream": True, "stream_options": {"include_usage": True}, "n": 2},
    {"model": "m", "messages": [_USER], "n": 3, "seed": 7, "temperature": 0.2, "top_p": 0.9, "max_tokens": 20},
    {"model": "m", "messages": [_USER], "logprobs": True, "top_logprobs": 3, "max_completion_tokens": 5},
    {"model": "m", "messages": [_USER], "stop": ["\n", "END"], "stream": True, "logprobs": True},
    {"model": "m", "messages": [_USER], "tools": [_CHAT_TOOL], "tool_choice": "required"},
    {
        "model": "m",
        "messages": [_USER],
        "tools": [_CHAT_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "stream": True,
    },
    {
        "model": "m",
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "Use tools."}]},
            _USER,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": '{"sun": true}'},
        ],
        "tools": [_CHAT_TOOL],
    },
    {"model": "m", "messages": [_USER], "metadata": {"a": "b"}, "user": "u", "store": False, "response_format": None},
)

COMPLETIONS: tuple[Body, ...] = (
    {"model": "m", "prompt": "Once upon a time ☀️"},
    {"model": "m", "prompt": ["one", "two"], "n": 2, "stream": True, "stream_options": {"include_usage": True}},
    {"model": "m", "prompt": [72, 105], "max_tokens": 5, "logprobs": 2, "temperature": 0.2, "seed": 7},
    {"model": "m", "prompt": [[72], [105, 33]], "echo": True, "logprobs": 0, "max_tokens": 0},
    {"model": "m", "prompt": "x", "echo": True, "logprobs": 5, "stop": ["\n", "END"], "stream": True, "best_of": 1},
    {"model": "m", "prompt": "", "user": "u", "suffix": None, "logit_bias": {}, "top_p": 0.9, "n": 3},
)

RESPONSES: tuple[Body, ...] = (
    {"model": "m", "input": "hello"},
    {"model": "m", "input": "hello", "stream": True, "instructions": "Be brief."},
    {"model": "m", "input": [_USER], "store": False, "temperature": 0.5, "max_output_tokens": 16},
    {"model": "m", "input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    {"model": "m", "input": "x", "tools": [_TOOL], "tool_choice": "required", "stream": True},
    {
        "model": "m",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather in Delft?"}]},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "sun"},
        ],
        "tools": [_TOOL],
        "tool_choice": {"type": "function", "name": "weather"},
    },
    {"model": "m", "input": "go on", "previous_response_id": "resp_nowhere", "metadata": {"k": "v"}},
    {"model": "m", "input": [{"type": "item_reference", "id": "msg_nowhere"}], "text": {"format": {"type": "text"}}},
    {"model": "m", "input": "x", "reasoning": {"effort": "low"}, "stream_options": {"include_obfuscation": False}},
)

MESSAGES: tuple[Body, ...] = (
    {"model": "m", "max_tokens": 30, "messages": [_USER]},
    {"model": "m", "max_tokens": 30, "messages": [_USER], "stream": True, "system": "Be brief."},
    {"model": "m", "max_tokens": 5, "messages": [_USER], "temperature": 0.2, "top_p": 0.9, "top_k": 5},
    {"model": "m", "max_tokens": 30, "messages": [_USER], "stop_sequences": ["END", "°"], "stream": True},
    {"model": "m", "max_tokens": 30, "messages": [_USER], "tools": [_MESSAGES_TOOL], "tool_choice": {"type": "any"}},
    {
        "model": "m",
        "max_tokens": 90,
        "system": [{"type": "text", "text": "Use tools.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather in Delft?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "redacted_thinking", "data": "gAAA"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"town": "Delft"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": "none"},
                    {"type": "text", "text": "Again."},
                ],
            },
        ],
        "tools": [_MESSAGES_TOOL],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        "stream": True,
    },
    {
        "model": "m",
        "max_tokens": 30,
        "messages": [_USER],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "service_tier": "auto",
        "output_config": {"effort": "low"},
    },
)

KEY_MARK = "sk-fuzz-7Q9provider8key6mark5"
"""Stands wherever an agent might leave its provider's key; it must be found nowhere afterwards."""
NUMBERS = (
    "1e400",
    "-1e400",
    "NaN",
    "Infinity",
    "9" * 400,
    "-" + "9" * 25,
    "18446744073709551616",
    "0.1e-400",
    "1.0",
    "-0",
    "00",
    "1e3",
    "9223372036854775808",
    "2147483648",
    "9" * 5000,
)
TEXTS = (
    '"\\ud800"',
    '"\\udc00x"',
    '"\\u0000"',
    '"\\u0000' + "a" * 9 + '"',
    '"' + "x" * 70000 + '"',
    '"\\u202e"',
    '"\\uD83D"',
    '""',
    '"<tool_call>"',
    '"<|im_end|>"',
    "'x'",
    '"\\x41"',
    '"' + "\u2028" * 50 + '"',
)
PATHS = (
    "/v1/embeddings",
    "/v1/completions/",
    "/v1/files/%2e%2e/%2e%2e/metrics",
    "/v1/../v1/chat/completions",
    "/v1/chat/../../metrics",
    "//v1/chat/completions",
    "/v1//models",
    "/v1/chat%2fcompletions",
    "/v1/%2e%2e/healthz",
    "/a//v1/models",
    "/a/x.y.z/v1/chat/completions",
    "/metrics/../v1/models",
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/v1/models",
    "/v1/models/policy",
    "/v1/models/..%2f..",
    "/v1/responses/resp_x",
    "/v1/responses/resp_x/input_items?limit=9999999999999999999999",
    "/v1/responses/%00",
    "/v1/responses/x/cancel",
    "/update_weights",
    "/v1/load_lora_adapter",
    "/inference/v1/generate",
    "/" + "a" * 5000,
    "/?" + "q=" * 3000,
    "/%ff%fe",
    "/v1/chat/completions?api_key=" + KEY_MARK,
    "/v1/chat/completions#x",
    "*",
    "http://elsewhere.invalid/v1/models",
)
METHODS = ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "post", "BREW", "")

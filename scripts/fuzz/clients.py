"""Requests in the form in which widely used clients send them, with every field that these clients fill in."""

from typing import Any

Body = dict[str, Any]

_ANSWER: Body = {
    "type": "object",
    "title": "Answer",
    "description": "What the agent found.",
    "properties": {
        "town": {"type": "string", "title": "Town", "maxLength": 12},
        "warm": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None, "title": "Warm"},
        "days": {"type": "array", "items": {"$ref": "#/$defs/Day"}, "maxItems": 2, "title": "Days"},
    },
    "required": ["town", "warm", "days"],
    "additionalProperties": False,
    "$defs": {
        "Day": {
            "type": "object",
            "title": "Day",
            "properties": {"date": {"type": "string", "format": "date"}, "sun": {"type": "integer", "minimum": 0}},
            "required": ["date", "sun"],
            "additionalProperties": False,
        }
    },
}
"""As pydantic writes the schema of a class."""
_NAMED: Body = {"type": "json_schema", "name": "Answer", "strict": True, "schema": _ANSWER}
_READ: Body = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "limit": {"type": ["integer", "null"]}},
    "required": ["path", "limit"],
    "additionalProperties": False,
}
_TASK = "Which town is warm? Read towns.txt first."
_EPHEMERAL: Body = {"type": "ephemeral"}

CHAT: tuple[Body, ...] = (
    {  # a framework that asks for an object of a class
        "model": "gpt-4o-mini",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": _TASK}],
        "response_format": {"type": "json_schema", "json_schema": {k: v for k, v in _NAMED.items() if k != "type"}},
        "stream": False,
        "temperature": 0.0,
        "parallel_tool_calls": False,
    },
    {  # a framework with strict tools and a turn with calls behind it
        "model": "gpt-4.1",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": _TASK}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": f"call_{n}", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
                    for n in range(2)
                ],
            },
            {"role": "tool", "tool_call_id": "call_0", "name": "read", "content": "Delft 30"},
            {"role": "tool", "tool_call_id": "call_1", "name": "read", "content": [{"type": "text", "text": "none"}]},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "read", "description": "Read.", "parameters": _READ, "strict": True},
            },
            {"type": "function", "function": {"name": "answer", "parameters": _ANSWER, "strict": True}},
        ],
        "tool_choice": "required",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 64,
        "reasoning_effort": "low",
        "service_tier": "auto",
        "store": False,
        "metadata": {"run": "1"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "verbosity": "low",
    },
    {  # a trainer of another project, with the fields of vLLM's server
        "model": "policy",
        "messages": [{"role": "user", "content": _TASK}],
        "n": 2,
        "logprobs": True,
        "top_logprobs": 1,
        "return_token_ids": True,
        "top_k": 20,
        "min_p": 0.01,
        "repetition_penalty": 1.05,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"7": 5, "600": -100},
        "stop_token_ids": [3, 600],
        "chat_template_kwargs": {"enable_thinking": False},
        "guided_json": _ANSWER,
        "max_tokens": 30,
        "seed": 1,
    },
)

COMPLETIONS: tuple[Body, ...] = (
    {  # an evaluation that scores texts
        "model": "policy",
        "prompt": ["The town is", "Warm is"],
        "max_tokens": 0,
        "echo": True,
        "logprobs": 1,
        "temperature": 0,
    },
    {
        "model": "policy",
        "prompt": _TASK,
        "max_tokens": 40,
        "n": 2,
        "best_of": 2,
        "structured_outputs": {"json": _ANSWER},
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.1,
        "logit_bias": {"50": 1},
        "stop": ["\n\n"],
        "stop_token_ids": [],
        "user": "u",
        "stream": True,
        "stream_options": {"include_usage": True, "include_obfuscation": False},
    },
)

RESPONSES: tuple[Body, ...] = (
    {  # a coding agent in a terminal
        "model": "gpt-5-codex",
        "instructions": "You are an agent.\nBe brief.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions/>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": _TASK}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"},
            {"type": "function_call", "name": "read", "arguments": '{"path":"a","limit":null}', "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "Exit code: 0\nOutput:\nDelft 30"},
        ],
        "tools": [{"type": "function", "name": "read", "description": "", "strict": False, "parameters": _READ}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
        "text": {"verbosity": "medium"},
    },
    {  # an SDK for agents, with the class of its output
        "model": "gpt-4.1",
        "input": _TASK,
        "text": {"format": _NAMED},
        "tools": [{"type": "function", "name": "answer", "parameters": _ANSWER, "strict": True}],
        "max_output_tokens": 64,
        "top_logprobs": 1,
        "temperature": 0.3,
        "top_p": 0.9,
        "truncation": "auto",
        "metadata": {"a": "b"},
        "user": "u",
        "service_tier": "default",
        "max_tool_calls": 3,
    },
)

MESSAGES: tuple[Body, ...] = (
    {  # a coding agent in a terminal
        "model": "claude-sonnet-4-5",
        "max_tokens": 64,
        "system": [
            {"type": "text", "text": "You are an agent.", "cache_control": _EPHEMERAL},
            {"type": "text", "text": "Be brief."},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": _TASK, "cache_control": _EPHEMERAL}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Read it.", "signature": "EpAB"},
                    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a", "limit": None}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [{"type": "text", "text": "Delft 30"}],
                        "cache_control": _EPHEMERAL,
                    }
                ],
            },
        ],
        "tools": [{"name": "read", "description": "Read.", "input_schema": _READ, "cache_control": _EPHEMERAL}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "user_1"},
        "output_config": {"effort": "high"},
        "stream": True,
    },
    {
        "model": "claude-sonnet-4-5",
        "max_tokens": 40,
        "messages": [{"role": "user", "content": _TASK}],
        "output_config": {"format": {"type": "json_schema", "schema": _ANSWER}},
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "top_k": 10,
    },
)

"""Wire formats of five model providers, from their public API references, each with a scripted answer.

`PROVIDERS` has one entry for each: Anthropic's Messages with server-sent events, Bedrock's Converse with its binary
event stream, Azure OpenAI, Gemini's generateContent with server-sent events, and Ollama's chat with JSON lines. No
other test module contains these formats.
"""

import binascii
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Json = dict[str, Any]


class ToolCall(NamedTuple):
    """A tool call of the scripted answer."""

    name: str
    arguments: Json


@dataclass
class Script:
    """What a server answers."""

    pieces: tuple[str, ...] = ("Hel", "lo")
    """Text, in the pieces in which a stream sends it."""
    thoughts: tuple[str, ...] = ()
    """Reasoning before the text, in pieces as well; Azure's Chat Completions have none."""
    call: ToolCall | None = None
    cut: bool = False
    """Whether the token limit ended the answer."""
    prompt_tokens: int = 11
    answer_tokens: int = 7
    status: int = 200
    message: str = "slow down"
    """Message of an error, where `status` is one."""
    retry_after: str | None = None
    hold: bool = False
    """Whether a stream stops after its first events, and a plain answer before its first byte, until `go` is set."""
    broken: bool = False
    """Whether the connection ends in the middle of a stream."""


class Request(NamedTuple):
    """A request that a server received."""

    path: str
    headers: dict[str, str]
    body: Json


@dataclass(frozen=True, kw_only=True)
class Provider:
    """One provider's formats, and how a client is pointed at a server of it."""

    model: str
    """A model as LiteLLM writes it: provider and name."""
    variables: Callable[[str, str], dict[str, str]]
    """Environment for the URL of a server and a key."""
    path: Callable[[str, bool], str]
    """Path of a request for a model, streamed or not."""
    plain: Callable[[Script, str], Json]
    stream: Callable[[Script, str], Iterator[bytes]]
    content_type: str
    error: Callable[[Script], Json]
    error_headers: Callable[[Script], dict[str, str]]
    key_of: Callable[[Request], str]
    """The credential that a request carries."""
    response_id: str | None
    """Id of the scripted answer; None where the provider sends none that LiteLLM passes on."""
    headers: dict[str, str] = field(default_factory=dict[str, str])


# --- Anthropic


def _anthropic_stop(script: Script) -> str:
    return "tool_use" if script.call else "max_tokens" if script.cut else "end_turn"


def _anthropic_plain(script: Script, model: str) -> Json:
    content: list[Json] = []
    if script.thoughts:
        content.append({"type": "thinking", "thinking": "".join(script.thoughts), "signature": "EqQBCgIYAhIM"})
    if script.pieces:
        content.append({"type": "text", "text": "".join(script.pieces)})
    if script.call:
        call = {"id": "toolu_01A09q90", "name": script.call.name, "input": script.call.arguments}
        content.append({"type": "tool_use", **call})
    return {
        "id": "msg_013Zva2CMHLNnXjNJJKqJ2EF",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": _anthropic_stop(script),
        "stop_sequence": None,
        "usage": {
            "input_tokens": script.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": script.answer_tokens,
        },
    }


def _named_event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def _anthropic_stream(script: Script, model: str) -> Iterator[bytes]:
    message: Json = {**_anthropic_plain(script, model), "content": [], "stop_reason": None}
    message["usage"] = {**message["usage"], "output_tokens": 1}
    yield _named_event("message_start", message=message)
    index = 0
    if script.thoughts:
        thinking = {"type": "thinking", "thinking": "", "signature": ""}
        yield _named_event("content_block_start", index=0, content_block=thinking)
        for piece in script.thoughts:
            yield _named_event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": piece})
        delta: Json = {"type": "signature_delta", "signature": "EqQBCgIYAhIM"}
        yield _named_event("content_block_delta", index=0, delta=delta)
        yield _named_event("content_block_stop", index=0)
        index = 1
    if script.pieces:
        yield _named_event("content_block_start", index=index, content_block={"type": "text", "text": ""})
        yield _named_event("ping")
        for piece in script.pieces:
            yield _named_event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
        yield _named_event("content_block_stop", index=index)
        index += 1
    if script.call:
        block: Json = {"type": "tool_use", "id": "toolu_01A09q90", "name": script.call.name, "input": {}}
        yield _named_event("content_block_start", index=index, content_block=block)
        for piece in ("", *_halves(json.dumps(script.call.arguments))):
            yield _named_event(
                "content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": piece}
            )
        yield _named_event("content_block_stop", index=index)
    delta = {"stop_reason": _anthropic_stop(script), "stop_sequence": None}
    yield _named_event("message_delta", delta=delta, usage={"output_tokens": script.answer_tokens})
    yield _named_event("message_stop")


_ANTHROPIC_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def _anthropic_error(script: Script) -> Json:
    kind = _ANTHROPIC_ERRORS.get(script.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": script.message}, "request_id": "req_011CSHoEe"}


# --- Bedrock


def _bedrock_usage(script: Script) -> Json:
    total = script.prompt_tokens + script.answer_tokens
    return {"inputTokens": script.prompt_tokens, "outputTokens": script.answer_tokens, "totalTokens": total}


def _bedrock_plain(script: Script, model: str) -> Json:
    content: list[Json] = []
    if script.thoughts:
        content.append({"reasoningContent": {"reasoningText": {"text": "".join(script.thoughts), "signature": "EqQB"}}})
    if script.pieces:
        content.append({"text": "".join(script.pieces)})
    if script.call:
        call = {"toolUseId": "tooluse_kZJMlvQmRJ6", "name": script.call.name, "input": script.call.arguments}
        content.append({"toolUse": call})
    return {
        "metrics": {"latencyMs": 551},
        "output": {"message": {"content": content, "role": "assistant"}},
        "stopReason": _anthropic_stop(script),
        "usage": _bedrock_usage(script),
    }


def _amazon_event(kind: str, payload: Json) -> bytes:
    """One message of Amazon's event stream: two lengths, their checksum, headers, payload, checksum of the whole."""
    headers = b""
    for name, value in ((":event-type", kind), (":content-type", "application/json"), (":message-type", "event")):
        headers += bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
    data = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(data), len(headers))
    message = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + data
    return message + struct.pack(">I", binascii.crc32(message))


def _bedrock_stream(script: Script, model: str) -> Iterator[bytes]:
    yield _amazon_event("messageStart", {"p": "abcd", "role": "assistant"})
    index = 0
    if script.thoughts:
        for delta in (*({"text": piece} for piece in script.thoughts), {"signature": "EqQB"}):
            thought = {"contentBlockIndex": 0, "delta": {"reasoningContent": delta}, "p": "ab"}
            yield _amazon_event("contentBlockDelta", thought)
        yield _amazon_event("contentBlockStop", {"contentBlockIndex": 0, "p": "abc"})
        index = 1
    if script.pieces:
        for piece in script.pieces:
            yield _amazon_event("contentBlockDelta", {"contentBlockIndex": index, "delta": {"text": piece}, "p": "ab"})
        yield _amazon_event("contentBlockStop", {"contentBlockIndex": index, "p": "abc"})
        index += 1
    if script.call:
        start = {"toolUse": {"name": script.call.name, "toolUseId": "tooluse_kZJMlvQmRJ6"}}
        yield _amazon_event("contentBlockStart", {"contentBlockIndex": index, "p": "abc", "start": start})
        for piece in _halves(json.dumps(script.call.arguments)):
            use = {"contentBlockIndex": index, "delta": {"toolUse": {"input": piece}}, "p": "ab"}
            yield _amazon_event("contentBlockDelta", use)
        yield _amazon_event("contentBlockStop", {"contentBlockIndex": index, "p": "abc"})
    yield _amazon_event("messageStop", {"p": "abc", "stopReason": _anthropic_stop(script)})
    yield _amazon_event("metadata", {"metrics": {"latencyMs": 551}, "p": "ab", "usage": _bedrock_usage(script)})


_AMAZON_ERRORS = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
}


# --- Azure OpenAI

_UNFILTERED = {kind: {"filtered": False, "severity": "safe"} for kind in ("hate", "self_harm", "sexual", "violence")}


def _azure_finish(script: Script) -> str:
    return "tool_calls" if script.call else "length" if script.cut else "stop"


def _azure_usage(script: Script) -> Json:
    return {
        "completion_tokens": script.answer_tokens,
        "completion_tokens_details": {"audio_tokens": 0, "reasoning_tokens": 0},
        "prompt_tokens": script.prompt_tokens,
        "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 0},
        "total_tokens": script.prompt_tokens + script.answer_tokens,
    }


def _azure_head(kind: str, model: str) -> Json:
    return {
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "object": kind,
        "created": 1741569952,
        "model": model,
        "system_fingerprint": "fp_6b68a8204b",
    }


def _azure_call(script: Script) -> Json:
    assert script.call
    function = {"name": script.call.name, "arguments": json.dumps(script.call.arguments)}
    return {"id": "call_pOsKdUlqvdyttYB67MOj434b", "type": "function", "function": function}


def _azure_plain(script: Script, model: str) -> Json:
    message: Json = {
        "role": "assistant",
        "content": "".join(script.pieces) or None,
        "refusal": None,
        "annotations": [],
        **({"tool_calls": [_azure_call(script)]} if script.call else {}),
    }
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": _azure_finish(script),
        "content_filter_results": _UNFILTERED,
    }
    return {
        **_azure_head("chat.completion", model),
        "choices": [choice],
        "usage": _azure_usage(script),
        "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": _UNFILTERED}],
    }


def _azure_stream(script: Script, model: str) -> Iterator[bytes]:
    def event(choices: list[Json], **fields: Any) -> bytes:
        chunk = {**_azure_head("chat.completion.chunk", model), "choices": choices, **fields}
        return b"data: " + json.dumps(chunk).encode() + b"\n\n"

    def delta(finish: str | None = None, **fields: Any) -> bytes:
        return event([{"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}], usage=None)

    yield event([], prompt_filter_results=[{"prompt_index": 0, "content_filter_results": _UNFILTERED}])
    yield delta(role="assistant", content="" if script.pieces else None, refusal=None)
    for piece in script.pieces:
        yield delta(content=piece)
    if script.call:
        call = _azure_call(script)
        first = {**call, "index": 0, "function": {**call["function"], "arguments": ""}}
        yield delta(tool_calls=[first])
        for piece in _halves(call["function"]["arguments"]):
            yield delta(tool_calls=[{"index": 0, "function": {"arguments": piece}}])
    yield delta(_azure_finish(script))
    yield event([], usage=_azure_usage(script))
    yield b"data: [DONE]\n\n"


# --- Gemini


def _gemini_answer(script: Script, model: str, parts: list[Json], *, last: bool) -> Json:
    candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if last:
        candidate["finishReason"] = "MAX_TOKENS" if script.cut else "STOP"
    usage = {
        "promptTokenCount": script.prompt_tokens,
        "candidatesTokenCount": script.answer_tokens,
        "totalTokenCount": script.prompt_tokens + script.answer_tokens,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": script.prompt_tokens}],
    }
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": model,
        "responseId": "mK8TaPqcJ5uX1MkP3JmY2Ag",
    }


def _gemini_call(script: Script) -> list[Json]:
    return [{"functionCall": {"name": script.call.name, "args": script.call.arguments}}] if script.call else []


def _gemini_plain(script: Script, model: str) -> Json:
    text = [{"text": "".join(script.pieces)}] if script.pieces else []
    thoughts = [{"text": "".join(script.thoughts), "thought": True}] if script.thoughts else []
    return _gemini_answer(script, model, [*thoughts, *text, *_gemini_call(script)], last=True)


def _gemini_stream(script: Script, model: str) -> Iterator[bytes]:
    thoughts = ({"text": piece, "thought": True} for piece in script.thoughts)
    parts = [*thoughts, *({"text": piece} for piece in script.pieces), *_gemini_call(script)]
    for number, part in enumerate(parts, 1):
        answer = _gemini_answer(script, model, [part], last=number == len(parts))
        yield b"data: " + json.dumps(answer).encode() + b"\r\n\r\n"


_GOOGLE_ERRORS = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


# --- Ollama


def _ollama_message(script: Script, text: str, *, calls: bool) -> Json:
    message: Json = {"role": "assistant", "content": text}
    if calls and script.call:
        message["tool_calls"] = [{"function": script.call._asdict()}]
    return message


def _ollama_last(script: Script) -> Json:
    return {
        "done": True,
        "done_reason": "length" if script.cut else "stop",
        "total_duration": 4883583458,
        "load_duration": 1334875,
        "prompt_eval_count": script.prompt_tokens,
        "prompt_eval_duration": 342546000,
        "eval_count": script.answer_tokens,
        "eval_duration": 4535599000,
    }


def _ollama_head(model: str) -> Json:
    return {"model": model, "created_at": "2025-08-04T19:22:45.499127Z"}


def _ollama_plain(script: Script, model: str) -> Json:
    message = _ollama_message(script, "".join(script.pieces), calls=True)
    if script.thoughts:
        message["thinking"] = "".join(script.thoughts)
    return {**_ollama_head(model), "message": message, **_ollama_last(script)}


def _ollama_stream(script: Script, model: str) -> Iterator[bytes]:
    def line(message: Json, **fields: Any) -> bytes:
        return json.dumps({**_ollama_head(model), "message": message, "done": False, **fields}).encode() + b"\n"

    for piece in script.thoughts:
        yield line({"role": "assistant", "content": "", "thinking": piece})
    for piece in script.pieces:
        yield line(_ollama_message(script, piece, calls=False))
    if script.call:
        yield line(_ollama_message(script, "", calls=True))
    yield line({"role": "assistant", "content": ""}, **_ollama_last(script))


# --- All of them


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


PROVIDERS: dict[str, Provider] = {
    "anthropic": Provider(
        model="anthropic/claude-sonnet-4-5",
        variables=lambda url, key: {"ANTHROPIC_API_BASE": url, "ANTHROPIC_API_KEY": key},
        path=lambda model, stream: "/v1/messages",
        plain=_anthropic_plain,
        stream=_anthropic_stream,
        content_type="text/event-stream; charset=utf-8",
        error=_anthropic_error,
        error_headers=lambda script: {},
        key_of=lambda request: request.headers["x-api-key"],
        response_id="req_011CSHoEeqs5C35K2UUqR7Fy",
        headers={"request-id": "req_011CSHoEeqs5C35K2UUqR7Fy"},
    ),
    "bedrock": Provider(
        model="bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0",
        variables=lambda url, key: {
            "AWS_BEDROCK_RUNTIME_ENDPOINT": url,
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE0LEYDEN00",
            "AWS_SECRET_ACCESS_KEY": key,
            "AWS_REGION": "us-east-1",
            "AWS_REGION_NAME": "us-east-1",
        },
        path=lambda model, stream: f"/model/{model.replace(':', '%3A')}/converse{'-stream' if stream else ''}",
        plain=_bedrock_plain,
        stream=_bedrock_stream,
        content_type="application/vnd.amazon.eventstream",
        error=lambda script: {"message": script.message},
        error_headers=lambda script: {"x-amzn-ErrorType": _AMAZON_ERRORS.get(script.status, "InternalServerException")},
        key_of=lambda request: request.headers["authorization"],
        response_id="3f6a0d5e-8f7b-4d0e-9c0a-1f5a7b2c9d10",
        headers={"x-amzn-RequestId": "3f6a0d5e-8f7b-4d0e-9c0a-1f5a7b2c9d10"},
    ),
    "azure": Provider(
        model="azure/gpt-4.1-deployment",
        variables=lambda url, key: {
            "AZURE_API_BASE": url,
            "AZURE_API_KEY": key,
            "AZURE_API_VERSION": "2024-10-21",
        },
        path=lambda model, stream: f"/openai/deployments/{model}/chat/completions?api-version=2024-10-21",
        plain=_azure_plain,
        stream=_azure_stream,
        content_type="text/event-stream; charset=utf-8",
        error=lambda script: {"error": {"code": str(script.status), "message": script.message}},
        error_headers=lambda script: {},
        key_of=lambda request: request.headers["api-key"],
        response_id="chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
    ),
    "gemini": Provider(
        model="gemini/gemini-2.5-flash",
        variables=lambda url, key: {"GEMINI_API_BASE": f"{url}/v1beta", "GEMINI_API_KEY": key},
        path=lambda model, stream: (
            f"/v1beta/models/{model}:" + ("streamGenerateContent?alt=sse" if stream else "generateContent")
        ),
        plain=_gemini_plain,
        stream=_gemini_stream,
        content_type="text/event-stream",
        error=lambda script: {
            "error": {
                "code": script.status,
                "message": script.message,
                "status": _GOOGLE_ERRORS.get(script.status, "UNKNOWN"),
            }
        },
        error_headers=lambda script: {},
        key_of=lambda request: request.headers["x-goog-api-key"],
        response_id="mK8TaPqcJ5uX1MkP3JmY2Ag",
    ),
    "ollama": Provider(
        model="ollama/llama3.2",
        variables=lambda url, key: {"OLLAMA_API_BASE": url, "OLLAMA_API_KEY": key},
        path=lambda model, stream: "/api/chat",
        plain=_ollama_plain,
        stream=_ollama_stream,
        content_type="application/x-ndjson",
        error=lambda script: {"error": script.message},
        error_headers=lambda script: {},
        key_of=lambda request: request.headers["authorization"].removeprefix("Bearer "),
        response_id=None,
    ),
}

"""Requests and answers of OpenAI's API, as JSON and as events of streams."""

import base64
import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

from zoo_harness.script import Answer, ToolCall, Turn, arguments_of

CHUNK = 7
"""Characters in a piece of a streamed answer."""


def error_body(status: int) -> dict[str, Any]:
    """The error that a provider answers with."""
    message = {429: "Rate limit reached.", 401: "Incorrect API key provided."}.get(status, "The server had an error.")
    return {"error": {"message": message, "type": "zoo_error", "param": None, "code": None}}


# --- What a request says


def turns_of(body: Mapping[str, Any]) -> list[Turn]:
    """The conversation of a request of either API, as text."""
    if "messages" in body:
        return [Turn(_role(message["role"]), _text(message)) for message in body["messages"]]
    items: Any = body.get("input") or []
    turns = [Turn("system", body["instructions"])] if body.get("instructions") else []
    if isinstance(items, str):
        return [*turns, Turn("user", items)]
    return [*turns, *filter(None, map(_item_turn, items))]


def _item_turn(item: Mapping[str, Any]) -> Turn | None:
    match item.get("type", "message"):
        case "message":
            return Turn(_role(item["role"]), _text(item))
        case "function_call_output":
            return Turn("tool", str(item["output"]))
        case "function_call":
            return Turn("assistant", f"{item['name']}({item['arguments']})")
        case _:
            return None


def _role(role: str) -> str:
    return "system" if role == "developer" else role


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text") or "" for part in content)
    called = [f"{call['function']['name']}" for call in message.get("tool_calls") or ()]
    return content + "".join(called)


# --- Answers of Chat Completions

_USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
}


def _head(body: Mapping[str, Any], number: int) -> dict[str, Any]:
    named = {"id": f"chatcmpl-zoo{number}", "created": 1, "model": body["model"]}
    return {**named, "system_fingerprint": "fp_zoo", "service_tier": "default"}


def chat_answer(body: Mapping[str, Any], answer: Answer, number: int) -> dict[str, Any]:
    """What the Chat Completions API answers."""
    choices = [_choice(index, answer, f"{number}{index}") for index in range(body.get("n") or 1)]
    return {**_head(body, number), "object": "chat.completion", "choices": choices, "usage": _USAGE}


def chat_events(body: Mapping[str, Any], answer: Answer, number: int) -> list[bytes]:
    """The same as events of a stream; without an end where the answer has none."""
    head = {**_head(body, number), "object": "chat.completion.chunk"}
    options: dict[str, Any] = body.get("stream_options") or {}
    usage = {"usage": None} if options.get("include_usage") else {}
    deltas = [
        {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        for index in range(body.get("n") or 1)
        for delta, finish in _deltas(answer, f"{number}{index}", has_tools=bool(body.get("tools")))
    ]
    events = [_event({**head, "choices": [delta], **usage}) for delta in deltas]
    if answer.held:
        return events[:-2]
    if usage:
        events.append(_event({**head, "choices": [], "usage": _USAGE}))
    return [*events, b"data: [DONE]\n\n"]


def _choice(index: int, answer: Answer, number: str) -> dict[str, Any]:
    calls = [_tool_call(call, f"{number}{place}") for place, call in enumerate(answer.calls)]
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if calls else "")}
    message |= {"refusal": None, "annotations": [], **({"tool_calls": calls} if calls else {})}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": _finish(answer)}


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _tool_call(call: ToolCall, number: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(arguments_of(call))}
    return {"id": f"call_zoo{number}", "type": "function", "function": function}


def _deltas(answer: Answer, number: str, *, has_tools: bool) -> list[tuple[dict[str, Any], str | None]]:
    """What the events add, each with why the answer ends; the first names the role, as the provider's does."""
    opening = {"role": "assistant", "content": None, "refusal": None}
    deltas: list[dict[str, Any]] = [
        {"content": piece} for piece in (_pieces(answer.text) if has_tools else _cut(answer.text))
    ]
    if deltas or not answer.calls:
        deltas.insert(0, {**opening, "content": ""})
    for place, call in enumerate(answer.calls):
        whole = _tool_call(call, f"{number}{place}")
        named = {"tool_calls": [{"index": place, **whole, "function": {"name": call.name, "arguments": ""}}]}
        deltas.append(named if deltas else {**opening, **named})
        arguments = whole["function"]["arguments"]
        deltas.append({"tool_calls": [{"index": place, "function": {"arguments": arguments}}]})
    return [*((delta, None) for delta in deltas), ({}, _finish(answer))]


def _cut(text: str) -> list[str]:
    return [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]


def _pieces(text: str) -> list[str]:
    """The text in pieces that no space ends: it may come before a tool call, and is then no part of the text."""
    pieces: list[str] = []
    for piece in _cut(text):
        kept = pieces.pop() + piece if pieces and not pieces[-1].strip() else piece
        if pieces and (spaces := len(pieces[-1]) - len(pieces[-1].rstrip())):
            kept, pieces[-1] = pieces[-1][-spaces:] + kept, pieces[-1][:-spaces]
        pieces.append(kept)
    return pieces


def _event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


# --- Answers of Responses


def response_answer(body: Mapping[str, Any], answer: Answer, number: int) -> dict[str, Any]:
    """What the Responses API answers."""
    output: list[dict[str, Any]] = []
    if answer.text or not answer.calls:
        part: dict[str, Any] = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        item = {"id": f"msg_zoo{number}", "type": "message", "status": "completed", "role": "assistant"}
        output.append({**item, "content": [part]})
    for place, call in enumerate(answer.calls):
        ids = {"id": f"fc_zoo{number}{place}", "call_id": f"call_zoo{number}{place}"}
        arguments = json.dumps(arguments_of(call))
        output.append(
            {"type": "function_call", "status": "completed", "name": call.name, "arguments": arguments, **ids}
        )
    tokens = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": f"resp_zoo{number}",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "model": body["model"],
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {**tokens, **details},
    }


def response_events(body: Mapping[str, Any], answer: Answer, number: int) -> list[bytes]:
    """The same as events of a stream."""
    done = response_answer(body, answer, number)
    begun: dict[str, Any] = {**done, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(done["output"]):
        events += _item_events(index, item)
    events.append({"type": "response.completed", "response": done})
    return [_event({**event, "sequence_number": n}, event["type"]) for n, event in enumerate(events)]


def _item_events(index: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    place = {"output_index": index, "item_id": item["id"]}
    if item["type"] == "function_call":
        name = "response.function_call_arguments"
        begun = {**item, "status": "in_progress", "arguments": ""}
        return [
            {"type": "response.output_item.added", "output_index": index, "item": begun},
            {"type": f"{name}.delta", **place, "delta": item["arguments"]},
            {"type": f"{name}.done", **place, "name": item["name"], "arguments": item["arguments"]},
            {"type": "response.output_item.done", "output_index": index, "item": item},
        ]
    (part,) = item["content"]
    where = {**place, "content_index": 0}
    deltas: list[dict[str, Any]] = [
        {"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []} for piece in _cut(part["text"])
    ]
    return [
        {
            "type": "response.output_item.added",
            "output_index": index,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
        *deltas,
        {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **where, "part": part},
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


# --- Embeddings


def embeddings(body: Mapping[str, Any]) -> dict[str, Any]:
    """Made-up embeddings of eight numbers."""
    given = body["input"]
    texts = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]  # pyright: ignore[reportUnknownVariableType]  # JSON
    data = [{"object": "embedding", "index": n, "embedding": _vector(text, body)} for n, text in enumerate(texts)]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # JSON
    return {"object": "list", "data": data, "model": body["model"], "usage": {"prompt_tokens": 1, "total_tokens": 1}}


def _vector(text: Any, body: Mapping[str, Any]) -> Any:
    digest = hashlib.sha256(json.dumps(text).encode()).digest()[:8]
    values = [byte / 255 for byte in digest]
    if body.get("encoding_format") == "base64":
        return base64.b64encode(struct.pack("<8f", *values)).decode()
    return values

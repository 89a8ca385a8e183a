"""Answers of LiteLLM in OpenAI's exact format: plain responses, stream events and errors.

LiteLLM's objects have further fields, nulls and ids of its own. What is built here has the fields of Chat Completions
and no others.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from leyden.core.gateway.chat.format import (
    DONE,
    AnswerHead,
    ChatFinish,
    Delta,
    Logprobs,
    Usage,
    answer_message,
    completion,
    delta_event,
    plain_choice,
    reasoning_delta,
    usage_event,
)
from leyden.core.gateway.codecs.answer_reader import AnswerCall
from leyden.core.gateway.model_request import UNREADABLE
from leyden.core.gateway.refusal import Refusal
from leyden.core.masking import mask_text

Fields = Mapping[str, Any]

_FINISH: dict[str, ChatFinish] = {
    "content_filter": "content_filter",
    "function_call": "tool_calls",
    "length": "length",
    "stop": "stop",
    "tool_calls": "tool_calls",
}
_ID_HEADERS = ("llm_provider-request-id", "llm_provider-x-amzn-requestid", "llm_provider-x-request-id")
"""Headers in which providers send a response's id, as LiteLLM passes them on."""
_OWN_IDS = ("chatcmpl-",)

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_PREFIX = re.compile(r"^(?:litellm\.\w+:\s*)+(?:\w+(?: \w+)? - )?")
_ADVICE = re.compile(r"\s*(?:Handle with `litellm|To drop these, set `litellm|\n).*", re.DOTALL)


def response_id(answer: Fields, headers: Fields) -> str:
    """Return the provider's id of a response: its own, or the id of the request in the headers.

    LiteLLM makes an id where a provider's response has none, or where it does not pass it on.
    """
    given = str(answer.get("id") or "")
    sent = next((str(headers[name]) for name in _ID_HEADERS if headers.get(name)), "")
    is_made = not given or given.startswith(_OWN_IDS)
    return (sent or given) if is_made else given


def plain_answer(head: AnswerHead, answer: Fields) -> bytes:
    """Return the JSON of a plain response."""
    choices = [_plain_choice(index, choice) for index, choice in enumerate(_objects(answer, "choices"))]
    return completion(head, choices, token_usage(answer.get("usage")))


def _plain_choice(index: int, choice: Fields) -> Any:
    message = _object(choice, "message")
    calls = [
        AnswerCall(
            id=call.get("id") or _call_id(), name=_function(call, "name"), arguments=_function(call, "arguments")
        )
        for call in _objects(message, "tool_calls")
    ]
    content = message.get("content")
    return plain_choice(
        index,
        answer_message(content or (None if calls else ""), calls, message.get("reasoning_content")),
        _finish(choice, has_calls=bool(calls)),
        _logprobs(choice),
    )


class ProviderStream:
    """Builder of the events of one stream."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._opened: set[int] = set()
        self._finishes: dict[int, ChatFinish] = {}
        self._with_calls: set[int] = set()
        self._usage: Usage | None = None

    def events(self, chunk: Fields) -> bytes:
        """Return the events for a chunk of LiteLLM; empty if it adds nothing that an agent can see."""
        if chunk.get("usage"):
            self._usage = token_usage(chunk["usage"])
        return b"".join(self._choice(choice) for choice in _objects(chunk, "choices"))

    def last(self) -> tuple[bytes, bytes]:
        """Return the last events, as recorded and as sent: token counts are sent only if the agent requested them."""
        events = b"".join(
            self._opening(index) + delta_event(self._head, index, Delta(), self._finishes.get(index, "stop"))
            for index in sorted(self._opened | self._finishes.keys()) or [0]
        )
        counts = b"" if self._usage is None else usage_event(self._head, self._usage)
        return events + counts + DONE, events + (counts if self._head.include_usage else b"") + DONE

    def _choice(self, choice: Fields) -> bytes:
        index = int(choice.get("index") or 0)
        delta = _object(choice, "delta")
        calls = _objects(delta, "tool_calls")
        if calls:
            self._with_calls.add(index)
        if choice.get("finish_reason"):
            self._finishes[index] = _finish(choice, has_calls=index in self._with_calls)
        events: list[bytes] = []
        if thoughts := delta.get("reasoning_content"):
            events.append(delta_event(self._head, index, reasoning_delta(thoughts)))
        if text := delta.get("content"):
            events.append(delta_event(self._head, index, Delta(content=text), token_logprobs=_logprobs(choice)))
        for call in calls:
            if piece := _call_delta(call):
                events.append(delta_event(self._head, index, piece))
        return self._opening(index) + b"".join(events) if events else b""

    def _opening(self, index: int) -> bytes:
        """Return the event that opens a choice; empty after the first call for this choice."""
        if index in self._opened:
            return b""
        self._opened.add(index)
        return delta_event(self._head, index, Delta(role="assistant", content="", refusal=None))


def token_usage(given: Fields | None) -> Usage:
    """Return the token counts in OpenAI's format; zeros where the provider sends none."""
    counts = given or {}
    prompt, answer = _count(counts, "prompt_tokens"), _count(counts, "completion_tokens")
    values = {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": _counts(_object(counts, "prompt_tokens_details"), "cached_tokens", "audio_tokens"),
        "completion_tokens_details": _counts(
            _object(counts, "completion_tokens_details"), "reasoning_tokens", "audio_tokens"
        ),
    }
    return msgspec.convert(values, Usage)


def provider_refusal(status: int, body: str, headers: Fields) -> Refusal:
    """Return the error response for an error of the provider: its status, its message without secrets, Retry-After."""
    after = headers.get("retry-after")
    message = mask_text(_message(body)) or f"The provider answered with status {status}."
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = "rate_limit_exceeded" if status == 429 else None
    return Refusal(status, message, type=kind, code=code, headers={"retry-after": str(after)} if after else None)


def library_refusal(status: int, message: str) -> Refusal:
    """Return the error response for an error that LiteLLM raised without one of the provider."""
    text = _ADVICE.sub("", _PREFIX.sub("", message)).strip()
    return provider_refusal(status, text, {})


def _message(body: str) -> str:
    """Return the message in a provider's error body, or the body itself."""
    try:
        found: Any = msgspec.json.decode(body)
    except UNREADABLE:
        return body.strip()[:2000]
    if isinstance(found, list) and found:
        found = cast("list[Any]", found)[0]
    fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    error: Any = fields.get("error", fields)
    if isinstance(error, str):
        return error
    return str(cast("dict[str, Any]", error).get("message") or fields.get("Message") or body.strip()[:2000])


def _finish(choice: Fields, *, has_calls: bool) -> ChatFinish:
    reason = _FINISH.get(str(choice.get("finish_reason")), "stop")
    return "tool_calls" if has_calls and reason == "stop" else reason


def _logprobs(choice: Fields) -> Logprobs | None:
    given = choice.get("logprobs")
    try:
        return msgspec.convert({"content": given["content"], "refusal": None}, Logprobs) if given else None
    except (KeyError, TypeError, msgspec.ValidationError):
        return None


def _call_delta(call: Fields) -> Delta | None:
    """Return the addition to a tool call; None if it adds nothing."""
    index, name, arguments = call.get("index") or 0, _function(call, "name"), _function(call, "arguments")
    if name:
        function = {"name": name, "arguments": arguments}
        first = {"index": index, "id": call.get("id") or _call_id(), "type": "function", "function": function}
        return msgspec.convert({"tool_calls": [first]}, Delta)
    if not arguments:
        return None
    return msgspec.convert({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}, Delta)


def _function(call: Fields, name: str) -> str:
    return str(_object(call, "function").get(name) or "")


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _count(counts: Fields, name: str) -> int:
    value = counts.get(name)
    return value if isinstance(value, int) else 0


def _counts(given: Fields, *names: str) -> dict[str, int]:
    return {name: _count(given, name) for name in names}


def _object(fields: Fields, name: str) -> Fields:
    return fields.get(name) or {}


def _objects(fields: Fields, name: str) -> list[Fields]:
    return fields.get(name) or []

"""Format of Messages responses: builds the JSON of plain responses and of stream events.

The responses have exactly the provider's fields. Fields without a value here are null, as the provider sends them.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

import msgspec

from leyden.core.gateway.anthropic.blocks import INVALID_JSON
from leyden.core.gateway.anthropic.errors import new_request_id, request_headers
from leyden.core.gateway.codecs.answer_reader import AnswerCall, ReadPart
from leyden.core.gateway.dialect import FinishedChoice
from leyden.core.gateway.model_request import UNREADABLE
from leyden.core.gateway.reasoning import Reasoning, sealed

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]

Fields: TypeAlias = dict[str, Any]

PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int = 0

    def described(self) -> Fields:
        """Return the model in the provider's format."""
        created = datetime.fromtimestamp(self.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"type": "model", "id": self.id, "display_name": self.id, "created_at": created}


class _Models(msgspec.Struct, frozen=True, kw_only=True):
    data: list[_Model]


def anthropic_models(body: bytes) -> bytes:
    """Return a list of models, or one model, of OpenAI's format in Anthropic's; any other JSON is unchanged."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        if "has_more" in fields or "display_name" in fields:
            return body  # an endpoint that answers in Anthropic's format
        if "data" not in fields:
            return msgspec.json.encode(msgspec.json.decode(body, type=_Model).described())
        found = msgspec.json.decode(body, type=_Models).data
    except (*UNREADABLE, ValueError, OverflowError):
        return body
    ends = {"first_id": found[0].id, "last_id": found[-1].id} if found else {"first_id": None, "last_id": None}
    return msgspec.json.encode({"data": [model.described() for model in found], "has_more": False, **ends})


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Fields that a plain response and the first event of a stream share."""

    id: str
    model: str
    """Name of the model in the agent's request."""
    input_tokens: int
    thinking: Literal["shown", "sealed", "hidden"] = "hidden"
    """How the response has the reasoning: as text, as an opaque copy, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Fields about the end of a response."""

    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    output_tokens: int = 0
    thinking_tokens: int = 0


def ending(choice: FinishedChoice) -> Ending:
    """Return how a response ended."""
    reader = choice.reader
    reason: StopReason = "end_turn"
    if choice.cut:
        reason = "max_tokens"
    elif reader.calls:
        reason = "tool_use"
    elif reader.stop_string is not None:
        reason = "stop_sequence"
    return Ending(
        stop_reason=reason,
        stop_sequence=reader.stop_string if reason == "stop_sequence" else None,
        output_tokens=choice.tokens,
        thinking_tokens=choice.reasoning_tokens,
    )


def message(head: Head, content: Sequence[Fields], end: Ending) -> Fields:
    """Return a response in the provider's format."""
    cache_creation = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}
    place = {"service_tier": "standard", "inference_geo": "global"}
    usage = _usage(head, end) | {"cache_creation": cache_creation} | place
    return {
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": list(content),
        "stop_reason": end.stop_reason,
        "stop_sequence": end.stop_sequence,
        "stop_details": None,
        "usage": usage,
    }


def content_blocks(head: Head, parts: Sequence[ReadPart]) -> list[Fields]:
    """Return the thinking, texts and tool calls of a response as blocks, in order; one empty text block without any."""
    blocks: list[Fields] = []
    thoughts = "".join(part.text for part in parts if isinstance(part, Reasoning))
    if thoughts and head.thinking != "hidden":
        blocks.append(thinking_block(thoughts if head.thinking == "shown" else "", signature(head, thoughts)))
    rest = [part for part in parts if not isinstance(part, Reasoning)]
    for part in rest or ([] if blocks else [""]):
        if not isinstance(part, str):
            blocks.append(tool_block(part) | {"input": msgspec.Raw(call_input(part).encode())})
        elif blocks and blocks[-1]["type"] == "text":
            blocks[-1]["text"] += part
        else:
            blocks.append(text_block(part))
    return blocks


def text_block(text: str = "") -> Fields:
    """Return a text block."""
    return {"type": "text", "text": text}


def thinking_block(text: str = "", given_signature: str = "") -> Fields:
    """Return a block of the policy's reasoning."""
    return {"type": "thinking", "thinking": text, "signature": given_signature}


def signature(head: Head, thoughts: str) -> str:
    """Return the signature of a thinking block, which agents keep without reading it.

    It is a copy of the reasoning if the block does not show it, and else a short hash.
    """
    if head.thinking == "sealed":
        return sealed(thoughts)
    return b64encode(blake2b(thoughts.encode(), digest_size=24).digest()).decode()


def tool_block(call: AnswerCall) -> Fields:
    """Return the block of a tool call with an empty input, as a stream begins it."""
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}


def call_input(call: AnswerCall) -> str:
    """Return the arguments of a tool call as the JSON of an object, as the policy wrote them.

    A forced call may have other arguments. They become an object with the only key `INVALID_JSON`, which the provider's
    documentation uses for such a text. A call that was cut off before its arguments has an empty object.
    """
    if not call.arguments.strip():
        return "{}"
    try:
        if isinstance(msgspec.json.decode(call.arguments), dict):
            return call.arguments
    except UNREADABLE:
        pass
    return msgspec.json.encode({INVALID_JSON: call.arguments}).decode()


def count_answer(tokens: int) -> tuple[bytes, Mapping[str, str]]:
    """Return the JSON and the headers of a response with the number of tokens of a prompt."""
    return msgspec.json.encode({"input_tokens": tokens}), request_headers(new_request_id())


def start_event(head: Head) -> bytes:
    """Return the event that begins a stream; it is sent with the first token of the response."""
    return event("message_start", {"message": message(head, [], Ending(output_tokens=1))})


def block_start(index: int, block: Mapping[str, object]) -> bytes:
    """Return the event that begins a block."""
    return event("content_block_start", {"index": index, "content_block": block})


def text_delta(index: int, text: str) -> bytes:
    """Return the event that adds text to a block."""
    return event("content_block_delta", {"index": index, "delta": {"type": "text_delta", "text": text}})


def thinking_delta(index: int, text: str) -> bytes:
    """Return the event that adds reasoning to a block."""
    return event("content_block_delta", {"index": index, "delta": {"type": "thinking_delta", "thinking": text}})


def signature_delta(index: int, given_signature: str) -> bytes:
    """Return the event that adds the signature to a thinking block."""
    delta = {"type": "signature_delta", "signature": given_signature}
    return event("content_block_delta", {"index": index, "delta": delta})


def input_delta(index: int, partial_json: str) -> bytes:
    """Return the event that adds JSON to the input of a tool call."""
    delta = {"type": "input_json_delta", "partial_json": partial_json}
    return event("content_block_delta", {"index": index, "delta": delta})


def block_stop(index: int) -> bytes:
    """Return the event that ends a block."""
    return event("content_block_stop", {"index": index})


def end_events(head: Head, end: Ending) -> bytes:
    """Return the events that end a stream."""
    delta = {"stop_reason": end.stop_reason, "stop_sequence": end.stop_sequence, "stop_details": None}
    return event("message_delta", {"delta": delta, "usage": _usage(head, end)}) + event("message_stop", {})


def event(kind: str, fields: Mapping[str, object]) -> bytes:
    """Return one stream event."""
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode({"type": kind, **fields}) + b"\n\n"


def _usage(head: Head, end: Ending) -> Fields:
    """Return the token counts; those of the thinking only at the end of a response."""
    details = {"output_tokens_details": {"thinking_tokens": end.thinking_tokens}}
    return {
        "input_tokens": head.input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": end.output_tokens,
        **(details if end.stop_reason is not None else {}),
    }

"""Format of the Responses API: builds the JSON of whole responses and of stream events.

The responses have exactly the provider's fields. Fields without a value here are null, as the provider sends them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, TypeAlias

import msgspec

from leyden.core.gateway.codecs.answer_reader import AnswerCall, ReadPart, ReadToken
from leyden.core.gateway.reasoning import Reasoning
from leyden.core.gateway.responses.items import Item, call_item, item_id, message_item, reasoning_item, text_part
from leyden.core.gateway.responses.request import Settings

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]

Response: TypeAlias = dict[str, Any]
"""A response in the provider's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Fields that all versions of one response share."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    """Name of the model in the agent's request."""
    settings: Settings
    padded: bool = False
    """Whether the events of a stream are padded, which hides the length of their text."""
    copies_reasoning: bool = False
    """Whether items of reasoning have an opaque copy of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Fields about the end of a response."""

    status: Status = "completed"
    completed_at: int | None = None
    """Unix seconds; None if the response is not complete."""
    error: Mapping[str, str] | None = None
    usage: Mapping[str, object] | None = None


def response(head: Head, output: Sequence[Item], ending: Ending) -> Response:
    """Return a response in the provider's format."""
    settings = head.settings
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "status": ending.status,
        "background": False,
        "completed_at": ending.completed_at,
        "error": ending.error,
        "frequency_penalty": 0.0,
        "incomplete_details": {"reason": "max_output_tokens"} if ending.status == "incomplete" else None,
        "instructions": settings.instructions,
        "max_output_tokens": settings.max_output_tokens,
        "max_tool_calls": settings.max_tool_calls,
        "model": head.model,
        "moderation": None,
        "output": list(output),
        "parallel_tool_calls": settings.parallel_tool_calls,
        "presence_penalty": 0.0,
        "previous_response_id": settings.previous_response_id,
        "prompt_cache_key": settings.prompt_cache_key,
        "prompt_cache_retention": settings.prompt_cache_retention,
        "reasoning": settings.reasoning,
        "safety_identifier": settings.safety_identifier,
        "service_tier": "auto" if ending.status == "in_progress" else "default",
        "store": settings.store,
        "temperature": settings.temperature,
        "text": settings.text,
        "tool_choice": settings.tool_choice,
        "tools": settings.tools,
        "top_logprobs": settings.top_logprobs,
        "top_p": settings.top_p,
        "truncation": settings.truncation,
        "usage": ending.usage,
        "user": settings.user,
        "metadata": settings.metadata,
    }


def billed(answer: Response) -> Response:
    """Return a response with the field `billing`, which the provider sends only in responses that are not streamed."""
    return answer | {"billing": {"payer": "developer"}}


def usage(input_tokens: int, output_tokens: int, reasoning_tokens: int = 0) -> dict[str, object]:
    """Return the token counts in the provider's format."""
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": input_tokens + output_tokens,
    }


def logprobs(tokens: Sequence[ReadToken] | None) -> list[Item]:
    """Return log-probabilities in the provider's format; empty without tokens."""
    return [_logprob(token) | {"top_logprobs": [_logprob(other) for other in token.top]} for token in tokens or ()]


def _logprob(token: ReadToken) -> Item:
    return {"token": token.text, "bytes": token.bytes, "logprob": token.logprob}


def output_items(head: Head, parts: Sequence[ReadPart], tokens: Sequence[ReadToken], *, cut: bool) -> list[Item]:
    """Return the response's reasoning, texts and calls as items, in order; one empty text if there are no parts.

    If the response was cut off (`cut`), a text or reasoning at the end is incomplete. A tool call is never incomplete,
    because the parser returns only complete calls.
    """
    groups = [(kind, list(group)) for kind, group in groupby(parts or [""], key=type)]
    items: list[Item] = []
    first = next((index for index, (kind, _) in enumerate(groups) if kind is not Reasoning), None)
    for index, (kind, group) in enumerate(groups):
        status = "incomplete" if cut and index == len(groups) - 1 else "completed"
        if kind is str:
            part = text_part("".join(map(str, group)), logprobs(tokens) if index == first else ())
            items.append(message(head.id, len(items), [part], status))
        elif kind is Reasoning:
            text = "".join(part.text for part in group if isinstance(part, Reasoning))
            items.append(reasoning(head, len(items), text, status))
        else:
            items += [call(head.id, len(items) + n, one_call) for n, one_call in enumerate(group)]  # pyright: ignore[reportArgumentType]  # the group holds calls
    return items


def message(response_id: str, index: int, content: list[Item], status: str = "completed") -> Item:
    """Return the assistant's message as the item at `index` of a response."""
    return {"id": item_id("message", response_id, str(index))} | message_item("assistant", content, status)


def reasoning(head: Head, index: int, text: str, status: str = "completed") -> Item:
    """Return the reasoning as the item at `index` of a response."""
    item = reasoning_item(text, status, with_copy=head.copies_reasoning)
    return {"id": item_id("reasoning", head.id, str(index))} | item


def call(
    response_id: str, index: int, answer_call: AnswerCall, status: str = "completed", arguments: str | None = None
) -> Item:
    """Return a tool call as the item at `index` of a response; `arguments`, if given, replaces the call's own."""
    arguments_text = answer_call.arguments if arguments is None else arguments
    return {"id": item_id("function_call", response_id, str(index))} | call_item(
        answer_call.id, answer_call.name, arguments_text, status
    )


def event(kind: str, number: int, fields: Mapping[str, object]) -> bytes:
    """Return one stream event."""
    data = msgspec.json.encode({"type": kind, **fields, "sequence_number": number})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

"""Responses answers in the provider's own fields, whole and as stream events. Knows nothing of engines.

Every field is one the provider sends, with the provider's null where we have nothing to say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, TypeAlias

import msgspec

from leyden.core.gateway.codecs.answer_reader import AnswerCall, ReadPart, ReadToken
from leyden.core.gateway.responses.items import Item, call_item, item_id, message_item, text_part
from leyden.core.gateway.responses.request import Settings

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]

Response: TypeAlias = dict[str, Any]
"""An answer as the provider writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every form of one answer has in common."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    """As the agent named it."""
    settings: Settings
    padded: bool = False
    """Whether a stream hides how long its pieces are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an answer ended."""

    status: Status = "completed"
    completed_at: int | None = None
    """Unix seconds; None where it did not come to its end."""
    error: Mapping[str, str] | None = None
    usage: Mapping[str, object] | None = None


def response(head: Head, output: Sequence[Item], ending: Ending) -> Response:
    """Put an answer together."""
    asked = head.settings
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
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "model": head.model,
        "moderation": None,
        "output": list(output),
        "parallel_tool_calls": asked.parallel_tool_calls,
        "presence_penalty": 0.0,
        "previous_response_id": asked.previous_response_id,
        "prompt_cache_key": asked.prompt_cache_key,
        "prompt_cache_retention": asked.prompt_cache_retention,
        "reasoning": asked.reasoning,
        "safety_identifier": asked.safety_identifier,
        "service_tier": "auto" if ending.status == "in_progress" else "default",
        "store": asked.store,
        "temperature": asked.temperature,
        "text": asked.text,
        "tool_choice": asked.tool_choice,
        "tools": asked.tools,
        "top_logprobs": asked.top_logprobs,
        "top_p": asked.top_p,
        "truncation": asked.truncation,
        "usage": ending.usage,
        "user": asked.user,
        "metadata": asked.metadata,
    }


def billed(answer: Response) -> Response:
    """Return an answer as it is given where it is no stream."""
    return answer | {"billing": {"payer": "developer"}}


def usage(input_tokens: int, output_tokens: int) -> dict[str, object]:
    """Count tokens the way a provider bills them."""
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }


def logprobs(tokens: Sequence[ReadToken] | None) -> list[Item]:
    """Write log-probabilities."""
    return [_logprob(token) | {"top_logprobs": [_logprob(other) for other in token.top]} for token in tokens or ()]


def _logprob(token: ReadToken) -> Item:
    return {"token": token.text, "bytes": token.bytes, "logprob": token.logprob}


def output_items(response_id: str, parts: Sequence[ReadPart], tokens: Sequence[ReadToken], *, cut: bool) -> list[Item]:
    """Return what was answered as items: texts and calls in their order, and an empty text where there is neither.

    Only a text at the end can be incomplete: a call is known for one when all of it is there.
    """
    groups = [(kind, list(group)) for kind, group in groupby(parts or [""], key=type)]
    items: list[Item] = []
    for place, (kind, group) in enumerate(groups):
        if kind is str:
            status = "incomplete" if cut and place == len(groups) - 1 else "completed"
            part = text_part("".join(map(str, group)), logprobs(tokens) if place == 0 else ())
            items.append(message(response_id, len(items), [part], status))
        else:
            items += [call(response_id, len(items) + n, one) for n, one in enumerate(group)]  # pyright: ignore[reportArgumentType]  # the group holds calls
    return items


def message(response_id: str, index: int, content: list[Item], status: str = "completed") -> Item:
    """Return the assistant's message that is the item at `index` of an answer."""
    return {"id": item_id("message", response_id, str(index))} | message_item("assistant", content, status)


def call(
    response_id: str, index: int, made: AnswerCall, status: str = "completed", arguments: str | None = None
) -> Item:
    """Return the call that is the item at `index` of an answer, with as much of its arguments as there is."""
    shown = made.arguments if arguments is None else arguments
    return {"id": item_id("function_call", response_id, str(index))} | call_item(made.id, made.name, shown, status)


def event(kind: str, number: int, fields: Mapping[str, object]) -> bytes:
    """Return one stream event."""
    data = msgspec.json.encode({"type": kind, **fields, "sequence_number": number})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

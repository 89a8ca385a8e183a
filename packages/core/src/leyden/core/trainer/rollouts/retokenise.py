"""A recorded call, whoever answered it → a transition of the policy's own template. Knows nothing of stores or runs.

Where the prompt that was recorded is, id for id, what the policy's template makes of the conversation, the recorded
ids are the policy's and are kept. Where it is not, or nothing was recorded, both are made from the text.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import log_probs, token_ids, unpack_ids
from leyden.core.data.reasons import (
    CHANGED,
    CONTINUED,
    MORE_THAN_TEXT,
    NO_ANSWER,
    NOT_RENDERED,
    SEVERAL_ANSWERS,
    UPSTREAM,
)
from leyden.core.data.span import Span
from leyden.core.data.transition import Transition
from leyden.core.errors import LeydenError
from leyden.core.gateway.chat.request import TEXT_PARTS
from leyden.core.gateway.codec import Codec, Forced, Message, ToolDefinition
from leyden.core.gateway.model_request import UNREADABLE
from leyden.core.gateway.responses.items import chat_messages, read_items
from leyden.core.gateway.tool_choice import apply_tool_choice, read_tool_choice
from leyden.core.trajectory.calls import finish_reason
from leyden.core.trajectory.messages import objects, read_messages

_CUT_OFF = "length"
_MALFORMED = (KeyError, TypeError, AttributeError)
"""What reading messages raises that no gateway has checked: those that went to an upstream."""


class CannotTell(LeydenError):
    """A call that cannot be told in the policy's tokens; the text is the reason it is counted under."""


class _Asked(msgspec.Struct, frozen=True):
    """What a record's other request fields say of the prompt."""

    tool_choice: str | dict[str, Any] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None


def retold(span: Span, codec: Codec) -> Transition:
    """Return the call that `span` records, at temperature 1, without log-probabilities: it was another that drew it.

    Raises CannotTell.
    """
    messages, tools, forced = _conversation(span)
    try:
        prompt_ids = codec.encode(messages, tools, forced)
        recorded = _recorded(span)
        exact = recorded is not None and recorded[0] == prompt_ids
        response_ids = recorded[1] if exact and recorded else _answer_ids(span, codec, messages, tools, prompt_ids)
    except (LeydenError, *_MALFORMED) as error:
        raise error if isinstance(error, CannotTell) else CannotTell(NOT_RENDERED) from error
    version = span.attributes.get(semconv.POLICY_VERSION)
    return Transition(
        rollout_id=span.rollout_id,
        attempt_id=span.attempt_id,
        span_id=span.span_id,
        call_id=span.text(semconv.CALL_ID) or span.span_id,
        prompt_ids=token_ids(prompt_ids),
        response_ids=token_ids(response_ids),
        logprobs=log_probs([]),
        temperature=1.0,
        policy=span.text(semconv.POLICY) or span.text(semconv.RESPONSE_MODEL) or "",
        version=version if isinstance(version, int) else 0,
        agent=span.text(semconv.AGENT_NAME),
        node=span.text(semconv.NODE),
        finish_reason=finish_reason(span),
        retokenised=not exact,
    )


def _recorded(span: Span) -> tuple[list[int], list[int]] | None:
    """The ids that were read and written, where they were recorded and there was an answer."""
    prompt, response = (span.attributes.get(key) for key in (semconv.PROMPT_IDS, semconv.RESPONSE_IDS))
    if not isinstance(prompt, bytes) or not isinstance(response, bytes):
        return None
    try:
        read, written = unpack_ids(prompt).tolist(), unpack_ids(response).tolist()
    except ValueError:
        return None
    return (read, written) if written else None


def _conversation(span: Span) -> tuple[list[Message], list[ToolDefinition], Forced | None]:
    """What the model was asked, in the shape of Chat Completions, as the gateway would show it to the policy."""
    try:
        asked = msgspec.json.decode(span.text(semconv.SAMPLING_ASKED) or "{}", type=_Asked)
        if span.attributes.get(semconv.NOT_TRAINED) == UPSTREAM and span.text(semconv.DIALECT) == "responses":
            messages, offered = _responses(span, asked), [_nested(tool) for tool in _tools(span)]
        else:
            messages, offered = read_messages(span.attributes.get(semconv.INPUT_MESSAGES)), _tools(span)
        tools, forced = apply_tool_choice(read_tool_choice(asked.tool_choice), offered)
    except (LeydenError, *UNREADABLE, *_MALFORMED) as error:
        raise error if isinstance(error, CannotTell) else CannotTell(NOT_RENDERED) from error
    if not messages:
        raise CannotTell(NOT_RENDERED)
    if any(part.get("type") not in TEXT_PARTS for message in messages for part in objects(message.get("content"))):
        raise CannotTell(MORE_THAN_TEXT)
    return messages, tools, forced


def _responses(span: Span, asked: _Asked) -> list[Message]:
    """The conversation that an upstream's Responses API was given."""
    if asked.previous_response_id is not None:
        raise CannotTell(CONTINUED)
    given: Any = msgspec.json.decode(span.text(semconv.INPUT_MESSAGES) or "[]")
    instructions: list[Message] = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    return [*instructions, *chat_messages(read_items(given))]


def _tools(span: Span) -> list[ToolDefinition]:
    recorded = span.text(semconv.TOOL_DEFINITIONS)
    return [] if recorded is None else objects(msgspec.json.decode(recorded))


def _nested(tool: ToolDefinition) -> ToolDefinition:
    """A function as Chat Completions writes it, from how Responses does."""
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _answer_ids(
    span: Span, codec: Codec, messages: Sequence[Message], tools: Sequence[ToolDefinition], prompt_ids: list[int]
) -> list[int]:
    """What the policy would have written to give the recorded answer, the end of its turn included.

    It is what the template puts between the prompt and the end of the turn when the answer is part of the conversation.
    An answer that was cut off has no end to learn.
    """
    answers = read_messages(span.attributes.get(semconv.OUTPUT_MESSAGES))
    if len(answers) > 1:
        raise CannotTell(SEVERAL_ANSWERS)
    if not answers or not (answers[0].get("content") or answers[0].get("tool_calls")):
        raise CannotTell(NO_ANSWER)
    answer = cast("Message", {**answers[0], "role": "assistant"})
    whole = codec.encode([*messages, answer], tools)
    ends = [at for at in range(len(prompt_ids), len(whole)) if whole[at] in codec.stop_ids]
    if whole[: len(prompt_ids)] != prompt_ids or not ends:
        raise CannotTell(CHANGED)
    last = ends[0] if finish_reason(span) == _CUT_OFF else ends[0] + 1
    response_ids = whole[len(prompt_ids) : last]
    if not response_ids:
        raise CannotTell(NO_ANSWER)
    return response_ids

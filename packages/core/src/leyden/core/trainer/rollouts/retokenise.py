"""Re-tokenisation: converts a recorded call of any model into a transition in the tokens of the policy.

If the recorded prompt ids equal the ids that the policy's chat template gives for the conversation, the recorded prompt
and response ids are kept. Otherwise, or if no ids were recorded, both are computed from the text.
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
from leyden.core.gateway.anthropic.tools import MessagesToolChoice, read_choice
from leyden.core.gateway.chat.request import TEXT_PARTS
from leyden.core.gateway.codec import Codec, Forced, Message, ToolDefinition
from leyden.core.gateway.model_request import UNREADABLE
from leyden.core.gateway.responses.items import chat_messages, read_items
from leyden.core.gateway.tool_choice import ToolChoice, apply_tool_choice, read_tool_choice
from leyden.core.trajectory.calls import finish_reason
from leyden.core.trajectory.messages import objects, read_messages

_CUT_OFF = "length"
_MALFORMED = (KeyError, TypeError, AttributeError)
"""Errors of reading messages that the gateway did not validate, such as those sent to an upstream."""


class CannotRetokenise(LeydenError):
    """Call that cannot be converted into the policy's tokens; the text is the reason under which it is counted."""


class _RequestFields(msgspec.Struct, frozen=True):
    """Recorded request fields that affect the prompt."""

    tool_choice: str | dict[str, Any] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    stop: str | list[str] | None = None
    echo: bool | None = None


def retokenise(span: Span, codec: Codec) -> Transition:
    """Return the call in `span` as a transition of the policy, at temperature 1 and without log-probabilities.

    Log-probabilities are left out, because another model drew the tokens. Raises CannotRetokenise with the reason.
    """
    messages, tools, forced = _conversation(span)
    try:
        if span.text(semconv.DIALECT) == "completions":
            prompt_ids, response_ids, exact = _continued_text(span, codec, messages)
        else:
            prompt_ids = codec.encode(messages, tools, forced)
            recorded = _recorded(span)
            exact = recorded is not None and recorded[0] == prompt_ids
            response_ids = recorded[1] if exact and recorded else _answer_ids(span, codec, messages, tools, prompt_ids)
    except (LeydenError, *_MALFORMED) as error:
        raise error if isinstance(error, CannotRetokenise) else CannotRetokenise(NOT_RENDERED) from error
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
    """Return the recorded prompt and response ids; None if they are missing or the response is empty."""
    prompt, response = (span.attributes.get(key) for key in (semconv.PROMPT_IDS, semconv.RESPONSE_IDS))
    if not isinstance(prompt, bytes) or not isinstance(response, bytes):
        return None
    try:
        read, written = unpack_ids(prompt).tolist(), unpack_ids(response).tolist()
    except ValueError:
        return None
    return (read, written) if written else None


def _conversation(span: Span) -> tuple[list[Message], list[ToolDefinition], Forced | None]:
    """Return messages, tools and forced tool of the request, in the form of Chat Completions.

    This is the conversation that the gateway would pass to the policy. Raises CannotRetokenise with the reason.
    """
    try:
        request = _request_fields(span)
        if span.attributes.get(semconv.NOT_TRAINED) == UPSTREAM and span.text(semconv.DIALECT) == "responses":
            messages, offered = _responses(span, request), [_nested(tool) for tool in _tools(span)]
        else:
            messages, offered = read_messages(span.attributes.get(semconv.INPUT_MESSAGES)), _tools(span)
        tools, forced = apply_tool_choice(_tool_choice(span, request), offered)
    except (LeydenError, *UNREADABLE, *_MALFORMED) as error:
        raise error if isinstance(error, CannotRetokenise) else CannotRetokenise(NOT_RENDERED) from error
    if not messages:
        raise CannotRetokenise(NOT_RENDERED)
    if any(part.get("type") not in TEXT_PARTS for message in messages for part in objects(message.get("content"))):
        raise CannotRetokenise(MORE_THAN_TEXT)
    return messages, tools, forced


def _tool_choice(span: Span, request: _RequestFields) -> ToolChoice:
    if span.text(semconv.DIALECT) == "messages":
        return read_choice(msgspec.convert(request.tool_choice, MessagesToolChoice | None))
    return read_tool_choice(request.tool_choice)


def _continued_text(span: Span, codec: Codec, messages: Sequence[Message]) -> tuple[list[int], list[int], bool]:
    """Return prompt ids and response ids of a call of the Completions API, and whether both are the recorded ones.

    Recorded ids are kept if they have the recorded texts in the policy's vocabulary: a prompt may have been sent as
    token ids. Otherwise both texts are encoded without the chat template. An answer that ended by itself, and not at a
    stop string, gets the first of the policy's end tokens. Raises CannotRetokenise with the reason.
    """
    if len(messages) > 1:
        raise CannotRetokenise(SEVERAL_ANSWERS)
    request = _request_fields(span)
    prompt, answer = str(messages[0]["content"]), _answer_text(span)
    if request.echo and span.attributes.get(semconv.NOT_TRAINED) == UPSTREAM:
        answer = answer.removeprefix(prompt)  # an upstream's answer is recorded as it was sent
    recorded = _recorded(span)
    if recorded is not None and _has_texts(codec, recorded, prompt, answer):
        return *recorded, True
    prompt_ids, whole = codec.encode_text(prompt), codec.encode_text(prompt + answer)
    if whole[: len(prompt_ids)] != prompt_ids:
        raise CannotRetokenise(CHANGED)
    end = () if request.stop or finish_reason(span) == _CUT_OFF else codec.stop_ids[:1]
    return prompt_ids, [*whole[len(prompt_ids) :], *end], False


def _request_fields(span: Span) -> _RequestFields:
    try:
        return msgspec.json.decode(span.text(semconv.SAMPLING_ASKED) or "{}", type=_RequestFields)
    except UNREADABLE as error:
        raise CannotRetokenise(NOT_RENDERED) from error


def _answer_text(span: Span) -> str:
    answers = read_messages(span.attributes.get(semconv.OUTPUT_MESSAGES))
    if len(answers) > 1:
        raise CannotRetokenise(SEVERAL_ANSWERS)
    if not answers or not answers[0].get("content"):
        raise CannotRetokenise(NO_ANSWER)
    return str(answers[0]["content"])


def _has_texts(codec: Codec, recorded: tuple[list[int], list[int]], prompt: str, answer: str) -> bool:
    try:
        return codec.decode(recorded[0]) == prompt and codec.decode(recorded[1]).startswith(answer)
    except (LeydenError, ValueError, LookupError, OverflowError):  # ids of another vocabulary
        return False


def _responses(span: Span, request: _RequestFields) -> list[Message]:
    """Return the conversation of a request to an upstream's Responses API.

    Raises CannotRetokenise for a continued response.
    """
    if request.previous_response_id is not None:
        raise CannotRetokenise(CONTINUED)
    given: Any = msgspec.json.decode(span.text(semconv.INPUT_MESSAGES) or "[]")
    instructions: list[Message] = [{"role": "system", "content": request.instructions}] if request.instructions else []
    return [*instructions, *chat_messages(read_items(given))]


def _tools(span: Span) -> list[ToolDefinition]:
    recorded = span.text(semconv.TOOL_DEFINITIONS)
    return [] if recorded is None else objects(msgspec.json.decode(recorded))


def _nested(tool: ToolDefinition) -> ToolDefinition:
    """Convert a function tool from the form of the Responses API into that of Chat Completions."""
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _answer_ids(
    span: Span, codec: Codec, messages: Sequence[Message], tools: Sequence[ToolDefinition], prompt_ids: list[int]
) -> list[int]:
    """Return the token ids with which the policy would have written the recorded answer, including the end of turn.

    They are the ids that the chat template puts after the prompt, up to the end of the turn, for the conversation with
    the answer. An answer that was cut off gets no end of turn. Raises CannotRetokenise with the reason.
    """
    answers = read_messages(span.attributes.get(semconv.OUTPUT_MESSAGES))
    if len(answers) > 1:
        raise CannotRetokenise(SEVERAL_ANSWERS)
    if not answers or not (answers[0].get("content") or answers[0].get("tool_calls")):
        raise CannotRetokenise(NO_ANSWER)
    answer = cast("Message", {**answers[0], "role": "assistant"})
    whole = codec.encode([*messages, answer], tools)
    ends = [at for at in range(len(prompt_ids), len(whole)) if whole[at] in codec.stop_ids]
    if whole[: len(prompt_ids)] != prompt_ids or not ends:
        raise CannotRetokenise(CHANGED)
    last = ends[0] if finish_reason(span) == _CUT_OFF else ends[0] + 1
    response_ids = whole[len(prompt_ids) : last]
    if not response_ids:
        raise CannotRetokenise(NO_ANSWER)
    return response_ids

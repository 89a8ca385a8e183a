"""Format of Chat Completions responses: builds the JSON of plain responses and of stream events.

The responses have exactly the provider's fields. Fields without a value here are null, as the provider sends them.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from leyden.core.gateway.codecs.answer_reader import AnswerCall, ReadToken
from leyden.core.gateway.http.padding import padding

ChatFinish = Literal["stop", "length", "tool_calls", "content_filter"]
FINGERPRINT = "fp_6f1a0c52d3"
"""Constant `system_fingerprint`, so that the agent gets no information about the backend."""
DONE = b"data: [DONE]\n\n"


class _TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class _TokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[_TopLogprob]


class Logprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a response's content, under the raw distribution."""

    content: list[_TokenLogprob] | None
    refusal: None = None


class _Function(msgspec.Struct, frozen=True, kw_only=True):
    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str


class _Call(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: _Function


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    """The model's reasoning, if it has any: the field of DeepSeek's API, which older versions of vLLM share."""
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    """The same text in the field of newer versions of vLLM."""
    tool_calls: list[_Call] | msgspec.UnsetType = msgspec.UNSET
    refusal: None = None
    annotations: list[object] = []


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a plain response."""

    index: int
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: ChatFinish
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    """Ids of the choice's tokens, if requested; a field of vLLM's API."""


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0
    audio_tokens: int = 0


class _CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _PromptDetails = _PromptDetails()
    completion_tokens_details: _CompletionDetails = _CompletionDetails()


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A plain response."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    service_tier: Literal["default"] = "default"
    system_fingerprint: str = FINGERPRINT
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    """Ids of the prompt's tokens, if requested; a field of vLLM's API."""


class _DeltaCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: _Function


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """Addition of one stream event to the message; unchanged fields are absent."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[_DeltaCall] | msgspec.UnsetType = msgspec.UNSET
    refusal: msgspec.UnsetType | None = msgspec.UNSET


class _DeltaChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: ChatFinish | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    service_tier: Literal["default"] = "default"
    system_fingerprint: str = FINGERPRINT
    choices: list[_DeltaChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class TokenIds(msgspec.Struct, frozen=True):
    """The token ids of a choice and of its prompt."""

    prompt: list[int]
    response: list[int]


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that every part of one response repeats."""

    id: str
    created: int
    model: str
    """Name of the model in the agent's request."""
    include_usage: bool = False
    padded: bool = False
    """Whether the events of a stream are padded."""


def answer_message(content: str | None, calls: Sequence[AnswerCall], reasoning: str | None = None) -> AnswerMessage:
    """Return the assistant's message."""
    tool_calls = [_Call(id=call.id, function=_Function(name=call.name, arguments=call.arguments)) for call in calls]
    thoughts = reasoning or msgspec.UNSET
    return AnswerMessage(
        content=content, reasoning_content=thoughts, reasoning=thoughts, tool_calls=tool_calls or msgspec.UNSET
    )


def logprobs(tokens: Sequence[ReadToken] | None) -> Logprobs | None:
    """Return the log-probabilities in the provider's format; None without tokens."""
    if not tokens:
        return None
    return Logprobs(
        [
            _TokenLogprob(
                token.text, token.logprob, token.bytes, [_TopLogprob(t.text, t.logprob, t.bytes) for t in token.top]
            )
            for token in tokens
        ]
    )


def usage(prompt_tokens: int, completion_tokens: int, reasoning_tokens: int = 0) -> Usage:
    """Return the token counts in the provider's format."""
    return Usage(
        prompt_tokens,
        completion_tokens,
        prompt_tokens + completion_tokens,
        completion_tokens_details=_CompletionDetails(reasoning_tokens=reasoning_tokens),
    )


def plain_choice(
    index: int,
    message: AnswerMessage,
    finish: ChatFinish,
    token_logprobs: Logprobs | None,
    ids: TokenIds | None = None,
) -> Choice:
    """Return one choice of a plain response."""
    return Choice(
        index=index,
        message=message,
        logprobs=token_logprobs,
        finish_reason=finish,
        token_ids=msgspec.UNSET if ids is None else ids.response,
    )


def completion(head: AnswerHead, choices: list[Choice], token_usage: Usage, ids: TokenIds | None = None) -> bytes:
    """Return the JSON of a plain response."""
    answer = Completion(
        id=head.id,
        created=head.created,
        model=head.model,
        choices=choices,
        usage=token_usage,
        prompt_token_ids=msgspec.UNSET if ids is None else ids.prompt,
    )
    return msgspec.json.encode(answer)


def delta_event(
    head: AnswerHead,
    index: int,
    delta: Delta,
    finish: ChatFinish | None = None,
    token_logprobs: Logprobs | None = None,
    ids: TokenIds | None = None,
) -> bytes:
    """Return one stream event that extends the message of choice `index` or ends it; `ids` belong to its end."""
    choice = _DeltaChoice(
        index=index,
        delta=delta,
        logprobs=token_logprobs,
        finish_reason=finish,
        token_ids=msgspec.UNSET if ids is None else ids.response,
    )
    text = delta.content if isinstance(delta.content, str) else delta.reasoning
    shown = text if isinstance(text, str) else ""
    return _event(head, [choice], None if head.include_usage else msgspec.UNSET, shown, ids)


def usage_event(head: AnswerHead, token_usage: Usage) -> bytes:
    """Return the stream event with the token counts, which comes before the end mark."""
    return _event(head, [], token_usage)


def call_deltas(call: AnswerCall, index: int) -> tuple[Delta, Delta]:
    """Return a tool call as two deltas, as the provider streams it: its name, then its arguments."""
    name = _DeltaCall(index=index, id=call.id, type="function", function=_Function(arguments="", name=call.name))
    arguments = _DeltaCall(index=index, function=_Function(arguments=call.arguments))
    return Delta(tool_calls=[name]), Delta(tool_calls=[arguments])


def reasoning_delta(text: str) -> Delta:
    """Return a piece of reasoning as a delta."""
    return Delta(reasoning_content=text, reasoning=text)


def server_event(data: bytes) -> bytes:
    """Return JSON as one server-sent event."""
    return b"data: " + data + b"\n\n"


def _event(
    head: AnswerHead,
    choices: list[_DeltaChoice],
    token_usage: Usage | msgspec.UnsetType | None,
    piece: str = "",
    ids: TokenIds | None = None,
) -> bytes:
    chunk = Chunk(
        id=head.id,
        created=head.created,
        model=head.model,
        choices=choices,
        usage=token_usage,
        obfuscation=padding(piece) if head.padded else msgspec.UNSET,
        prompt_token_ids=msgspec.UNSET if ids is None else ids.prompt,
    )
    return server_event(msgspec.json.encode(chunk))

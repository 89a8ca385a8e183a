"""Format of Completions responses: builds the JSON of plain responses and of stream events.

The responses have exactly the provider's fields. Fields without a value here are null, as the provider sends them.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from leyden.core.gateway.chat.format import AnswerHead, server_event
from leyden.core.gateway.codecs.answer_reader import ReadToken
from leyden.core.gateway.dialect import EncodedPrompt
from leyden.core.gateway.http.padding import padding

CompletionFinish = Literal["stop", "length"]


class Logprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a text's tokens, under the raw distribution; one entry of each list for each token."""

    text_offset: list[int]
    """Characters from the beginning of the prompt to each token."""
    token_logprobs: list[float | None]
    """The first token of a prompt has none."""
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]
    """The most likely tokens and the token itself; null where the engine computes no other tokens."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a response, or the addition of one stream event to it."""

    text: str
    index: int
    logprobs: Logprobs | None = None
    finish_reason: CompletionFinish | None = None


class Usage(msgspec.Struct, frozen=True):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A plain response, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    obfuscation: str | msgspec.UnsetType = msgspec.UNSET


def echo_logprobs(prompt: EncodedPrompt, *, top: bool) -> Logprobs:
    """Return the log-probabilities of a prompt that the response repeats; none for its first token.

    The engine scores the tokens of a prompt and no other tokens. So with `top`, the lists of the most likely tokens are
    null, and without it each has the token alone.
    """
    values: list[float | None] = [None, *(prompt.logprobs or ())]
    names = [_name(token.text, token.bytes) for token in prompt.tokens or ()]
    pairs = zip(names, values, strict=True)
    return Logprobs(
        text_offset=[token.start for token in prompt.tokens or ()],
        token_logprobs=values,
        tokens=names,
        top_logprobs=[None if top or value is None else {name: value} for name, value in pairs],
    )


def logprobs(tokens: Sequence[ReadToken], offset: int) -> Logprobs:
    """Return the log-probabilities of an answer's tokens; `offset` is the length of the text before the answer."""
    return Logprobs(
        text_offset=[offset + token.start for token in tokens],
        token_logprobs=[token.logprob for token in tokens],
        tokens=[_name(token.text, bytes(token.bytes)) for token in tokens],
        top_logprobs=[_top(token) for token in tokens],
    )


def joined(first: Logprobs, second: Logprobs) -> Logprobs:
    """Return the log-probabilities of a text that consists of two parts."""
    return Logprobs(
        text_offset=[*first.text_offset, *second.text_offset],
        token_logprobs=[*first.token_logprobs, *second.token_logprobs],
        tokens=[*first.tokens, *second.tokens],
        top_logprobs=[*first.top_logprobs, *second.top_logprobs],
    )


def usage(prompt_tokens: int, completion_tokens: int) -> Usage:
    """Return the token counts in the provider's format."""
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)


def completion(head: AnswerHead, choices: list[Choice], token_usage: Usage) -> bytes:
    """Return the JSON of a plain response."""
    return msgspec.json.encode(
        Completion(id=head.id, created=head.created, model=head.model, choices=choices, usage=token_usage)
    )


def choice_event(head: AnswerHead, choice: Choice) -> bytes:
    """Return one stream event that extends the text of a choice or ends it."""
    return _event(head, [choice], None if head.include_usage else msgspec.UNSET, choice.text)


def usage_event(head: AnswerHead, token_usage: Usage) -> bytes:
    """Return the stream event with the token counts, which comes before the end mark."""
    return _event(head, [], token_usage)


def _event(
    head: AnswerHead, choices: list[Choice], token_usage: Usage | msgspec.UnsetType | None, piece: str = ""
) -> bytes:
    event = Completion(
        id=head.id,
        created=head.created,
        model=head.model,
        choices=choices,
        usage=token_usage,
        obfuscation=padding(piece) if head.padded else msgspec.UNSET,
    )
    return server_event(msgspec.json.encode(event))


def _top(token: ReadToken) -> dict[str, float]:
    """Return the most likely tokens, most likely first, and the sampled token; of two equal texts, the likelier one."""
    found: dict[str, float] = {}
    for one in (*token.top, token):
        found.setdefault(_name(one.text, bytes(one.bytes)), one.logprob)
    return found


def _name(text: str, token_bytes: bytes) -> str:
    r"""Return a token's text; bytes that are no whole characters as the provider writes them, `bytes:\xe2\x80`."""
    try:
        token_bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)
    return text

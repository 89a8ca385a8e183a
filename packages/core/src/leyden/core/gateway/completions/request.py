"""Completions requests: parses and checks the body of a request.

Supported fields are parsed. `user` is only a hint: it is accepted and recorded. Any other field is refused as the
provider would refuse it, and never ignored.
"""

import msgspec

from leyden.core.data.sampling import Sampling
from leyden.core.gateway.answer_format import one_format, read_guided
from leyden.core.gateway.chat.request import MAX_CHOICES, StreamOptions, checked_stop
from leyden.core.gateway.model_request import (
    LARGEST_INTEGER,
    UNREADABLE,
    ModelRequest,
    Prompt,
    RecordedRequest,
    SamplingFields,
    check_fields,
    check_range,
    checked_sampling,
    read_fields,
    rest_of,
    unreadable,
)
from leyden.core.gateway.refusal import Refusal, invalid, unsupported

HINTS = frozenset({"user"})
"""Fields that are only hints: they require nothing of the response."""

NOT_AVAILABLE = frozenset({"best_of", "suffix"})
"""Fields of `CompletionsBody` of which only values without an effect are accepted."""

DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 5


class CompletionsBody(SamplingFields, frozen=True, kw_only=True):
    """Supported fields of a request."""

    model: str
    prompt: str | list[str | int | list[int]] | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    max_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    suffix: str | None = None


_BODY = msgspec.json.Decoder(CompletionsBody)
KNOWN = frozenset(CompletionsBody.__struct_fields__) | HINTS
RECORDED_SEPARATELY = frozenset({"prompt", "model", "stream", "stream_options"})
"""Fields that a record keeps separately, and not in `RecordedRequest.rest`."""


class CompletionsRequest(ModelRequest, frozen=True, kw_only=True):
    """One checked request of Completions."""

    include_usage: bool = False
    """Whether a stream ends with token counts."""
    padded: bool = False
    """Whether the events of a stream are padded."""


def parse_completions(body: bytes) -> CompletionsRequest:
    """Parse and check a request body; raises Refusal for a request that no response can satisfy."""
    fields = read_fields(body)
    try:
        parsed = _BODY.decode(body)
        check_fields(fields, KNOWN, {})
    except UNREADABLE as error:
        raise unreadable(error) from None
    if parsed.suffix:
        raise unsupported("suffix", "is not available: the policy continues a text, and cannot fill a gap in one.")
    prompts = _prompts(parsed.prompt)
    options = parsed.stream_options
    if options is not None and not parsed.stream:
        raise invalid("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options")
    if parsed.logprobs is not None:
        check_range("logprobs", parsed.logprobs, 0, MAX_LOGPROBS)
    return CompletionsRequest(
        as_sent=RecordedRequest(
            model=parsed.model, stream=bool(parsed.stream), rest=rest_of(fields, RECORDED_SEPARATELY)
        ),
        messages=[],
        tools=[],
        prompts=prompts,
        echo=bool(parsed.echo),
        choices=_choices(parsed.n, parsed.best_of, len(prompts)),
        logprobs=parsed.logprobs is not None,
        top_logprobs=parsed.logprobs or 0,
        sampling=_sampling(parsed),
        answer_format=one_format("structured_outputs", read_guided(parsed)),
        include_usage=bool(options and options.include_usage),
        padded=bool(options and options.include_obfuscation),
    )


def prompt_messages(prompt: bytes | msgspec.Raw) -> str | None:
    """Return the JSON with which a request's prompts are recorded if an upstream answers: a user's message for each.

    Token ids are a part of the type `token_ids`, because they have no text here. None if `prompt` is no prompt.
    """
    try:
        prompts = _prompts(msgspec.json.decode(prompt, type=str | list[str | int | list[int]] | None))
    except (*UNREADABLE, Refusal):
        return None
    messages = [{"role": "user", "content": _recorded(one)} for one in prompts]
    return msgspec.json.encode(messages).decode()


def _recorded(prompt: Prompt) -> object:
    return prompt if isinstance(prompt, str) else [{"type": "token_ids", "token_ids": prompt}]


def _prompts(given: str | list[str | int | list[int]] | None) -> tuple[Prompt, ...]:
    """Return the prompts of a request; without one, the policy begins a new document, as with an empty text.

    Raises Refusal for a list that is empty, or that mixes texts and token ids.
    """
    if given is None or isinstance(given, str):
        return (given or "",)
    texts = [one for one in given if isinstance(one, str)]
    ids = [one for one in given if isinstance(one, int)]
    lists = [tuple(one) for one in given if isinstance(one, list)]
    if not given or not all(lists) or len(given) not in (len(texts), len(ids), len(lists)):
        message = (
            "Invalid 'prompt': expected a string, an array of strings, an array of token ids or an array of arrays of "
            "token ids; no array may be empty."
        )
        raise invalid(message, "prompt")
    return tuple(texts) if texts else (tuple(ids),) if ids else tuple(lists)


def _choices(n: int | None, best_of: int | None, prompts: int) -> int:
    """Return the number of choices for each prompt; raises Refusal if it is out of range, or for another `best_of`."""
    if n is not None:
        check_range("n", n, 1, MAX_CHOICES)
    choices = n or 1
    if best_of is not None:
        check_range("best_of", best_of, 1, MAX_CHOICES)
        if best_of < choices:
            raise invalid("'best_of' must be at least 'n'.", "best_of")
        if best_of > choices:
            reason = "must equal 'n': every sampled answer is recorded and returned, and none is chosen among others."
            raise unsupported("best_of", reason)
    if choices * prompts > MAX_CHOICES:
        message = f"'n' times the number of prompts must be at most {MAX_CHOICES}, but is {choices * prompts}."
        raise invalid(message, "prompt")
    return choices


def _sampling(body: CompletionsBody) -> Sampling:
    limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    check_range("max_tokens", limit, 0, LARGEST_INTEGER)
    sampling = checked_sampling(body, ("max_tokens", None))
    return msgspec.structs.replace(sampling, max_tokens=limit, stop=checked_stop(body.stop))

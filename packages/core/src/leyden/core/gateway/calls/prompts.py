"""Prompts of a call: encodes them, scores those that the response repeats, and reads them from a recorded call.

A conversation is one prompt. A request of the Completions API may have several, each text or token ids.
"""

from collections.abc import Sequence
from typing import cast

import msgspec

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.span import Span
from leyden.core.engine.base import Engine, ModelInfo
from leyden.core.errors import GatewayError
from leyden.core.gateway.calls.images import NO_IMAGES, read_images
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.codec import Codec
from leyden.core.gateway.codecs.text import TextStream
from leyden.core.gateway.dialect import Dialect, EncodedPrompt, PromptToken
from leyden.core.gateway.limits.long_work import RequestWork
from leyden.core.gateway.limits.prompt_size import least_of_request, least_tokens
from leyden.core.gateway.message_images import with_urls
from leyden.core.gateway.model_request import ModelRequest, Prompt
from leyden.core.gateway.refusal import Refusal, invalid

ID_CHARACTERS = 4
"""Characters of text that take about as long to encode as one token id takes to decode."""


async def read_prompts(
    policy: ServedPolicy,
    dialect: Dialect,
    request: ModelRequest,
    urls: Sequence[str],
    work: RequestWork,
    room: int,
) -> list[EncodedPrompt]:
    """Return the prompts of a request with their token ids; a conversation is one prompt. `urls` are its images' URLs.

    Raises Refusal if a prompt has at least `room` tokens by a lower bound that needs no encoding, if its ids are not
    in the vocabulary, or if all prompts together exceed `dialect.contexts`. Also raises Refusal if the chat template
    cannot render the messages, or if the policy cannot read the request's images.
    """
    images = await read_images(policy, dialect, urls, work, room) if urls else NO_IMAGES
    messages = with_urls(request.messages, [""] * len(images.files)) if images.files else request.messages
    if not request.prompts:
        size = len(request.as_sent.messages or "") + len(request.as_sent.tools or "") - images.characters
    else:
        size = sum(len(prompt) * (1 if isinstance(prompt, str) else ID_CHARACTERS) for prompt in request.prompts)

    def encode() -> list[EncodedPrompt]:
        if request.prompts:
            return _plain_prompts(policy, dialect, request, room)
        least = 0 if size < room else least_of_request(request, policy.codec)  # never more than `size`
        if least >= room:
            raise dialect.too_long(room, least)
        ids = policy.codec.encode(
            messages,
            request.tools,
            request.forced,
            formatted=request.answer_format is not None,
            variables=request.template_variables,
        )
        if not images.files:
            return [EncodedPrompt(ids=ids)]
        ids, placed = policy.codec.place_images(ids, images.files)
        return [EncodedPrompt(ids=ids, images=placed)]

    try:
        return await work.render(size, encode)
    except Refusal:
        raise
    except (GatewayError, RecursionError) as error:  # RecursionError: messages nested too deeply for the template
        raise invalid(str(error), dialect.prompt_field) from error


async def score_prompt(engine: Engine, prompt: EncodedPrompt) -> None:
    """Set the log-probabilities of a prompt's tokens, under the weights that are served now."""
    prompt.logprobs = await engine.score(list(prompt.ids)) if len(prompt.ids) > 1 else []


def recorded_prompts(codec: Codec, request: ModelRequest, spans: Sequence[Span]) -> list[EncodedPrompt]:
    """Return the prompts of a recorded call; `spans` has one span per choice, in the order of the prompts."""
    prompts: dict[int, EncodedPrompt] = {}
    for span in spans:
        attributes = span.attributes
        index = int(str(attributes.get(semconv.PROMPT_INDEX, 0)))
        if index in prompts:
            continue
        ids = unpack_ids(cast("bytes", attributes[semconv.PROMPT_IDS])).tolist()
        asked = request.prompts[index] if request.prompts else None
        prompt = EncodedPrompt(ids=ids) if asked is None else _prompt(codec, request, asked, ids)
        logprobs = attributes.get(semconv.PROMPT_LOGPROBS)
        prompt.logprobs = unpack_log_probs(logprobs).tolist() if isinstance(logprobs, bytes) else None
        prompts[index] = prompt
    return list(prompts.values())


def recorded_messages(prompt: EncodedPrompt) -> str:
    """Return the JSON with which a prompt without a chat template is recorded: one user's message with its text."""
    return msgspec.json.encode([{"role": "user", "content": prompt.text}]).decode()


def _plain_prompts(policy: ServedPolicy, dialect: Dialect, request: ModelRequest, room: int) -> list[EncodedPrompt]:
    prompts: list[EncodedPrompt] = []
    total, most = 0, dialect.contexts * room
    for asked in request.prompts:
        least = least_tokens(len(asked), policy.codec) if isinstance(asked, str) else len(asked)
        if least > room:
            raise dialect.too_long(room, least)
        prompt = _prompt(policy.codec, request, asked, _ids(policy, asked))
        prompts.append(prompt)
        total += len(prompt.ids)
        if total > most:
            message = f"The prompts of one request may have {most} tokens together, and these have more."
            raise Refusal(400, message, param=dialect.prompt_field, code="context_length_exceeded")
    return prompts


def _ids(policy: ServedPolicy, asked: Prompt) -> list[int]:
    if isinstance(asked, str):
        ids = policy.codec.encode_text(asked)
        if not ids:
            raise invalid("Invalid 'prompt': this text has no tokens.", "prompt")
        return ids
    _check_vocabulary(asked, policy.engine.model)
    return list(asked)


def _check_vocabulary(ids: Sequence[int], model: ModelInfo) -> None:
    outside = next((token for token in ids if not 0 <= token < model.vocab_size), None)
    if outside is not None:
        message = (
            f"Invalid 'prompt': the token id {outside} is outside the vocabulary of this model, which has "
            f"{model.vocab_size} tokens."
        )
        raise invalid(message, "prompt")


def _prompt(codec: Codec, request: ModelRequest, asked: Prompt, ids: list[int]) -> EncodedPrompt:
    text = asked if isinstance(asked, str) else codec.decode(ids)
    tokens = _tokens(codec, ids) if request.echo and request.logprobs else None
    return EncodedPrompt(ids=ids, text=text, tokens=tokens)


def _tokens(codec: Codec, ids: Sequence[int]) -> list[PromptToken]:
    """Return the tokens of a prompt; each begins where the text before it ends."""
    stream, start = TextStream(codec.decode), 0
    tokens: list[PromptToken] = []
    for token in ids:
        tokens.append(PromptToken(codec.decode([token]), codec.token_bytes(token), start))
        start += len(stream.push([token]))
    return tokens
